"""Work files of an ingest: rows kept by bucket, in memory up to a budget and in one file beyond it.

Invariant: rows of a bucket come back in the order in which they were put in; memory stays within the budget, and what
was taken or dropped holds no space on the disk where the file system can give back parts of a file.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np

from tidegs.errors import StoreError
from tidegs.store.files import Files
from tidegs.store.spatial import group_rows

PIECES = np.dtype([("bucket", np.int32), ("offset", np.int64), ("rows", np.int64)])
_PIECE = 1 << 20  # bytes of a bucket that are written at once
T = TypeVar("T")


class Spool:
    """Rows of one dtype and shape, by bucket."""

    def __init__(self, path: Path, dtype: np.dtype, budget: int, files: Files) -> None:
        """`path`: the file used beyond `budget` bytes of rows in memory."""
        self.rows = 0
        self.bytes_moved = 0  # to and from the file
        self.path = path
        self._dtype, self._budget, self._files = dtype, budget, files
        self._fd = -1
        self._end = 0
        self._held = 0  # bytes in memory
        self._memory: dict[int, list[np.ndarray]] = defaultdict(list)
        self._memory_nbytes: dict[int, int] = defaultdict(int)
        self._pieces: dict[int, list[tuple[int, int]]] = defaultdict(list)  # bucket: (offset, rows)

    @staticmethod
    def kept(path: Path, dtype: np.dtype, budget: int, files: Files, pieces: np.ndarray) -> Spool:
        """The spool whose `keep` gave these pieces, from its file. Raises StoreError."""
        spool = Spool(path, dtype, budget, files)
        try:
            spool._fd = files.open(path, os.O_RDWR)
        except OSError as e:
            raise StoreError(f"{path}: opening work data of the ingest failed: {e.strerror or e}") from e
        for bucket, offset, rows in pieces.tolist():
            spool._pieces[bucket].append((offset, rows))
            spool.rows += rows
        return spool

    def keep(self) -> np.ndarray:
        """Makes all rows durable in the file; PIECES [n] that say where they are."""
        for bucket in list(self._memory):
            self._spill(bucket)
        try:
            if self._fd >= 0:
                self._files.fsync(self._fd)
        except OSError as e:
            raise StoreError(f"{self.path}: fsync of work data of the ingest failed: {e.strerror or e}") from e
        found = [(bucket, *piece) for bucket, pieces in self._pieces.items() for piece in pieces]
        return np.array(found, PIECES)

    def put(self, bucket: int, rows: np.ndarray) -> None:
        """Appends rows (of the spool's dtype) to a bucket; keeps a reference where they stay in memory."""
        if len(rows) == 0:
            return
        self._memory[bucket].append(rows)
        self._memory_nbytes[bucket] += rows.nbytes
        self._held += rows.nbytes
        self.rows += len(rows)
        if self._held > self._budget:
            large = [b for b, n in self._memory_nbytes.items() if n >= _PIECE]
            for b in large or list(self._memory):
                self._spill(b)

    def get(self, bucket: int) -> np.ndarray:
        """All rows of a bucket."""
        parts = list(self.chunks(bucket))
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, self._dtype)

    def chunks(self, bucket: int) -> Iterator[np.ndarray]:
        """The rows of a bucket, piece by piece."""
        yield from self._stored(bucket)
        yield from self._memory.get(bucket, ())

    def count(self, bucket: int) -> int:
        """Rows of a bucket."""
        return sum(map(len, self._memory.get(bucket, ()))) + sum(n for _, n in self._pieces.get(bucket, ()))

    def take(self, bucket: int) -> Iterator[np.ndarray]:
        """The rows of a bucket, piece by piece, for the last time: a piece is gone once the next one is asked for."""
        for piece in self._pieces.pop(bucket, ()):
            yield self._read(*piece)
            self._free(*piece)
        self._held -= self._memory_nbytes.pop(bucket, 0)
        yield from self._memory.pop(bucket, ())

    def drop(self, bucket: int) -> None:
        """Forgets the rows of a bucket."""
        self._held -= self._memory_nbytes.pop(bucket, 0)
        self._memory.pop(bucket, None)
        for piece in self._pieces.pop(bucket, ()):
            self._free(*piece)

    def close(self, remove: bool = True) -> None:
        """Closes, and removes, the file."""
        self._memory.clear()
        if self._fd >= 0:
            self._files.close(self._fd)
            if remove:
                with suppress(OSError):  # the store removes it when it is opened next
                    self._files.unlink(self.path)
            self._fd = -1

    def _spill(self, bucket: int) -> None:
        rows = self._memory.pop(bucket)
        self._held -= self._memory_nbytes.pop(bucket)
        try:
            if self._fd < 0:
                self._fd = self._files.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            for part in rows:
                data = np.ascontiguousarray(part).view(np.uint8).reshape(-1)
                self._files.write_all(self._fd, data.data, self._end)
                self._pieces[bucket].append((self._end, len(part)))
                self._end += data.nbytes
                self.bytes_moved += data.nbytes
        except OSError as e:
            raise StoreError(f"{self.path}: writing work data of the ingest failed: {e.strerror or e}") from e

    def _stored(self, bucket: int) -> Iterator[np.ndarray]:
        for piece in self._pieces.get(bucket, ()):
            yield self._read(*piece)

    def _read(self, offset: int, rows: int) -> np.ndarray:
        nbytes = rows * self._dtype.itemsize
        try:
            data = self._files.read_all(self._fd, nbytes, offset)
        except OSError as e:
            raise StoreError(f"{self.path}: reading work data of the ingest failed: {e.strerror or e}") from e
        if len(data) != nbytes:
            raise StoreError(f"{self.path}: work data of the ingest ends early: was the file changed?")
        self.bytes_moved += nbytes
        return np.frombuffer(data, self._dtype)

    def _free(self, offset: int, rows: int) -> None:
        self._files.punch(self._fd, offset, rows * self._dtype.itemsize)


def put_grouped(spool: Spool, group: np.ndarray, groups: int, rows: np.ndarray) -> None:
    """Puts rows into the bucket of their group (int32 [n], 0 to groups - 1)."""
    rows, start = group_rows(rows, group, groups)
    for name in np.flatnonzero(np.diff(start)).tolist():
        spool.put(name, rows[start[name] : start[name + 1]])


def ahead(items: Iterable[T]) -> Generator[T, None, None]:
    """The items, each made by another thread while the one before it is in use; once closed, none is being made."""
    source = iter(items)

    def following() -> list[T]:
        return list(islice(source, 1))

    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(following)
        while item := made.result():
            made = pool.submit(following)
            yield item[0]
