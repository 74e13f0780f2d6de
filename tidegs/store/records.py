"""The record files of a store: one for each size class, cut into extents, read and written in batches.

Invariant: a record is written to a free extent only, and an extent that the last snapshot refers to is not free.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tidegs.errors import CorruptError, StoreError
from tidegs.gaussians.layout import RecordLayout
from tidegs.store import format as fmt
from tidegs.store.base import ArenaLink
from tidegs.store.direct import DirectEngine
from tidegs.store.extents import Extents
from tidegs.store.files import Files
from tidegs.store.guard import Guard
from tidegs.store.native import STATUS, Engine
from tidegs.store.seeds import SH0_OF_COLOR

_GROW_LEAST, _GROW_MOST = 16 << 20, 1 << 30  # bytes by which a file grows ahead of need
_NONE = np.empty(0, np.int64)


@dataclass
class Counters:
    """Bytes that moved since the store was opened."""

    records_read: int = 0
    records_written: int = 0
    planes_written: int = 0  # what was asked for: records without their headers
    other_written: int = 0  # tables and roots

    @property
    def written(self) -> int:
        """All bytes written."""
        return self.records_written + self.other_written


class Records:
    """Requests are native.REQUEST_DTYPE with block, generation, count, planes, kind and slot set."""

    def __init__(
        self,
        folder: Path,
        layout: RecordLayout,
        seed_opacity: float,
        guard: Guard,
        readonly: bool,
        io_threads: int,
        files: Files,
    ) -> None:
        self.direct = True  # all files are read and written past the page cache
        self.counters = Counters()
        self.nbytes = fmt.extent_nbytes(layout)
        self.extents = [Extents(int(n), _NONE, 0) for n in self.nbytes]
        self._folder, self._layout, self._guard, self._readonly, self._files = folder, layout, guard, readonly, files
        self._mutex = threading.Lock()
        self._fds = np.full(len(fmt.KINDS), -1, np.int32)
        self._unsynced: set[int] = set()  # kinds with writes that no fsync followed
        self._engine = Engine(layout, seed_opacity, SH0_OF_COLOR, io_threads, files.read_call, files.write_call)
        self._direct: DirectEngine | None = None

    def path(self, kind: int) -> Path:
        """The file of a size class."""
        return self._folder / fmt.RECORD_FILES[kind]

    def connect(self, link: ArenaLink) -> None:
        """From now on requests may be of arena slots."""
        self._direct = DirectEngine(self._engine, self._layout, self._files, self.path, link)

    @property
    def direct_engine(self) -> DirectEngine:
        """Moves requests of arena slots."""
        if self._direct is None:
            raise ValueError("the store is not connected to an arena")
        return self._direct

    def scan(self, requests: np.ndarray, direct: bool = False) -> None:
        """Sets planes and kind of requests from what their slots hold."""
        (self.direct_engine if direct else self._engine).scan(requests)
        planes = requests["planes"]
        need = fmt.planes_nbytes(self._layout, planes) + fmt.ALIGN
        kinds = np.full(len(planes), fmt.SCRATCH, np.uint8)
        plain = (planes & fmt.SCRATCH_BITS) == 0
        for kind in sorted(fmt.PLAIN_KINDS, key=lambda k: -self.nbytes[k]):
            kinds[plain & (need <= self.nbytes[kind])] = kind
        kinds[planes == 0] = fmt.NOTHING
        requests["kind"] = kinds

    def read(self, requests: np.ndarray, direct: bool = False) -> None:
        """Reads stored records from their offsets into their slots; errors name file and block."""
        requests["fd"] = self._fds[requests["kind"]]
        if (self.direct_engine if direct else self._engine).read(requests):
            self._raise(requests, "reading", direct)
        self.counters.records_read += self._stored_nbytes(requests)
        if not self.direct:
            for fd in np.unique(requests["fd"]):
                self._files.drop_cache(int(fd))

    def write(self, requests: np.ndarray, direct: bool = False) -> None:
        """Writes records to free extents; sets their offset and crc. Takes back the extents where one write fails."""
        self._place(requests)
        if (self.direct_engine if direct else self._engine).write(requests):
            self._give_back(requests["kind"], requests["offset"])
            self._raise(requests, "writing", direct)
        nbytes = self._stored_nbytes(requests)
        self.counters.records_written += nbytes
        self.counters.planes_written += nbytes - fmt.ALIGN * len(requests)

    def release(self, kinds: np.ndarray, offsets: np.ndarray, kept: np.ndarray) -> None:
        """Frees records: those that the last snapshot refers to (`kept`) once the next one is committed."""
        self._give_back(kinds[~kept], offsets[~kept])
        with self._mutex:
            for kind, mine in _by_kind(kinds[kept]):
                self.extents[kind].give_back_later(offsets[kept][mine] // self.nbytes[kind])

    def sync(self) -> None:
        """Makes all records written so far durable."""
        for kind in sorted(self._unsynced):
            with self._guard.vital(self.path(kind), "fsync"):
                self._files.fsync(int(self._fds[kind]))
            if not self.direct:
                self._files.drop_cache(int(self._fds[kind]))
        self._unsynced.clear()

    def committed(self) -> None:
        """A snapshot was committed: what waited for it is free."""
        with self._mutex:
            for extents in self.extents:
                extents.committed()

    def load(self, rows: np.ndarray) -> None:
        """Opens the files of a snapshot and takes the extents that its table (TABLE_DTYPE) refers to."""
        for kind in range(len(fmt.KINDS)):
            mine = np.flatnonzero(rows["kind"] == kind)
            if self._open_existing(kind, mine):
                self._take_loaded(kind, mine, rows["offset"][mine])

    def trim(self) -> int:
        """Gives free space at the ends of the files back to the file system; returns the bytes."""
        freed = 0
        with self._mutex:
            for kind, extents in enumerate(self.extents):
                if self._fds[kind] < 0 or extents.last_used == extents.total:
                    continue
                freed += (extents.total - extents.last_used) * extents.nbytes
                extents.shrink()
                with self._guard.errors(self.path(kind), "trimming"):
                    self._files.truncate(int(self._fds[kind]), extents.total * extents.nbytes)
        return freed

    def clear_scratch(self) -> None:
        """Empties the file of records that no snapshot refers to."""
        if self._fds[fmt.SCRATCH] >= 0:
            self._files.truncate(int(self._fds[fmt.SCRATCH]), 0)
            self.extents[fmt.SCRATCH] = Extents(int(self.nbytes[fmt.SCRATCH]), _NONE, 0)

    def close(self) -> None:
        """Ends the threads and closes the files."""
        if self._direct:
            self._direct.close()
        self._engine.close()
        for fd in self._fds[self._fds >= 0].tolist():
            self._files.close(fd)
        self._fds[:] = -1

    def _place(self, requests: np.ndarray) -> None:
        with self._mutex:
            taken: list[tuple[int, np.ndarray]] = []
            try:
                for kind, mine in _by_kind(requests["kind"]):
                    extents = self._take(kind, len(mine))
                    taken.append((kind, extents))
                    requests["offset"][mine] = extents * self.nbytes[kind]
                    requests["fd"][mine] = self._fds[kind]
                    self._unsynced.add(kind)
            except StoreError:
                for kind, extents in taken:
                    self.extents[kind].give_back(extents)
                raise

    def _take(self, kind: int, n: int) -> np.ndarray:
        extents = self.extents[kind]
        taken = extents.take(n)
        while taken is None:
            self._grow(kind, n)
            taken = extents.take(n)
        return taken

    def _grow(self, kind: int, n: int) -> None:
        """Makes room for `n` more extents, and ahead of need where the disk allows."""
        extents, path = self.extents[kind], self.path(kind)
        with self._guard.errors(path, f"making room for {n} blocks"):
            if self._fds[kind] < 0:
                self._open(kind, os.O_RDWR | os.O_CREAT)
            ahead = min(max(_GROW_LEAST, extents.total * extents.nbytes // 16), _GROW_MOST) // extents.nbytes
            total = extents.total + n + ahead
            try:
                self._files.allocate(int(self._fds[kind]), total * extents.nbytes)
            except OSError:
                total = extents.total + n
                self._files.allocate(int(self._fds[kind]), total * extents.nbytes)
        extents.grow(total)

    def _give_back(self, kinds: np.ndarray, offsets: np.ndarray) -> None:
        with self._mutex:
            for kind, mine in _by_kind(kinds):
                self.extents[kind].give_back(offsets[mine] // self.nbytes[kind])

    def _open(self, kind: int, flags: int) -> None:
        fd, direct = self._files.open_direct(self.path(kind), flags)
        self._fds[kind] = fd
        self.direct = self.direct and direct

    def _open_existing(self, kind: int, blocks: np.ndarray) -> bool:
        """Opens the file of a class; False where there is none and none of `blocks` needs it."""
        try:
            with self._guard.errors(self.path(kind), "opening"):
                self._open(kind, os.O_RDONLY if self._readonly else os.O_RDWR)
        except StoreError as e:
            if not isinstance(e.__cause__, FileNotFoundError):
                raise
            if len(blocks):
                raise CorruptError(
                    f"{self.path(kind)} is missing, and block {blocks[0]} lies in it: restore the store from a copy"
                ) from e
            return False
        return True

    def _take_loaded(self, kind: int, blocks: np.ndarray, offsets: np.ndarray) -> None:
        path, nbytes = self.path(kind), int(self.nbytes[kind])
        with self._guard.errors(path, "asking its size"):
            size = self._files.size(int(self._fds[kind]))
        at, rest = np.divmod(offsets, nbytes)
        wrong = np.flatnonzero((rest != 0) | (at < 0) | (at >= size // nbytes))
        if len(wrong):
            raise CorruptError(
                f"{path}: block {blocks[wrong[0]]} lies at byte {offsets[wrong[0]]} of a file of {size} bytes: "
                "restore the store from a copy"
            )
        if len(np.unique(at)) != len(at):
            raise CorruptError(f"{path}: two blocks claim one place in it: restore the store from a copy")
        self.extents[kind] = Extents(nbytes, at, size // nbytes)

    def _stored_nbytes(self, requests: np.ndarray) -> int:
        nbytes = fmt.planes_nbytes(self._layout, requests["planes"])
        nbytes[requests["kind"] == fmt.SEEDS] = fmt.seed_nbytes(self._layout)
        return int(nbytes.sum()) + fmt.ALIGN * len(requests)

    def _raise(self, requests: np.ndarray, doing: str, direct: bool) -> None:
        bad = requests[requests["status"] != 0][0]
        path, status = self.path(int(bad["kind"])), int(bad["status"])
        if status > 0:
            said = self._direct.said if direct and self._direct else ""
            why = f"{os.strerror(status)} (kvikio: {said})" if said else os.strerror(status)
            raise StoreError(f"{path}: {doing} block {bad['block']} failed: {why}")
        raise CorruptError(
            f"{path}: block {bad['block']} at byte {bad['offset']} is damaged: {STATUS[status]}; "
            "restore the store from a copy"
        )


def _by_kind(kinds: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Each kind of stored record among `kinds`, and where it occurs."""
    for kind in np.unique(kinds):
        if kind != fmt.NOTHING:
            yield int(kind), np.flatnonzero(kinds == kind)
