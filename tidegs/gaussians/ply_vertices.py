"""The vertices of any PLY file, ASCII or binary of either byte order, read in chunks, whatever its size.

Invariant: at most one chunk is in memory; a file that ends early or is longer than it states is one FormatError.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from tidegs.errors import FormatError
from tidegs.gaussians.ply_header import PlyHeader, read_header


@dataclass(frozen=True)
class PlyVertices:
    """The element "vertex" of a file whose header was read and checked."""

    path: Path
    header: PlyHeader
    count: int
    row: np.dtype  # one vertex, as the header declares it
    _offset: int  # of the vertices; of all data in an ASCII file

    def chunks(self, rows: int) -> Iterator[np.ndarray]:
        """Structured arrays [at most `rows`] in file order: of dtype `row`, or, where the file is ASCII, of float64
        by the same names. Raises FormatError."""
        return self._ascii(rows) if self.header.ascii else self._binary(rows)

    def _binary(self, rows: int) -> Iterator[np.ndarray]:
        with open(self.path, "rb") as file:
            file.seek(self._offset)
            for at in range(0, self.count, rows):
                n = min(rows, self.count - at)
                part = np.fromfile(file, self.row, n)
                if len(part) < n:
                    raise FormatError(f"{self.path}: the file ends in row {at + len(part)} of {self.count}: it was cut")
                yield part

    def _ascii(self, rows: int) -> Iterator[np.ndarray]:
        names = self.row.names or ()
        table = np.dtype([(name, np.float64) for name in names])
        with open(self.path, "rb") as file:
            file.seek(self._offset)
            lines = (line for line in file if line.strip())
            for element in self.header.elements:
                if element.name == "vertex":
                    break
                next(islice(lines, element.count, element.count), None)
            for at in range(0, self.count, rows):
                words = [line.split() for line in islice(lines, min(rows, self.count - at))]
                if at + len(words) < min(at + rows, self.count):
                    raise FormatError(f"{self.path}: {self.count} rows are stated, {at + len(words)} are there")
                for i, row in enumerate(words):
                    if len(row) != len(names):
                        raise FormatError(
                            f"{self.path}: row {at + i} has {len(row)} values instead of {len(names)}: "
                            "export the file again"
                        )
                try:
                    values = np.array(words, np.float64)
                except ValueError as error:
                    raise FormatError(f"{self.path}: a row from {at} on holds what is no number ({error})") from None
                yield np.ascontiguousarray(values).view(table)[:, 0]


def open_vertices(path: Path) -> PlyVertices:
    """Reads and checks the header, and that the file is as long as it states. Raises FormatError."""
    try:
        header = read_header(path)
        size = path.stat().st_size
    except OSError as error:
        raise FormatError(f"{path}: the file cannot be read: {error.strerror}") from None
    vertex = next((e for e in header.elements if e.name == "vertex"), None)
    if vertex is None:
        raise FormatError(f"{path}: the PLY file has no element 'vertex', so it holds no points")
    if vertex.dtype is None:
        raise FormatError(f"{path}: a property of 'vertex' is a list, which no file of points or Gaussians has")
    offset = header.data_offset
    if not header.ascii:
        offset += _bytes_before(path, header)
        end = offset + vertex.count * vertex.dtype.itemsize
        if size < end:
            raise FormatError(f"{path}: {size} bytes, but its {vertex.count} vertices need {end}: the file was cut")
        if header.elements[-1].name == "vertex" and size > end:
            raise FormatError(f"{path}: {size} bytes, but its {vertex.count} vertices end at {end}: the count is wrong")
    return PlyVertices(path, header, vertex.count, vertex.dtype, offset)


def _bytes_before(path: Path, header: PlyHeader) -> int:
    total = 0
    for element in header.elements:
        if element.name == "vertex":
            break
        if element.dtype is None:
            raise FormatError(f"{path}: the element {element.name!r} before 'vertex' has lists: export without it")
        total += element.count * element.dtype.itemsize
    return total
