"""Rows in spatial order become blocks: classes of size apart, blocks evenly filled, bounds put into the table.

Invariant: which rows share a block depends on their order and sizes alone, not on how they are handed over.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from tidegs.gaussians.layout import BASE_FIELDS
from tidegs.store.block_store import BlockStore
from tidegs.store.memory import aligned_slots
from tidegs.store.seeds import pack_seeds
from tidegs.store.sizes import CLASSES, SizeHistogram

_BATCH_NBYTES = 8 << 20
_JOIN_SHARE = 8  # a class that would fill less than an eighth of a block joins the next smaller one


class BlockWriter:
    """Cuts rows into blocks and writes them behind the caller's back, a batch at a time. Subclasses say how a block of
    rows is stored."""

    def __init__(self, store: BlockStore, sizes: SizeHistogram, fill: float, slot_nbytes: int) -> None:
        capacity = store.layout.capacity
        self.store = store
        self._sizes = sizes
        counts, self._class = sizes.class_counts(capacity // _JOIN_SHARE)
        blocks = -(-counts // max(1, round(capacity * fill)))
        self._ids = np.split(store.allocate(int(blocks.sum())), np.cumsum(blocks)[:-1])
        self._ends = [counts[k] * np.arange(1, blocks[k] + 1) // max(1, blocks[k]) for k in range(CLASSES)]
        self._next = [0] * CLASSES  # blocks of the class that are done
        self._done = [0] * CLASSES  # rows in them
        self._pending: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in range(CLASSES)]
        self._pending_rows = [0] * CLASSES
        batch = max(1, _BATCH_NBYTES // slot_nbytes)
        self._slots = [aligned_slots(batch, slot_nbytes) for _ in range(2)]
        self._batch: list[int] = []
        self._thread = ThreadPoolExecutor(1)
        self._writing: Future | None = None

    def add(self, rows: np.ndarray, log_extent: np.ndarray) -> None:
        """Takes the next rows in spatial order and the log of each one's greatest scale."""
        classes = self._class[self._sizes.classify(log_extent)]
        for k in np.unique(classes):
            mine = slice(None) if classes[0] == k and np.all(classes == k) else np.flatnonzero(classes == k)
            self._pending[k].append((rows[mine], log_extent[mine]))
            self._pending_rows[k] += len(log_extent[mine])
            self._cut(int(k))

    def close(self) -> None:
        """Writes what is left; every row given to `add` is then in the store."""
        self._flush()
        if self._writing:
            self._writing.result()
        self._thread.shutdown()

    def abandon(self) -> None:
        """Ends the thread without writing more."""
        self._thread.shutdown()

    def _cut(self, k: int) -> None:
        ends = self._ends[k]
        need = ends[self._next[k]] - self._done[k]
        if self._pending_rows[k] < need:
            return
        rows = np.concatenate([r for r, _ in self._pending[k]])
        extent = np.concatenate([e for _, e in self._pending[k]])
        at = 0
        while self._next[k] < len(ends) and len(extent) - at >= (need := ends[self._next[k]] - self._done[k]):
            self._block(int(self._ids[k][self._next[k]]), rows[at : at + need], extent[at : at + need])
            at += need
            self._next[k] += 1
            self._done[k] += need
        self._pending[k] = [(rows[at:], extent[at:])] if at < len(extent) else []
        self._pending_rows[k] = len(extent) - at

    def _block(self, block: int, rows: np.ndarray, log_extent: np.ndarray) -> None:
        row = self.store.table[block : block + 1]
        xyz = self.fill(self._slots[0][len(self._batch)], rows, log_extent, row)
        row["lo"], row["hi"] = xyz.min(axis=0), xyz.max(axis=0)
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

    def fill(self, slot: np.ndarray, rows: np.ndarray, log_extent: np.ndarray, table_row: np.ndarray) -> np.ndarray:
        """Puts rows into memory as they are stored, sets opacity_mass of the table row; returns xyz [n, 3]."""
        raise NotImplementedError

    def write(self, blocks: list[int], slots: list[np.ndarray]) -> None:
        """Writes filled slots."""
        raise NotImplementedError


class SeedWriter(BlockWriter):
    """Rows are POINT_DTYPE; stored as seeds."""

    def __init__(self, store: BlockStore, sizes: SizeHistogram, fill: float) -> None:
        super().__init__(store, sizes, fill, store.seed_nbytes)
        self._opacity = 1 / (1 + np.exp(-store.seed_opacity))

    def fill(self, slot: np.ndarray, rows: np.ndarray, log_extent: np.ndarray, table_row: np.ndarray) -> np.ndarray:
        pack_seeds(self.store.layout, rows["xyz"], log_extent, rows["rgb"], slot)
        table_row["opacity_mass"] = len(rows) * self._opacity
        return rows["xyz"]

    def write(self, blocks: list[int], slots: list[np.ndarray]) -> None:
        self.store.write_seeds(blocks, slots)


class GaussianWriter(BlockWriter):
    """Rows are float32 [n, param_components]; stored as parameters."""

    def __init__(self, store: BlockStore, sizes: SizeHistogram, fill: float) -> None:
        super().__init__(store, sizes, fill, store.layout.record_nbytes)

    def fill(self, slot: np.ndarray, rows: np.ndarray, log_extent: np.ndarray, table_row: np.ndarray) -> np.ndarray:
        layout, n, at = self.store.layout, len(rows), 0
        for plane in ("base", "rest"):
            values = layout.view(slot, plane)
            values[:, :n] = rows[:, at : at + len(values)].T
            values[:, n:] = 0
            at += len(values)
        opacity = layout.field(slot, "opacities")[0, :n].astype(np.float64)
        table_row["opacity_mass"] = (1 / (1 + np.exp(-opacity))).sum()
        return rows[:, BASE_FIELDS["means"]]

    def write(self, blocks: list[int], slots: list[np.ndarray]) -> None:
        self.store.write(blocks, slots)
