"""Bulk ingest: points or Gaussians of any number become blocks of spatial neighbours, with bounded memory.

Invariant: the blocks and their contents depend on the set of rows alone: not on their order or chunks, the threads,
the memory budget, or whether the ingest was stopped meanwhile. The folder can be opened as a store only once everything
is in it.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from tqdm import tqdm

from tidegs.errors import FormatError
from tidegs.gaussians.layout import BASE_FIELDS, RecordLayout
from tidegs.store import unfinished
from tidegs.store.block_store import Begun, BlockStore
from tidegs.store.emit import POINT_DTYPE, BlockWriter, GaussianWriter, SeedWriter, gaussian_dtype
from tidegs.store.files import Files
from tidegs.store.format import WORK_FILES
from tidegs.store.grid import Buckets, Grid, partition
from tidegs.store.halo import SPOOLS, initial_scales, scales_of
from tidegs.store.rows import Rows, spatial_order
from tidegs.store.seeds import INIT_OPACITY_LOGIT
from tidegs.store.sizes import SizeHistogram
from tidegs.store.spatial import Box, Sample, greatest, hilbert, survey, xyz_of
from tidegs.store.spool import Spool, ahead, put_grouped
from tidegs.store.unfinished import Unfinished

_SORT_NBYTES = 160  # a row's key, address, place in the order, tree and distances
T = TypeVar("T")


@dataclass(frozen=True)
class IngestOptions:
    """How blocks are made. `fill`: rows of a full block as a share of its capacity (room for densification).
    `memory_budget`: bytes that the ingest may hold, approximately. `init_scale` times the root mean square distance to
    the three nearest points is the first scale of a point, `init_opacity` its first opacity. `spacing`: that distance,
    where it is known and the same for all points; then no neighbours are looked for. `source`: stands for the input as
    it is now; a long ingest that was killed or interrupted goes on when called again with it. "": begins anew."""

    memory_budget: int = 1 << 30
    fill: float = 1.0
    init_scale: float = 1.0
    init_opacity: float = 0.1
    spacing: float | None = None
    source: str = ""
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

    logit = math.log(options.init_opacity / (1 - options.init_opacity))
    with _Work(path, layout, options, logit, POINT_DTYPE, 3, files, meta) as work:
        scale = np.float32(math.log(options.spacing * options.init_scale)) if options.spacing else None
        spool = {} if scale is not None else {n: work.spool(n, d) for n, d in SPOOLS.items()}
        if not work.resumed:
            work.gather(rows())
            buckets = work.distribute()
            if scale is None:
                initial_scales(work.rows, buckets, options.init_scale, work.sizes, spool)
            else:
                work.sizes.add(np.array([scale]), times=work.rows.rows)
            work.sorted_into(buckets)
        if scale is None:
            work.emit(SeedWriter, lambda b, parts: scales_of(b, spool))
        else:
            work.emit(SeedWriter, lambda b, parts: np.full(sum(map(len, parts)), scale))
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
    then shN (component 3k + channel), values as in records. Chunks are kept as they are: the caller must not change
    them. Errors as `ingest_points`."""
    options = options or IngestOptions()
    dtype = gaussian_dtype(layout)
    scales_at = 4 * BASE_FIELDS["scales"].start

    def rows() -> Iterable[np.ndarray]:
        for chunk in chunks:
            if chunk.ndim != 2 or chunk.shape[1] != layout.param_components:
                raise ValueError(f"Gaussians of shape {chunk.shape}, expected [n, {layout.param_components}]")
            yield np.ascontiguousarray(chunk, np.float32).view(dtype)[:, 0]

    def extents(parts: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate([greatest(part, scales_at) for part in parts])

    with _Work(path, layout, options, INIT_OPACITY_LOGIT, dtype, layout.param_components, files, meta) as work:
        if not work.resumed:
            work.gather(rows(), lambda rows: work.sizes.add(extents([rows])))
            work.sorted_into(work.distribute())
        work.emit(GaussianWriter, lambda b, parts: extents(parts))
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
        floats: int,
        files: Files | None,
        meta: bytes,
    ) -> None:
        """Rows of `dtype` begin with so many floats: x, y, z and others."""
        self._files = files or Files()
        self._options = options
        self._dtype, self._floats = dtype, floats
        self._spools: list[Spool] = []
        self._writer: BlockWriter | None = None
        self._finished = False
        self.sizes = SizeHistogram()
        self._sample = Sample()
        self._most = max(1, options.memory_budget // 2 // (dtype.itemsize + _SORT_NBYTES))  # rows of a bucket
        told = replace(options, memory_budget=0, progress=False), layout, seed_opacity, dtype.descr, meta
        self._unfinished = Unfinished(Path(path), sha256(repr(told).encode()).digest(), self._files)
        self._begun: dict[str, np.ndarray] = {}
        self._keeps = False  # what was done is in the file of unfinished work
        try:
            self.store = BlockStore.create(path, layout, seed_opacity, files=self._files, kept=self._find_begun)
            name = "parts" if self.resumed else "rows"
            self.rows = self.spool(name, dtype, max(options.memory_budget // 8, self._most * dtype.itemsize))
        except BaseException:
            if self.resumed:  # the next call begins anew
                self._unfinished.remove()
            if hasattr(self, "store"):
                self.store.abandon()
            raise
        self._bar: tqdm[Any] = tqdm(unit=" rows", unit_scale=True, desc="reading", disable=not options.progress)
        if self.resumed:
            self._go_on()

    def __enter__(self) -> _Work:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bar.close()
        if self._writer and not self._finished:
            self._writer.abandon()
        stopped = kind is not None and not issubclass(kind, Exception)
        interrupted = self._keeps and stopped and not self._finished
        try:
            for spool in self._spools:
                spool.close(remove=not interrupted)
        finally:
            if interrupted:
                self.store.close()
            elif not self._finished:
                self.store.abandon()

    @property
    def resumed(self) -> bool:
        """All rows were sorted into buckets, and perhaps some written, when the ingest was stopped."""
        return bool(self._begun)

    def spool(self, name: str, dtype: np.dtype, budget: int | None = None) -> Spool:
        """Work rows, `budget` bytes of them in memory: an eighth of all, where it is not given."""
        budget = self._options.memory_budget // 8 if budget is None else budget
        path = self.store.path / f"ingest.{name}"
        pieces = self._begun.get(f"spool.{path.name}")
        if pieces is None:
            spool = Spool(path, dtype, budget, self._files)
        else:
            spool = Spool.kept(path, dtype, budget, self._files, pieces)
        self._spools.append(spool)
        return spool

    def gather(self, chunks: Iterable[np.ndarray], see: Callable[[np.ndarray], None] | None = None) -> None:
        """Takes all input."""
        with closing(ahead(chunks)) as source:
            for rows in source:
                hashes, finite = survey(rows, self._floats)
                if not finite.all():
                    bad = self.rows.rows + int(np.argmin(finite))
                    raise FormatError(f"row {bad} of the input is not finite: remove such rows from it")
                self._sample.add(xyz_of(rows), hashes)
                if see:
                    see(rows)
                self.rows.put(0, rows)
                self._bar.update(len(rows))
        if self.rows.rows == 0:
            raise FormatError("the input holds no points: a store needs at least one")

    def distribute(self) -> Buckets:
        """Splits the rows by space into buckets that fit in memory each."""
        cells = Grid.of(self._sample.box(), self.rows.rows)
        if self.rows.rows <= self._most:
            return Buckets(cells, np.zeros(cells.cells, np.int32), 1)
        counts = np.zeros(cells.cells, np.int64)
        with closing(ahead(self.rows.chunks(0))) as chunks:
            for rows in self._phase("counting", chunks):
                counts += np.bincount(cells.cell_of(rows), minlength=cells.cells)
        buckets = partition(counts, cells, self._most)
        parts = self.spool("parts", self._dtype)
        with closing(ahead(self.rows.take(0))) as chunks:
            for rows in self._phase("distributing", chunks):
                put_grouped(parts, buckets.of(rows), buckets.count, rows)
        self.rows.close()
        self.rows = parts
        return buckets

    def sorted_into(self, buckets: Buckets) -> None:
        """All is known that the blocks depend on; notes it where that may save much work."""
        self._box, self._count, self._next = buckets.grid.box, buckets.count, 0
        nbytes = self.rows.rows * self._dtype.itemsize
        if self._options.source and buckets.count > 1 and nbytes >= unfinished.KEEP_NBYTES:
            self._keep()

    def emit(
        self,
        writer_type: type[SeedWriter | GaussianWriter],
        log_extent: Callable[[int, Sequence[np.ndarray]], np.ndarray],
    ) -> None:
        """Writes all blocks, each bucket in the order of the Hilbert curve; `log_extent` of a bucket's rows, as held in
        parts."""
        self._writer = writer = writer_type(self.store, self.sizes, self._options.fill)
        if "blocks" in self._begun:
            writer.go_on(self._begun)

        def ordered() -> Iterator[tuple[int, Rows, np.ndarray]]:
            for b in range(self._next, self._count):
                rows = Rows.of(self.rows.chunks(b), self._dtype)
                if len(rows):
                    order = spatial_order(np.concatenate([hilbert(part, self._box) for part in rows.held]), rows)
                    yield b, rows[order], log_extent(b, rows.held)[order]

        done: list[int] = []
        nbytes, total = 0, self.rows.rows * self._dtype.itemsize  # of rows in them, and of all that are left
        with closing(ahead(ordered())) as sorted_buckets:
            for b, rows, extent in self._phase("writing", sorted_buckets, self._count - self._next):
                writer.add(rows, extent)
                done.append(b)
                mine = len(rows) * self._dtype.itemsize
                nbytes += mine
                if self._keeps and nbytes + mine <= total // unfinished.PARTS:
                    continue  # what was noted needs the rows of these buckets
                if self._keeps:
                    self._next = b + 1
                    self._keep()
                for spool in self._spools:
                    for bucket in done:
                        spool.drop(bucket)
                done.clear()
                nbytes = 0
        writer.close()

    def _keep(self) -> None:
        """Notes what is done, once that is durable."""
        state = self._writer.progress() if self._writer else {}
        self.store.records.sync()
        state |= {f"spool.{s.path.name}": pieces for s in self._spools if len(pieces := s.keep())}
        state |= {
            "table": self.store.table,
            "written": np.array(self.store.bytes_written),
            "sizes": self.sizes.counts,
            "box": np.array([*self._box.center, self._box.half]),
            "buckets": np.array([self._next, self._count, self._most]),
        }
        self._unfinished.save(state)
        self._keeps = True

    def _find_begun(self) -> Begun | None:
        state = self._unfinished.load() if self._options.source else None
        if state is None or state["buckets"][2] > self._most:  # its buckets would not fit into memory
            return None
        self._begun = state
        return state["table"], int(state["written"])

    def _go_on(self) -> None:
        self._next, self._count, _ = self._begun["buckets"].tolist()
        *center, half = self._begun["box"].tolist()
        self._box = Box(np.array(center), half)
        self.sizes.counts[:] = self._begun["sizes"]
        self._keeps = True
        if self._options.progress:
            at = f"after {self._next} of {self._count} buckets"
            tqdm.write(f"{self.store.path}: an ingest was stopped {at}: going on from there", file=sys.stderr)

    def finish(self, meta: bytes) -> BlockStore:
        self.store.records.trim()
        self.store.commit(meta)
        self._finished = True
        with suppress(OSError):  # what is left goes when the store is opened next
            self._files.clear(self.store.path, WORK_FILES)
        return self.store

    def _phase(self, name: str, steps: Iterable[T], count: int | None = None) -> Iterable[T]:
        self._bar.close()
        bar = tqdm(steps, desc=name, total=count, disable=not self._options.progress, leave=False)
        self._bar = bar
        return bar
