"""Windows: rectangles of the image in which the tiles of a region are rendered.

Invariant: a region's windows hold each of its tiles once, and mask out every other tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tidegs.device import tiles
from tidegs.device.base import TILE_SIZE, Region

MOST_WINDOWS = 4  # of a region: each is a launch of the whole pixel stage


@dataclass(frozen=True)
class Window:
    """A rectangle of pixels that begins on a tile; `tiles` says which of its tiles belong to the region."""

    x0: int
    y0: int
    width: int
    height: int
    tiles: np.ndarray  # bool [down, across]

    @property
    def full(self) -> bool:
        """Whether all tiles belong."""
        return bool(self.tiles.all())

    @property
    def there(self) -> tuple[slice, slice]:
        """Where it lies in the image: rows and columns."""
        return slice(self.y0, self.y0 + self.height), slice(self.x0, self.x0 + self.width)

    def pixels(self) -> np.ndarray:
        """bool [height, width]: the pixels of its tiles."""
        grown = self.tiles.repeat(TILE_SIZE, 0).repeat(TILE_SIZE, 1)
        return grown[: self.height, : self.width]


@lru_cache(maxsize=256)
def windows_of(width: int, height: int, region: Region) -> tuple[Window, ...]:
    """The windows of a region of an image."""
    across, down = tiles.grid_size(width, height)
    left = np.zeros((down, across), bool)
    x, y = tiles.morton_tiles(width, height)[region.first : region.last].T
    left[y, x] = True
    out = []
    for x0, y0, x1, y1 in tiles.pixel_rects(width, height, region, MOST_WINDOWS):
        there = np.s_[y0 // TILE_SIZE : -(-y1 // TILE_SIZE), x0 // TILE_SIZE : -(-x1 // TILE_SIZE)]
        mine = left[there].copy()
        left[there] = False  # rectangles may overlap
        if mine.any():
            out.append(Window(x0, y0, x1 - x0, y1 - y0, mine))
    return tuple(out)


def finer(width: int, height: int, regions: list[Region]) -> list[Region] | None:
    """The regions, each cut at the coarsest cells of the quadtree; None where all are single tiles."""
    parts = [part for region in regions for part in tiles.split(width, height, region)]
    return parts if len(parts) > len(regions) else None
