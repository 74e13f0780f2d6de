"""Rows in spatial order become blocks: classes of size apart, blocks evenly filled, bounds put into the table.

Invariant: which rows share a block depends on their order and sizes alone, not on how they are handed over.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from tidegs.gaussians.layout import RecordLayout
from tidegs.store.block_store import BlockStore
from tidegs.store.memory import address, aligned_slots
from tidegs.store.rows import Rows
from tidegs.store.seeds import pack_seeds
from tidegs.store.sizes import CLASSES, SizeHistogram

POINT_DTYPE = np.dtype([("xyz", np.float32, 3), ("rgb", np.uint8, 3)])
_BATCH_NBYTES = 8 << 20
_JOIN_SHARE = 8  # a class that would fill less than an eighth of a block joins the next smaller one


def gaussian_dtype(layout: RecordLayout) -> np.dtype:
    """A Gaussian's parameters as one opaque item."""
    return np.dtype((np.void, 4 * layout.param_components))


class BlockWriter:
    """Cuts rows into blocks and writes them behind the caller's back, a batch at a time. Subclasses say how a block of
    rows is stored."""

    def __init__(self, store: BlockStore, sizes: SizeHistogram, fill: float, dtype: np.dtype, slot_nbytes: int) -> None:
        capacity = store.layout.capacity
        self.store = store
        self._sizes = sizes
        counts, self._class = sizes.class_counts(capacity // _JOIN_SHARE)
        blocks = -(-counts // max(1, round(capacity * fill)))
        self._ids = np.split(store.allocate(int(blocks.sum())), np.cumsum(blocks)[:-1])
        self._ends = [counts[k] * np.arange(1, blocks[k] + 1) // max(1, blocks[k]) for k in range(CLASSES)]
        self._next = [0] * CLASSES  # blocks of the class that are done
        self._done = [0] * CLASSES  # rows in them
        self._pending: list[tuple[Rows, np.ndarray]] = [(Rows.of((), dtype), np.empty(0, np.float32))] * CLASSES
        batch = max(1, _BATCH_NBYTES // slot_nbytes)
        self._slots = [aligned_slots(batch, slot_nbytes) for _ in range(2)]
        self._batch: list[int] = []
        self._thread = ThreadPoolExecutor(1)
        self._writing: Future | None = None

    def add(self, rows: Rows, log_extent: np.ndarray) -> None:
        """Takes the next rows in spatial order and the log of each one's greatest scale; keeps no reference."""
        classes = self._class[self._sizes.classify(log_extent)]
        for k in range(CLASSES):
            mine = np.flatnonzero(classes == k)
            if len(mine):
                self._cut(k, rows[mine], log_extent[mine])

    def close(self) -> None:
        """Writes what is left; every row given to `add` is then in the store."""
        self._flush()
        if self._writing:
            self._writing.result()
        self._thread.shutdown()

    def abandon(self) -> None:
        """Ends the thread without writing more."""
        self._thread.shutdown()

    def _cut(self, k: int, rows: Rows, log_extent: np.ndarray) -> None:
        """Makes the blocks of a class that are complete, and keeps the rest."""
        rows = self._pending[k][0] + rows
        log_extent = np.concatenate([self._pending[k][1], log_extent])
        ends, at = self._ends[k], 0
        while self._next[k] < len(ends) and len(rows) - at >= (need := int(ends[self._next[k]]) - self._done[k]):
            part = slice(at, at + need)
            self._block(int(self._ids[k][self._next[k]]), rows[part], log_extent[part])
            at += need
            self._next[k] += 1
            self._done[k] += need
        self._pending[k] = Rows.of([rows[at:].copy()], rows.dtype), log_extent[at:]

    def _block(self, block: int, rows: Rows, log_extent: np.ndarray) -> None:
        row = self.store.table[block : block + 1]
        xyz = self.fill(self._slots[0][len(self._batch)], rows, log_extent, row)
        row["lo"], row["hi"] = xyz.min(axis=1), xyz.max(axis=1)
        row["extent"] = np.exp(np.float64(log_extent.max()))
        row["count"] = len(rows)
        self._batch.append(block)
        if len(self._batch) == len(self._slots[0]):
            self._flush()

    def _flush(self) -> None:
        if self._writing:
            self._writing.result()
        if self._batch:
            self._writing = self._thread.submit(self.write, self._batch, list(self._slots[0][: len(self._batch)]))
        self._batch = []
        self._slots.reverse()

    def fill(self, slot: np.ndarray, rows: Rows, log_extent: np.ndarray, table_row: np.ndarray) -> np.ndarray:
        """Puts rows into memory as they are stored, sets opacity_mass of the table row; returns xyz [3, n]."""
        raise NotImplementedError

    def write(self, blocks: list[int], slots: list[np.ndarray]) -> None:
        """Writes filled slots."""
        raise NotImplementedError


class SeedWriter(BlockWriter):
    """Rows are POINT_DTYPE; stored as seeds."""

    def __init__(self, store: BlockStore, sizes: SizeHistogram, fill: float) -> None:
        super().__init__(store, sizes, fill, POINT_DTYPE, store.seed_nbytes)
        self._opacity = 1 / (1 + np.exp(-store.seed_opacity))

    def fill(self, slot: np.ndarray, rows: Rows, log_extent: np.ndarray, table_row: np.ndarray) -> np.ndarray:
        points = rows.copy()
        pack_seeds(self.store.layout, points["xyz"], log_extent, points["rgb"], slot)
        table_row["opacity_mass"] = len(rows) * self._opacity
        return slot[: 12 * self.store.layout.capacity].view(np.float32).reshape(3, -1)[:, : len(rows)]

    def write(self, blocks: list[int], slots: list[np.ndarray]) -> None:
        self.store.write_seeds(blocks, slots)


class GaussianWriter(BlockWriter):
    """Rows are gaussian_dtype; stored as parameters."""

    def __init__(self, store: BlockStore, sizes: SizeHistogram, fill: float) -> None:
        super().__init__(store, sizes, fill, gaussian_dtype(store.layout), store.layout.record_nbytes)

    def fill(self, slot: np.ndarray, rows: Rows, log_extent: np.ndarray, table_row: np.ndarray) -> np.ndarray:
        layout, n = self.store.layout, len(rows)
        planes = [layout.view(slot, plane) for plane in ("base", "rest")]
        steps = [address(p) + np.arange(len(p), dtype=np.uint64) * np.uint64(p.strides[0]) for p in planes]
        rows.fill_columns(np.concatenate(steps))
        for values in planes:
            values[:, n:] = 0
        opacity = layout.field(slot, "opacities")[0, :n].astype(np.float64)
        table_row["opacity_mass"] = (1 / (1 + np.exp(-opacity))).sum()
        return layout.field(slot, "means")[:, :n]

    def write(self, blocks: list[int], slots: list[np.ndarray]) -> None:
        self.store.write(blocks, slots)
