"""The camera order of a run: chosen once, kept in the result, so that a resume under other budgets goes on in it.

Invariant: what is in `ckpts/order.json` is what the run follows; it is written before the first step.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tidegs.config import TrainConfig
from tidegs.device.base import RenderSettings, View
from tidegs.errors import SceneError
from tidegs.files import write_json
from tidegs.residency.schedule import Schedule, Step
from tidegs.residency.tours import cache_tour, locality_tour
from tidegs.residency.visibility import view_sets
from tidegs.train.budgets import Budgets

WINDOWS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class CameraOrder:
    """Steps over the training cameras, as indices into the scene's cameras."""

    name: str
    train: tuple[int, ...]
    schedule: Schedule

    def steps(self, start: int, stop: int) -> Iterator[Step]:
        """Steps start up to stop (exclusive)."""
        for step in self.schedule.steps(start, stop):
            yield Step(step.index, tuple(self.train[c] for c in step.cameras))


def open_order(
    path: Path,
    config: TrainConfig,
    train: tuple[int, ...],
    views: Sequence[View],
    table: np.ndarray,
    budgets: Budgets,
    settings: RenderSettings,
) -> CameraOrder:
    """The order kept in `path`, or a new one, kept there. `views`: of the scene; `table`: of the store as it is now."""
    if path.exists():
        name, tour, window = _read(path, len(train))
        return CameraOrder(name, train, Schedule(len(train), config.batch_size, config.seed, tour, window))
    order = choose_order(config, train, views, table, budgets, settings)
    tour = order.schedule.tour
    kept = {"order": order.name, "window": order.schedule.window, "tour": None if tour is None else tour.tolist()}
    write_json(path, kept)
    return order


def choose_order(
    config: TrainConfig,
    train: tuple[int, ...],
    views: Sequence[View],
    table: np.ndarray,
    budgets: Budgets,
    settings: RenderSettings,
) -> CameraOrder:
    """The order that the settings name; "auto" shuffles in core and spares the links out of core."""
    name: str = config.order
    tour: np.ndarray | None = None
    window = 1
    chosen = [views[i] for i in train]
    if name == "auto" and budgets.in_core:
        name = "shuffle"
    elif name in ("auto", "cache"):
        offsets, ids = view_sets(table, chosen, settings)
        if name == "auto":
            name = _sparing(len(ids) / max(1, len(chosen)), len(table), budgets.arena_slots)
        if name == "cache":
            tour = cache_tour(offsets, ids, len(table), budgets.arena_slots)
            window = window_for(offsets, ids, tour, budgets.arena_slots)
    if name == "trajectory":
        tour = locality_tour(chosen)
    return CameraOrder(name, train, Schedule(len(train), config.batch_size, config.seed, tour, window))


def _sparing(needed: float, blocks: int, arena: int) -> str:
    """The order for views that need so many blocks in the mean. Where a view alone overflows the arena, little is left
    of it for the next: planning a tour by misses takes cameras times loads then, for nothing."""
    if needed <= arena:
        return "cache"
    return "shuffle" if needed > blocks / 2 else "trajectory"


def _read(path: Path, cameras: int) -> tuple[str, np.ndarray | None, int]:
    try:
        kept = json.loads(path.read_text())
        tour = None if kept["tour"] is None else np.array(kept["tour"], np.int32)
        if tour is not None and not np.array_equal(np.sort(tour), np.arange(cameras)):
            raise ValueError(f"its tour is not one through the {cameras} training images")
        return str(kept["order"]), tour, int(kept["window"])
    except (ValueError, KeyError, TypeError) as error:
        raise SceneError(
            f"{path}: the camera order of the run cannot be used ({error}); resume with the scene it was begun with"
        ) from error


def window_for(offsets: np.ndarray, ids: np.ndarray, tour: np.ndarray, capacity: int) -> int:
    """The largest window in which cameras can be shuffled at next to no cost: their union fits half the arena."""
    best = 1
    for window in WINDOWS:
        firsts = range(0, len(tour), max(window, len(tour) // 32))
        unions = [
            len(np.unique(np.concatenate([ids[offsets[v] : offsets[v + 1]] for v in tour[f : f + window]])))
            for f in firsts
        ]
        if window > 1 and np.mean(unions) > capacity / 2:
            break
        best = window
    return best
