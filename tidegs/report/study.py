"""What the block store and the cameras add to a report: working sets, Belady's bound, the map from above.

Invariant: a part whose input is missing is left out with one sentence that says why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tidegs.device.base import RenderSettings, View
from tidegs.errors import TidegsError
from tidegs.report.result import RunData
from tidegs.report.space import Sets, block_map, loads_curve, set_sizes, view_sets
from tidegs.residency.schedule import Schedule
from tidegs.store.block_store import BlockStore


@dataclass(frozen=True)
class Cameras:
    """Views of all cameras of a scene, and its training split as indices into them."""

    views: list[View]
    train: tuple[int, ...]


@dataclass
class Study:
    """Parts of the page; what is None is explained in `missing`."""

    sets: dict[str, Any] | None = None
    loads: dict[str, Any] | None = None
    map: dict[str, Any] | None = None
    missing: list[str] = field(default_factory=list)


def study(run: RunData, cameras: Cameras | str) -> Study:
    """`cameras`: of the scene, or why they cannot be had."""
    out = Study()
    table = _table(run, out)
    if table is None:
        return out
    used = int((table["count"] > 0).sum())
    scale = float(run.run.get("scale", 1.0))
    if isinstance(cameras, str):
        out.missing.append(f"Working sets and Belady's bound need the scene: {cameras}")
        out.map = block_map(table, table["generation"].astype(np.int64), [], scale)
        out.map |= {"meaning": "times that a block was written", "unused_meaning": "never written"}
        return out
    settings = RenderSettings(
        sh_degree=run.config.sh_degree, near_plane=run.config.near_plane, far_plane=run.config.far_plane
    )
    sets = view_sets(table, cameras.views, settings)
    order = visits(run, cameras.train)
    out.sets = set_sizes(sets, order, used, run.last.get("arena_slots"))
    out.map = block_map(table, sets.uses, cameras.views, scale)
    out.map |= {"meaning": "cameras that need a block", "unused_meaning": "needed by none"}
    _bound(run, sets, order, used, out)
    return out


def visits(run: RunData, train: tuple[int, ...]) -> np.ndarray:
    """The cameras of the run's steps in order, as indices into the scene's cameras; empty where the order is not kept.
    `train`: the scene's training split."""
    kept, steps = run.order, int(run.last.get("step", 0))
    if kept is None or not train or not steps:
        return np.empty(0, np.int64)
    tour = None if kept.get("tour") is None else np.array(kept["tour"], np.int32)
    batch = run.config.batch_size
    schedule = Schedule(len(train), batch, run.config.seed, tour, int(kept.get("window", 1)))
    found = islice((c for step in schedule.steps() for c in step.cameras), steps * batch)
    return np.asarray(train, np.int64)[np.fromiter(found, np.int64)]


def add_study(facts: dict[str, Any], found: Study) -> None:
    """Adds to the figures what the study found: "working_set" in blocks, and the links' "bound_a_step", Belady's bound
    in bytes, for blocks of the size that the run moved on average."""
    if found.sets is not None:
        names = ("mean", "greatest", "split_share")
        facts["working_set"] = {name: found.sets[name] for name in names}
    if found.loads is None:
        return
    facts["loads_curve"] = {name: found.loads[name] for name in ("blocks", "loads", "marks")}
    for link, mark in (("upload", "arena"), ("read", "arena and host")):
        one, bound = facts["links"].get(link), found.loads["marks"].get(mark)
        if one and bound and one["bytes_a_block"]:
            one["bound_a_step"] = bound["loads"] * facts["batch_size"] * one["bytes_a_block"]


def _table(run: RunData, out: Study) -> np.ndarray | None:
    path = run.root / run.run.get("store", "store")
    try:
        with BlockStore.open(Path(path), readonly=True) as store:
            return store.table.copy()
    except TidegsError as error:
        out.missing.append(f"The block map, working sets and Belady's bound need the block store: {error}")
        return None


def _bound(run: RunData, sets: Sets, order: np.ndarray, used: int, out: Study) -> None:
    arena, host = run.last.get("arena_slots"), run.last.get("host_slots")
    if not len(order) or order.max() >= len(sets.sizes) or arena is None:
        out.missing.append("Belady's bound needs the run's order of cameras (ckpts/order.json), and a line of its log.")
        return
    marks = {"arena": arena, "arena and host": arena + (host or 0)}
    out.loads = loads_curve(sets, order, used, marks)
