"""Helpers for tests that train: runs with small settings, and what a store holds afterwards."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tidegs.config import TrainConfig
from tidegs.gaussians.layout import RECORD_PLANES
from tidegs.residency.settlement import COLUMNS
from tidegs.store.block_store import BlockStore
from tidegs.store.memory import aligned_slots
from tidegs.train.run import RunOutcome, RunRequest, run_training


def settings(**changes) -> TrainConfig:
    """Settings for a short run: no evaluation or export on the way, SH degrees raised early."""
    base = {"max_steps": 50, "eval_steps": [], "save_steps": [], "ply_steps": [], "sh_degree_interval": 10}
    return TrainConfig(**{**base, "strategy": "none", "block_capacity": 64, "snapshot_minutes": 0, **changes})


def train(scene: Path, out: Path, config: TrainConfig, resume: bool = False, profile: bool = False) -> RunOutcome:
    """A quiet run without evaluation."""
    request = RunRequest(scene, out, None, config, resume, evaluate=False, quiet=True, profile=profile)
    return run_training(request)


def contents(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """All records of a store, uint8 [blocks, record_nbytes] with the padding of planes zeroed, and what the
    table says of them beside their places."""
    with BlockStore.open(path, readonly=True) as store:
        table = store.table.copy()
        slots = aligned_slots(len(table), store.layout.slot_nbytes)
        used = [int(i) for i in np.flatnonzero(table["count"] > 0)]
        store.read(used, [slots[i] for i in used])
        records = np.stack([_rows(store, slots[i], int(table["count"][i])) for i in used])
        return records, table[list(COLUMNS)]


def _rows(store: BlockStore, slot: np.ndarray, count: int) -> np.ndarray:
    """Planes of a record with what lies behind the rows in use zeroed; float32 bits as uint32."""
    planes = []
    for plane in RECORD_PLANES:
        values = store.layout.view(slot, plane).copy()
        values[:, count:] = 0
        planes.append(values)
    return np.concatenate(planes).view(np.uint32)


def assert_same(one: Path, other: Path) -> None:
    """Both stores hold the same blocks to the last bit."""
    (a, ta), (b, tb) = contents(one), contents(other)
    assert a.shape == b.shape
    different = np.flatnonzero((a != b).any(axis=(1, 2)))
    assert len(different) == 0, f"{len(different)} of {len(a)} blocks differ, first {different[:5]}"
    assert (ta == tb).all()


def assert_changed(one: Path, other: Path) -> None:
    """Guards against tests that compare untouched stores."""
    a, b = contents(one)[0], contents(other)[0]
    assert a.shape != b.shape or (a != b).any()
