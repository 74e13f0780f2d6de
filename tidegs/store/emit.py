"""Rows in spatial order become blocks: classes of size apart, blocks evenly filled, bounds put into the table.

Invariant: which rows share a block depends on their order and sizes alone, not on how they are handed over; blocks are
written in the order in which they were cut, whatever the number of threads that fill them.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from queue import SimpleQueue

import numpy as np

from tidegs.gaussians.layout import BASE_COMPONENTS, RecordLayout
from tidegs.store.block_store import BlockStore
from tidegs.store.memory import aligned_slots
from tidegs.store.rows import Rows
from tidegs.store.seeds import seed_planes
from tidegs.store.sizes import CLASSES, SizeHistogram
from tidegs.store.spatial import threads

POINT_DTYPE = np.dtype([("xyz", np.float32, 3), ("rgb", np.uint8, 3)])
_RGB_AT = 12  # byte of a point's colour
_BATCH_NBYTES = 8 << 20
_BATCHES = 4  # being filled, waiting or being written
_JOIN_SHARE = 8  # a class that would fill less than an eighth of a block joins the next smaller one


def gaussian_dtype(layout: RecordLayout) -> np.dtype:
    """A Gaussian's parameters as one opaque item."""
    return np.dtype((np.void, 4 * layout.param_components))


Block = tuple[int, Rows, np.ndarray]  # its id, rows and log extents


class BlockWriter:
    """Cuts rows into blocks, which threads fill and one thread writes, a batch at a time. Subclasses say how a block of
    rows is stored."""

    def __init__(self, store: BlockStore, sizes: SizeHistogram, fill: float, dtype: np.dtype, slot_nbytes: int) -> None:
        capacity = store.layout.capacity
        self.store = store
        self._sizes = sizes
        counts, self._class = sizes.class_counts(capacity // _JOIN_SHARE)
        blocks = -(-counts // max(1, round(capacity * fill)))
        ids = np.arange(len(store.table)) if len(store.table) else store.allocate(int(blocks.sum()))
        self._ids = np.split(ids, np.cumsum(blocks)[:-1])
        self._ends = [counts[k] * np.arange(1, blocks[k] + 1) // max(1, blocks[k]) for k in range(CLASSES)]
        self._next = [0] * CLASSES  # blocks of the class that are done
        self._done = [0] * CLASSES  # rows in them
        self._pending: list[tuple[Rows, np.ndarray]] = [(Rows.of((), dtype), np.empty(0, np.float32))] * CLASSES
        self._most = min(max(1, _BATCH_NBYTES // slot_nbytes), max(1, len(store.table)))  # blocks of a batch
        self._free: SimpleQueue[np.ndarray] = SimpleQueue()  # slots of batches
        for _ in range(_BATCHES):
            self._free.put(aligned_slots(self._most, slot_nbytes))
        self._batch: list[Block] = []
        self._fillers, self._writer = ThreadPoolExecutor(threads()), ThreadPoolExecutor(1)
        self._filling: list[Future] = []  # of the current call of `add`
        self._writing: deque[Future] = deque()

    def add(self, rows: Rows, log_extent: np.ndarray) -> None:
        """Takes the next rows in spatial order and the log of each one's greatest scale; keeps no reference."""
        classes = self._class[self._sizes.classify(log_extent)]
        for k in range(CLASSES):
            mine = np.flatnonzero(classes == k)
            if len(mine) == len(classes):
                self._cut(k, rows, log_extent)
            elif len(mine):
                self._cut(k, rows[mine], log_extent[mine])
        self._flush()
        wait(self._filling)
        self._filling.clear()

    def progress(self) -> dict[str, np.ndarray]:
        """For `go_on`, once all blocks that are complete are written."""
        self._drain()
        state = {"blocks": np.array(self._next), "rows": np.array(self._done)}
        for k, (rows, extents) in enumerate(self._pending):
            state |= {f"pending{k}": rows.copy().view(np.uint8), f"extents{k}": extents}
        return state

    def go_on(self, state: dict[str, np.ndarray]) -> None:
        """Goes on where a writer to the same store said that it was."""
        self._next, self._done = state["blocks"].tolist(), state["rows"].tolist()
        for k, (rows, _) in enumerate(self._pending):
            held = state[f"pending{k}"].view(rows.dtype)
            self._pending[k] = Rows.of([held], rows.dtype), state[f"extents{k}"]

    def close(self) -> None:
        """Writes what is left; every row given to `add` is then in the store."""
        self._drain()
        self._shutdown()

    def abandon(self) -> None:
        """Ends the threads without writing more than was begun."""
        self._shutdown()

    def _drain(self) -> None:
        while self._writing:
            self._writing.popleft().result()

    def _shutdown(self) -> None:
        self._writer.shutdown(cancel_futures=True)
        self._fillers.shutdown()

    def _cut(self, k: int, rows: Rows, log_extent: np.ndarray) -> None:
        """Makes the blocks of a class that are complete, and keeps the rest."""
        if len(self._pending[k][0]):
            rows = self._pending[k][0] + rows
            log_extent = np.concatenate([self._pending[k][1], log_extent])
        ends, at = self._ends[k], 0
        while self._next[k] < len(ends) and len(rows) - at >= (need := int(ends[self._next[k]]) - self._done[k]):
            part = slice(at, at + need)
            self._batch.append((int(self._ids[k][self._next[k]]), rows[part], log_extent[part]))
            if len(self._batch) == self._most:
                self._flush()
            at += need
            self._next[k] += 1
            self._done[k] += need
        self._pending[k] = Rows.of([rows[at:].copy()], rows.dtype), log_extent[at:].copy()

    def _flush(self) -> None:
        """Hands the batch on; waits where too many are under way."""
        if not self._batch:
            return
        slots, batch, self._batch = self._free.get(), self._batch, []
        filled = self._fillers.submit(self._fill, batch, slots)
        self._filling.append(filled)
        self._writing.append(self._writer.submit(self._write, filled, [block for block, _, _ in batch], slots))
        while self._writing and self._writing[0].done():
            self._writing.popleft().result()

    def _fill(self, batch: list[Block], slots: np.ndarray) -> None:
        for (block, rows, log_extent), slot in zip(batch, slots, strict=False):
            row = self.store.table[block : block + 1]
            xyz = self.fill(slot, rows, log_extent, row)
            row["lo"], row["hi"] = xyz.min(axis=1), xyz.max(axis=1)
            row["extent"] = np.exp(np.float64(log_extent.max()))
            row["count"] = len(rows)

    def _write(self, filled: Future, blocks: list[int], slots: np.ndarray) -> None:
        try:
            filled.result()
            self.write(blocks, list(slots[: len(blocks)]))
        finally:
            self._free.put(slots)

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
        n = len(rows)
        floats, colors = seed_planes(self.store.layout, slot)
        rows.fill_columns(floats[:3])
        rows.fill_columns(colors, at=_RGB_AT)
        floats[3, :n] = log_extent
        floats[:, n:], colors[:, n:] = 0, 0
        table_row["opacity_mass"] = n * self._opacity
        return floats[:3, :n]

    def write(self, blocks: list[int], slots: list[np.ndarray]) -> None:
        self.store.write_seeds(blocks, slots)


class GaussianWriter(BlockWriter):
    """Rows are gaussian_dtype; stored as parameters."""

    def __init__(self, store: BlockStore, sizes: SizeHistogram, fill: float) -> None:
        layout = store.layout
        nbytes = sum(layout.plane_nbytes(plane) for plane in ("base", "rest"))  # the first planes of a slot
        super().__init__(store, sizes, fill, gaussian_dtype(layout), nbytes)

    def fill(self, slot: np.ndarray, rows: Rows, log_extent: np.ndarray, table_row: np.ndarray) -> np.ndarray:
        layout, n = self.store.layout, len(rows)
        for plane, first in (("base", 0), ("rest", BASE_COMPONENTS)):
            values = layout.view(slot, plane)
            rows.fill_columns(values, at=4 * first)
            values[:, n:] = 0
        opacity = layout.field(slot, "opacities")[0, :n].astype(np.float64)
        table_row["opacity_mass"] = (1 / (1 + np.exp(-opacity))).sum()
        return layout.field(slot, "means")[:, :n]

    def write(self, blocks: list[int], slots: list[np.ndarray]) -> None:
        self.store.write_params(blocks, slots)
