"""What a run of steps will move, found by planning it without moving anything.

Invariant: the planner and the horizon are those of training, so with the same bounds the forecast is what happens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tidegs.device.base import RenderSettings, View
from tidegs.residency.counters import LINKS
from tidegs.residency.horizon import Horizon
from tidegs.residency.moves import KIND
from tidegs.residency.passes import PassPlanner
from tidegs.residency.planner import Planner
from tidegs.residency.schedule import Step
from tidegs.residency.visibility import Bounds


@dataclass
class Forecast:
    """Counts of blocks over the steps that were planned."""

    steps: int = 0
    passes: int = 0
    parted_cameras: int = 0  # cameras that needed more than the arena holds
    needed: int = 0  # blocks of passes
    moved: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LINKS, 0))

    def minus(self, earlier: Forecast) -> Forecast:
        """What came after `earlier`."""
        return Forecast(
            self.steps - earlier.steps,
            self.passes - earlier.passes,
            self.parted_cameras - earlier.parted_cameras,
            self.needed - earlier.needed,
            {link: self.moved[link] - earlier.moved[link] for link in LINKS},
        )


def forecast(
    table: np.ndarray,
    views: Sequence[View],
    steps: Iterable[Step],
    arena_slots: int,
    host_slots: int,
    settings: RenderSettings,
    warm_up: int = 0,
    host_keeps: bool = True,
) -> Forecast:
    """Plans `steps` from empty tiers and counts; the first `warm_up` steps fill the tiers and are not counted. Every
    block of a step is taken to be changed by it. The bounds stay those of the table (store.base.TABLE_DTYPE)."""
    bounds = Bounds(table)
    planner = Planner(len(table), arena_slots, host_slots, host_keeps=host_keeps)
    passes = PassPlanner(bounds, views.__getitem__, settings, arena_slots)
    horizon = Horizon(planner, passes, passes, iter(steps), max(1024, 2 * len(views)), planner.chunk)
    total, first = Forecast(), Forecast()
    while (dues := horizon.begin()) is not None:
        for due in dues:
            moves, _ = horizon.ensure(due)
            for part in moves:
                for link, count in zip(LINKS, np.bincount(part[:, KIND], minlength=len(LINKS)), strict=True):
                    total.moved[link] += int(count)
            if due.plan.has_backward:
                planner.state.dirty[due.plan.ids] = True
            horizon.finish(due)
            total.passes += 1
            total.needed += len(due.plan.ids)
            total.parted_cameras += due.plan.phase == "whole" and due.plan.part > 0
        total.steps += 1
        if total.steps == warm_up:
            first = Forecast(total.steps, total.passes, total.parted_cameras, total.needed, dict(total.moved))
    return total.minus(first)
