"""Coarse cells of space, and buckets of cells that each fit in memory.

Invariant: a cell lies in exactly one bucket, and buckets follow one another in the order of spatial keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tidegs.store.spatial import Box, hilbert, hilbert_of_cells, overlapped

_MOST_LEVELS, _POINTS_PER_CELL = 7, 64


@dataclass(frozen=True)
class Grid:
    """Cells of space: 2^levels along each axis of a box's frame."""

    box: Box
    levels: int

    @staticmethod
    def of(box: Box, points: int) -> Grid:
        """Cells of some tens of points, if these were spread evenly."""
        levels = 1
        while levels < _MOST_LEVELS and points >> 3 * levels > _POINTS_PER_CELL:
            levels += 1
        return Grid(box, levels)

    @property
    def cells(self) -> int:
        return 1 << 3 * self.levels

    def cell_of(self, xyz: np.ndarray) -> np.ndarray:
        """Number of the cell of each point (as `spatial.hilbert` takes them) along the Hilbert curve, int64 [n]."""
        return hilbert(xyz, self.box, self.levels).view(np.int64)

    def number(self, at: np.ndarray) -> np.ndarray:
        """Numbers int64 [n] of cell coordinates."""
        return hilbert_of_cells(at, self.levels)


@dataclass(frozen=True)
class Buckets:
    """A partition of the cells. `of_cell`: int32 [cells], by the number of a cell."""

    grid: Grid
    of_cell: np.ndarray
    count: int

    def of(self, xyz: np.ndarray) -> np.ndarray:
        """The bucket of each point, int32 [n]."""
        return self.of_cell[self.grid.cell_of(xyz)]

    @cached_property
    def of_place(self) -> np.ndarray:
        """The bucket of each cell by its coordinates, int32 [x, y, z]."""
        side = 1 << self.grid.levels
        out = np.empty((side, side, side), np.int32)
        for x in range(side):  # a plane at a time: cells are many
            plane = np.stack(np.meshgrid(x, np.arange(side), np.arange(side), indexing="ij"), axis=-1)
            out[x] = self.of_cell[self.grid.number(plane.reshape(-1, 3))].reshape(side, side)
        return out

    def overlapped(self, xyz: np.ndarray, best: np.ndarray, own: int) -> tuple[np.ndarray, np.ndarray]:
        """Pairs (row, bucket) of all buckets but `own` that may hold one of the three nearest of points (float32
        [n, 3]), whose squared distances are at most `best` (float64 [n, 3])."""
        if self.count == 1:
            return np.empty(0, np.int64), np.empty(0, np.int32)
        return overlapped(xyz, best, self.grid.box, self.grid.levels, self.of_place, own)


def partition(counts: np.ndarray, grid: Grid, most: int) -> Buckets:
    """Buckets of up to `most` points (a single cell may hold more); `counts`: points of each cell, int64 [cells]."""
    ends = np.cumsum(counts)
    of_cell = np.zeros(grid.cells, np.int32)
    first, bucket, before = 0, 0, 0
    while first < grid.cells:
        last = max(first + 1, int(np.searchsorted(ends, before + most, side="right")))
        of_cell[first:last] = bucket
        before, first = ends[last - 1], last
        bucket += 1
    return Buckets(grid, of_cell, bucket)
