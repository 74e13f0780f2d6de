"""Helpers of the store's tests: small layouts, random records, an in-memory model."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tidegs.gaussians.layout import RECORD_PLANES, SCRATCH_PLANES, RecordLayout
from tidegs.store.block_store import BlockStore
from tidegs.store.files import Files
from tidegs.store.format import seed_nbytes
from tidegs.store.grid import Grid
from tidegs.store.memory import aligned_slots
from tidegs.store.seeds import seed_planes

SMALL = RecordLayout(64, sh_degree=1, stat_components=2)
SMALL_SCRATCH = RecordLayout(64, sh_degree=1, stat_components=2, with_grads=True)


def random_slot(layout: RecordLayout, planes: tuple[str, ...], rng: np.random.Generator) -> np.ndarray:
    """An aligned slot with random bits in the named planes and zeros elsewhere."""
    slot = aligned_slots(1, layout.slot_nbytes)[0]
    for plane in planes:
        view = layout.view(slot, plane)
        view[:] = rng.normal(size=view.shape)
    return slot


def random_seeds(layout: RecordLayout, count: int, rng: np.random.Generator) -> np.ndarray:
    """Packed seeds of `count` points."""
    seeds = aligned_slots(1, seed_nbytes(layout))[0]
    floats, colors = seed_planes(layout, seeds)
    floats[:3, :count] = rng.normal(size=(count, 3)).T
    floats[3, :count] = rng.normal(size=count)
    colors[:, :count] = rng.integers(0, 256, (count, 3)).T
    return seeds


def coordinates(grid: Grid, xyz: np.ndarray) -> np.ndarray:
    """Cell coordinates int64 [n, 3] of float64 positions: what csrc/store/spatial.cpp does, in numpy."""
    u = (xyz - grid.box.center) / grid.box.half
    far = np.abs(u) > 1
    u[far] = np.copysign(2 - 1 / np.abs(u[far]), u[far])
    return np.clip((u + 2) * (0.25 * (1 << grid.levels)), 0, (1 << grid.levels) - 1).astype(np.int64)


def read_slots(store: BlockStore, blocks: list[int] | None = None) -> np.ndarray:
    """The record bytes of blocks (default: all that are not free), read into slots full of rubbish."""
    blocks = np.flatnonzero(store.table["count"]).tolist() if blocks is None else blocks
    slots = aligned_slots(len(blocks), store.layout.slot_nbytes)
    slots[:] = 0xA5
    store.read(blocks, list(slots))
    return slots[:, : store.layout.record_nbytes]


def contents(store: BlockStore) -> dict[int, bytes]:
    """Record bytes of each block in use."""
    blocks = np.flatnonzero(store.table["count"]).tolist()
    return {b: s.tobytes() for b, s in zip(blocks, read_slots(store, blocks), strict=True)}


def filled_store(path: Path, files: Files | None = None, layout: RecordLayout = SMALL, seed: int = 0) -> BlockStore:
    """A committed store of nine blocks of every kind of record; open for writing."""
    rng = np.random.default_rng(seed)
    store = BlockStore.create(path, layout, io_threads=1, files=files)
    ids = store.allocate(9)
    store.table["count"][:] = 50
    store.write_seeds(ids[:3], [random_seeds(layout, 50, rng) for _ in range(3)])
    planes = [("base",), ("base", "m_base", "v_base"), ("base", "rest"), ("base", "rest", "stats"), RECORD_PLANES, ()]
    store.write(ids[3:], [random_slot(layout, p, rng) for p in planes])
    store.commit(b"filled")
    return store


def plane_subsets(planes: tuple[str, ...] = RECORD_PLANES + SCRATCH_PLANES) -> list[tuple[str, ...]]:
    """Every combination of planes."""
    return [tuple(p for i, p in enumerate(planes) if bits >> i & 1) for bits in range(1 << len(planes))]
