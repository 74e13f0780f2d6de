"""What a scene will need under given budgets, from its block table and cameras alone.

Invariant: it plans with the planner that trains, and renders nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tidegs.config import TrainConfig
from tidegs.data.scene import Scene
from tidegs.device.base import View
from tidegs.gaussians.layout import RecordLayout
from tidegs.machine import available_memory, human
from tidegs.residency.counters import LINKS
from tidegs.residency.forecast import Forecast, forecast
from tidegs.residency.visibility import view_sets
from tidegs.train.budgets import Budgets, choose_budgets
from tidegs.train.order import CameraOrder, choose_order
from tidegs.train.rates import render_settings
from tidegs.train.session import Session, view_of

MOST_STEPS = 2000  # planned after a warm-up of as many; an epoch where it is shorter


@dataclass(frozen=True)
class LinkRates:
    """Bytes a second: SSD reads and writes, and copies between host and device."""

    read: float
    write: float
    copy: float

    def seconds(self, link: str, nbytes: float) -> float:
        """Time of `nbytes` over a link."""
        return nbytes / {"read": self.read, "write": self.write}.get(link, self.copy)


@dataclass(frozen=True)
class Plan:
    """The needs of a run."""

    budgets: Budgets
    order: str
    sizes: np.ndarray  # int64 [training views], blocks of each
    counted: Forecast
    steps: int

    @property
    def mode(self) -> str:
        """Where the scene lives: "in core", "RAM" (arena and host cache hold it) or "SSD"."""
        if self.budgets.in_core:
            return "in core"
        host = self.budgets.host_slots if self.budgets.host_keeps else 0
        return "RAM" if self.budgets.arena_slots + host >= self.budgets.blocks else "SSD"

    def bytes_a_step(self) -> dict[str, float]:
        """Over each link, after the tiers have filled."""
        slot = self.budgets.layout.slot_nbytes
        return {link: self.counted.moved[link] * slot / max(1, self.counted.steps) for link in LINKS}

    def as_json(self, rates: LinkRates | None = None) -> dict[str, Any]:
        """For scripts, and for stats/plan.json."""
        b = self.budgets
        moved = self.bytes_a_step()
        out: dict[str, Any] = {
            "mode": self.mode,
            "blocks": b.blocks,
            "slot_bytes": b.layout.slot_nbytes,
            "scene_bytes": b.scene_bytes,
            "store_bytes": b.blocks * b.layout.stored_record_nbytes,
            "peak_bytes": {"arena": b.arena_bytes, "host": b.host_bytes},
            "order": self.order,
            "working_set": {"mean": float(self.sizes.mean()), "max": int(self.sizes.max())},
            "working_set_bytes_max": int(self.sizes.max()) * b.layout.slot_nbytes,
            "parted_cameras_share": self.counted.parted_cameras / max(1, self.counted.steps),
            "blocks_loaded_a_step": self.counted.moved["upload"] / max(1, self.counted.steps),
            "bytes_a_step": moved,
            "steps_planned": self.counted.steps,
        }
        if rates:
            seconds = {link: rates.seconds(link, n) for link, n in moved.items()}
            out["link_seconds_a_step"] = seconds
            out["io_seconds_a_step"] = max(seconds["read"] + seconds["write"], seconds["upload"], seconds["download"])
        return out

    def advice(self) -> list[str]:
        """What to change, if anything."""
        b, largest = self.budgets, int(self.sizes.max())
        out = []
        if largest > b.arena_slots:
            out.append(
                f"the largest view needs {largest} blocks and the arena holds {b.arena_slots}: views are handled in "
                f"parts, each block coming twice; --device-memory {human(largest * b.layout.slot_nbytes)} avoids it"
            )
        elif not b.in_core and 2 * largest > b.arena_slots:
            out.append(
                f"the next view can be loaded while one is rendered if the arena holds two: --device-memory "
                f"{human(2 * largest * b.layout.slot_nbytes)}"
            )
        if self.mode == "SSD" and b.scene_bytes <= available_memory() * 0.8:
            rest = (b.blocks - b.arena_slots) * b.layout.slot_nbytes
            out.append(f"the scene fits in RAM: --host-memory {human(rest)} spares the SSD all traffic but snapshots")
        return out


def plan_run(scene: Scene, config: TrainConfig, table: np.ndarray, record: RecordLayout) -> Plan:
    """Plans a run over the blocks of `table` (store.base.TABLE_DTYPE)."""
    return plan_views([view_of(c) for c in scene.cameras], scene.train, config, table, record)


def plan_views(
    views: list[View], train: tuple[int, ...], config: TrainConfig, table: np.ndarray, record: RecordLayout
) -> Plan:
    """The same for a scene of which only views and table are there; `train`: the views that are trained on."""
    budgets = choose_budgets(config, record, len(table))
    settings = render_settings(config, 0)
    offsets, _ = view_sets(table, [views[i] for i in train], settings)
    order = choose_order(config, train, views, table, budgets, settings)
    warm_up = min(MOST_STEPS, max(1, len(train) // config.batch_size))
    steps = order.steps(0, 2 * warm_up)
    slots = (budgets.arena_slots, budgets.host_slots)
    counted = forecast(table, views, steps, *slots, settings, warm_up, budgets.host_keeps)
    return Plan(budgets, order.name, np.diff(offsets), counted, warm_up)


def plan_session(session: Session, order: CameraOrder) -> Plan:
    """What the first steps of a run that is about to start will move, from empty tiers: for stats/plan.json, which the
    report sets beside what happened."""
    config, budgets, table = session.config, session.budgets, session.store.table
    settings = render_settings(config, 0)
    steps = list(order.steps(0, min(MOST_STEPS // 2, max(1, config.max_steps))))
    seen = sorted({c for step in steps for c in step.cameras})
    offsets, _ = view_sets(table, [session.views[c] for c in seen], settings)
    counted = forecast(table, session.views, steps, budgets.arena_slots, budgets.host_slots, settings)
    return Plan(budgets, order.name, np.diff(offsets), counted, len(steps))
