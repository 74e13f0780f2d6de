"""Bulk ingest: points or Gaussians of any number become blocks of spatial neighbours, with bounded memory.

Invariant: the blocks and their contents depend on the set of rows alone: not on their order or chunks, the threads,
or the memory budget. The folder can be opened as a store only once everything is in it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from tidegs.errors import FormatError
from tidegs.gaussians.layout import BASE_FIELDS, RecordLayout
from tidegs.store.block_store import BlockStore
from tidegs.store.emit import POINT_DTYPE, BlockWriter, GaussianWriter, SeedWriter, gaussian_dtype
from tidegs.store.files import Files
from tidegs.store.grid import Buckets, Grid, partition
from tidegs.store.halo import SPOOLS, initial_scales, scales_of
from tidegs.store.rows import Rows, spatial_order
from tidegs.store.seeds import INIT_OPACITY_LOGIT
from tidegs.store.sizes import SizeHistogram
from tidegs.store.spatial import Sample, hilbert
from tidegs.store.spool import Spool, put_grouped

_SORT_NBYTES = 160  # a row's key, address, place in the order, tree and distances
Values = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class IngestOptions:
    """How blocks are made. `fill`: rows of a full block as a share of its capacity (room for densification).
    `memory_budget`: bytes that the ingest may hold, approximately. `init_scale` times the root mean square distance to
    the three nearest points is the first scale of a point, `init_opacity` its first opacity. `spacing`: that distance,
    where it is known and the same for all points; then no neighbours are looked for."""

    memory_budget: int = 1 << 30
    fill: float = 1.0
    init_scale: float = 1.0
    init_opacity: float = 0.1
    spacing: float | None = None
    progress: bool = False


def ingest_points(
    path: str | os.PathLike,
    chunks: Iterable[tuple[np.ndarray, np.ndarray]],
    layout: RecordLayout,
    options: IngestOptions | None = None,
    meta: bytes = b"",
    files: Files | None = None,
) -> BlockStore:
    """A new store of seed points from chunks of (xyz float32 [n, 3], rgb uint8 [n, 3]); its first snapshot holds
    `meta`. FormatError where there are no points or one is not finite."""
    options = options or IngestOptions()

    def rows() -> Iterable[np.ndarray]:
        for xyz, rgb in chunks:
            out = np.empty(len(xyz), POINT_DTYPE)
            out["xyz"], out["rgb"] = xyz, rgb
            yield out

    def xyz(rows: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(rows["xyz"])

    logit = math.log(options.init_opacity / (1 - options.init_opacity))
    with _Work(path, layout, options, logit, POINT_DTYPE, files) as work:
        scale = np.float32(math.log(options.spacing * options.init_scale)) if options.spacing else None
        work.gather(rows(), xyz, xyz, None if scale is None else lambda rows: work.sizes.add(np.full(len(rows), scale)))
        buckets = work.distribute(lambda rows: rows)
        if scale is not None:
            work.emit(
                buckets,
                SeedWriter(work.store, work.sizes, options.fill),
                lambda b: np.full(work.rows.count(b), scale),
            )
            return work.finish(meta)
        spool = {n: work.spool(n, d) for n, d in SPOOLS.items()}
        initial_scales(work.rows, buckets, options.init_scale, work.sizes, spool)
        work.emit(buckets, SeedWriter(work.store, work.sizes, options.fill), lambda b: scales_of(b, spool))
        return work.finish(meta)


def ingest_gaussians(
    path: str | os.PathLike,
    chunks: Iterable[np.ndarray],
    layout: RecordLayout,
    options: IngestOptions | None = None,
    meta: bytes = b"",
    files: Files | None = None,
) -> BlockStore:
    """A new store from chunks of Gaussians float32 [n, layout.param_components]: means, quats, scales, opacities, sh0,
    then shN (component 3k + channel), values as in records. Errors as `ingest_points`."""
    options = options or IngestOptions()
    dtype = gaussian_dtype(layout)
    means, scales = BASE_FIELDS["means"], BASE_FIELDS["scales"]

    def values(rows: np.ndarray) -> np.ndarray:
        return rows.view(np.float32).reshape(len(rows), layout.param_components)

    def rows() -> Iterable[np.ndarray]:
        for chunk in chunks:
            if chunk.ndim != 2 or chunk.shape[1] != layout.param_components:
                raise ValueError(f"Gaussians of shape {chunk.shape}, expected [n, {layout.param_components}]")
            yield np.array(chunk, np.float32, order="C").view(dtype)[:, 0]

    def xyz(rows: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(values(rows)[:, means])

    def log_extent(rows: np.ndarray) -> np.ndarray:
        x, y, z = values(rows)[:, scales].T
        return np.maximum(np.maximum(x, y), z)

    with _Work(path, layout, options, INIT_OPACITY_LOGIT, dtype, files) as work:
        work.gather(rows(), xyz, values, lambda rows: work.sizes.add(log_extent(rows)))
        buckets = work.distribute(values)
        writer = GaussianWriter(work.store, work.sizes, options.fill)
        work.emit(buckets, writer, lambda b: np.concatenate([log_extent(r) for r in work.rows.chunks(b)]))
        return work.finish(meta)


class _Work:
    """The phases of an ingest, and its work files in the store's folder. Leaves nothing behind where it fails."""

    def __init__(
        self,
        path: str | os.PathLike,
        layout: RecordLayout,
        options: IngestOptions,
        seed_opacity: float,
        dtype: np.dtype,
        files: Files | None,
    ) -> None:
        self._files = files or Files()
        self._options = options
        self._dtype = dtype
        self._spools: list[Spool] = []
        self._writer: BlockWriter | None = None
        self._finished = False
        self.sizes = SizeHistogram()
        self._sample = Sample()
        self.store = BlockStore.create(path, layout, seed_opacity, files=self._files)
        self.rows = self.spool("rows", dtype)
        self._bar = tqdm(unit=" rows", unit_scale=True, desc="reading", disable=not options.progress)

    def __enter__(self) -> _Work:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
        if self._writer and not self._finished:
            self._writer.abandon()
        try:
            for spool in self._spools:
                spool.close()
        finally:
            if not self._finished:
                self.store.abandon()

    def spool(self, name: str, dtype: np.dtype) -> Spool:
        """Work rows, an eighth of the budget of them in memory."""
        spool = Spool(self.store.path / f"ingest.{name}", dtype, self._options.memory_budget // 8, self._files)
        self._spools.append(spool)
        return spool

    def gather(
        self,
        chunks: Iterable[np.ndarray],
        xyz: Values,
        numbers: Values,
        see: Callable[[np.ndarray], None] | None = None,
    ) -> None:
        """Takes all input; `numbers` gives what must be finite."""
        for rows in chunks:
            self._check_finite(numbers(rows))
            self._sample.add(xyz(rows))
            if see:
                see(rows)
            self.rows.put(0, rows)
            self._bar.update(len(rows))
        if self.rows.rows == 0:
            raise FormatError("the input holds no points: a store needs at least one")

    def _check_finite(self, numbers: np.ndarray) -> None:
        with np.errstate(all="ignore"):
            if np.isfinite(numbers.sum()):  # quick, and false for all that is not finite
                return
        bad = np.flatnonzero(~np.isfinite(numbers).all(axis=1))
        if len(bad):
            raise FormatError(f"row {self.rows.rows + bad[0]} of the input is not finite: remove such rows from it")

    def distribute(self, rows_xyz: Values) -> Buckets:
        """Splits the rows by space into buckets that fit in memory each; `rows_xyz`: rows that begin with x, y, z."""
        cells = Grid.of(self._sample.box(), self.rows.rows)
        most = max(1, self._options.memory_budget // 2 // (self._dtype.itemsize + _SORT_NBYTES))
        if self.rows.rows <= most:
            return Buckets(cells, np.zeros(cells.cells, np.int32), 1)
        counts = np.zeros(cells.cells, np.int64)
        for rows in self._phase("counting", self.rows.chunks(0)):
            counts += np.bincount(cells.cell_of(rows_xyz(rows)), minlength=cells.cells)
        buckets = partition(counts, cells, most)
        parts = self.spool("parts", self._dtype)
        for rows in self._phase("distributing", self.rows.take(0)):
            put_grouped(parts, buckets.of(rows_xyz(rows)), buckets.count, rows)
        self.rows.close()
        self.rows = parts
        return buckets

    def emit(self, buckets: Buckets, writer: BlockWriter, log_extent: Callable[[int], np.ndarray]) -> None:
        """Writes all blocks, each bucket in the order of the Hilbert curve; `log_extent` of the rows of a bucket."""
        self._writer = writer
        for b in self._phase("writing", range(buckets.count)):
            rows = Rows.of(self.rows.chunks(b), self._dtype)
            if len(rows) == 0:
                continue
            keys = np.concatenate([hilbert(part, buckets.grid.box) for part in rows.held])
            order = spatial_order(keys, rows)
            writer.add(rows[order], log_extent(b)[order])
            self.rows.drop(b)
        writer.close()

    def finish(self, meta: bytes) -> BlockStore:
        self.store.records.trim()
        self.store.commit(meta)
        self._finished = True
        return self.store

    def _phase(self, name: str, steps: Iterable) -> Iterable:
        self._bar.close()
        self._bar = tqdm(steps, desc=name, disable=not self._options.progress, leave=False)
        return self._bar
