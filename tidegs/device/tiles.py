"""The tiles of an image in Morton order.

Invariant: tiles are numbered by ascending Morton code (x in the even bits, y in the odd ones) of those that exist, so a
quadrant of a quadtree is one contiguous range of numbers, for any image size.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np

from tidegs.device.base import TILE_SIZE, Region


def grid_size(width: int, height: int) -> tuple[int, int]:
    """Tiles across and down."""
    return -(-width // TILE_SIZE), -(-height // TILE_SIZE)


def tile_count(width: int, height: int) -> int:
    """Number of 16x16 tiles that cover the image."""
    across, down = grid_size(width, height)
    return across * down


def _spread(v: np.ndarray) -> np.ndarray:
    """Moves bit i to bit 2i, for values under 2^16."""
    v = v.astype(np.uint32)
    for shift, mask in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
        v = (v | (v << np.uint32(shift))) & np.uint32(mask)
    return v


@lru_cache(maxsize=64)
def morton_tiles(width: int, height: int) -> np.ndarray:
    """Tiles in Morton order as int32 [tiles, 2] (x, y), read-only: row `i` is the tile that Region numbers `i`."""
    across, down = grid_size(width, height)
    y, x = np.divmod(np.arange(across * down, dtype=np.int32), max(across, 1))
    order = np.argsort(_spread(x) | (_spread(y) << np.uint32(1)), kind="stable")
    out = np.stack([x[order], y[order]], 1).astype(np.int32)
    out.setflags(write=False)
    return out


def whole(width: int, height: int) -> Region:
    """The region of all tiles."""
    return Region(0, tile_count(width, height))


def pixel_rects(width: int, height: int, region: Region, at_most: int = 8) -> list[tuple[int, int, int, int]]:
    """Rectangles (x0, y0, x1, y1; pixels, ends exclusive) that together cover the region's tiles.

    They are the bounds of the region's quadtree cells; where those are more than `at_most`, neighbours are merged.
    """
    tiles = morton_tiles(width, height)
    rects = [_bounds(tiles[a:b], width, height) for a, b in _cells(width, height, region)]
    while len(rects) > max(at_most, 1):
        rects = [_merge(rects[i : i + 2]) for i in range(0, len(rects), 2)]
    return rects


def split(width: int, height: int, region: Region) -> list[Region]:
    """Up to four consecutive sub-ranges that end where quadtree cells end; [region] where it is a single tile.

    The cut is made at the coarsest level at which the region has tiles in more than one cell.
    """
    codes = _codes(width, height)[region.first : region.last]
    if len(codes) < 2:
        return [region]
    level = (int(codes[0] ^ codes[-1]).bit_length() - 1) // 2
    cell = codes >> np.uint32(2 * level)
    cuts = (np.flatnonzero(np.diff(cell)) + 1 + region.first).tolist()
    ends = [region.first, *cuts, region.last]
    return [Region(a, b) for a, b in pairwise(ends)]


@lru_cache(maxsize=64)
def _codes(width: int, height: int) -> np.ndarray:
    tiles = morton_tiles(width, height)
    return _spread(tiles[:, 0]) | (_spread(tiles[:, 1]) << np.uint32(1))


def _cells(width: int, height: int, region: Region) -> list[tuple[int, int]]:
    """The greatest quadtree cells that make up the region, as ranges of tile numbers."""
    codes = _codes(width, height)
    out, at = [], region.first
    while at < region.last:
        level, end = 0, at + 1
        while level < 16:
            base = (int(codes[at]) >> (2 * level + 2)) << (2 * level + 2)
            first = int(np.searchsorted(codes, base))
            last = int(np.searchsorted(codes, base + (1 << (2 * level + 2))))
            if first < at or last > region.last:
                break
            level, end = level + 1, last
        out.append((at, end))
        at = end
    return out


def _bounds(tiles: np.ndarray, width: int, height: int) -> tuple[int, int, int, int]:
    x0, y0 = (tiles.min(0) * TILE_SIZE).tolist()
    x1, y1 = ((tiles.max(0) + 1) * TILE_SIZE).tolist()
    return x0, y0, min(x1, width), min(y1, height)


def _merge(rects: list[tuple[int, int, int, int]]) -> tuple[int, int, int, int]:
    x0, y0, x1, y1 = zip(*rects, strict=True)
    return min(x0), min(y0), max(x1), max(y1)
