"""Coarse cells of space, and buckets of cells that each fit in memory.

Invariant: a cell lies in exactly one bucket, and buckets follow one another in the order of Morton keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidegs.store.spatial import Box, morton

_LEVELS = 7
_SHIFT = np.uint64(3 * (20 - _LEVELS))
CELLS = 1 << 3 * _LEVELS
_MANY = 4096  # cells of a ball from which on every bucket is asked


@dataclass(frozen=True)
class Buckets:
    """A partition of the cells. `of_cell`: int32 [CELLS], by the Morton number of a cell."""

    box: Box
    of_cell: np.ndarray
    count: int

    def of(self, xyz: np.ndarray) -> np.ndarray:
        """The bucket of each point, int32 [n]."""
        return self.of_cell[cell_of(xyz, self.box)]

    def overlapped(self, xyz: np.ndarray, radius: np.ndarray, own: int) -> tuple[np.ndarray, np.ndarray]:
        """Pairs (row, bucket) of all buckets but `own` that points nearer than `radius` (float64 [n]) may lie in."""
        if self.count == 1:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        reach = radius * (1 + 1e-9) + 1e-30
        low = _coordinates(xyz - reach[:, None], self.box)
        span = _coordinates(xyz + reach[:, None], self.box) - low + 1
        cells = span.prod(axis=1)
        some = np.flatnonzero((cells > 1) & (cells <= _MANY))
        row = np.repeat(some, cells[some])
        k = np.arange(len(row)) - np.repeat(np.cumsum(cells[some]) - cells[some], cells[some])
        at = low[row]
        at[:, 0] += k % span[row, 0]
        at[:, 1] += k // span[row, 0] % span[row, 1]
        at[:, 2] += k // (span[row, 0] * span[row, 1])
        pairs = row * self.count + self.of_cell[_interleave(at)]
        everywhere = np.flatnonzero(cells > _MANY)
        pairs = np.concatenate([pairs, (everywhere[:, None] * self.count + np.arange(self.count)).reshape(-1)])
        row, bucket = np.divmod(np.unique(pairs), self.count)
        other = bucket != own
        return row[other], bucket[other]


def cell_of(xyz: np.ndarray, box: Box) -> np.ndarray:
    """Morton number of the cell of each point, int64 [n]."""
    return (morton(xyz, box) >> _SHIFT).astype(np.int64)


def partition(counts: np.ndarray, box: Box, most: int) -> Buckets:
    """Buckets of up to `most` points (a single cell may hold more); `counts`: points of each cell, int64 [CELLS]."""
    ends = np.cumsum(counts)
    of_cell = np.zeros(CELLS, np.int32)
    first, bucket, before = 0, 0, 0
    while first < CELLS:
        last = max(first + 1, int(np.searchsorted(ends, before + most, side="right")))
        of_cell[first:last] = bucket
        before, first = ends[last - 1], last
        bucket += 1
    return Buckets(box, of_cell, bucket)


def _coordinates(xyz: np.ndarray, box: Box) -> np.ndarray:
    """Cell coordinates int64 [n, 3] of float64 positions; the same map as in csrc/store/spatial.cpp."""
    u = (xyz - box.center) / box.half
    far = np.abs(u) > 1
    u[far] = np.copysign(2 - 1 / np.abs(u[far]), u[far])
    return np.clip((u + 2) * (1 << (_LEVELS - 2)), 0, (1 << _LEVELS) - 1).astype(np.int64)


def _interleave(at: np.ndarray) -> np.ndarray:
    out = np.zeros(len(at), np.int64)
    for bit in range(_LEVELS):
        for k in range(3):
            out |= (at[:, k] >> bit & 1) << (3 * bit + k)
    return out
