"""Tiles in Morton order, their quadtree splits, and the rectangles that bound a range."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tidegs.device.base import TILE_SIZE, Region
from tidegs.device.tiles import grid_size, morton_tiles, pixel_rects, split, tile_count, whole

SIZES = st.integers(1, 700)


def code(x: int, y: int) -> int:
    return sum((x >> i & 1) << 2 * i | (y >> i & 1) << 2 * i + 1 for i in range(16))


@given(SIZES, SIZES)
def test_tiles_ascend_in_morton_code_and_each_is_there_once(width, height):
    tiles = morton_tiles(width, height).tolist()
    codes = [code(x, y) for x, y in tiles]
    assert codes == sorted(codes)
    across, down = grid_size(width, height)
    assert (across - 1) * TILE_SIZE < width <= across * TILE_SIZE
    assert len(set(codes)) == len(tiles) == across * down == tile_count(width, height)


@given(SIZES, SIZES, st.data())
def test_splits_partition_a_region_at_quadtree_cells(width, height, data):
    region = whole(width, height)
    for _ in range(data.draw(st.integers(0, 5))):
        region = data.draw(st.sampled_from(split(width, height, region)))
    parts = split(width, height, region)
    assert 1 <= len(parts) <= 4
    assert [r.first for r in parts] == [region.first, *(r.last for r in parts[:-1])]
    assert parts[-1].last == region.last
    assert all(r.first < r.last for r in parts)
    assert (len(parts) == 1) == (region.last - region.first == 1)
    tiles = morton_tiles(width, height)
    for part in parts:  # whole cells: their extents are at most half of what holds the region
        size = np.ptp(tiles[part.first : part.last], axis=0).max() + 1
        holds = 1 << int(np.ptp(tiles[region.first : region.last], axis=0).max() + 1).bit_length()
        assert size <= max(holds // 2, 1)


@given(SIZES, SIZES, st.data())
def test_rectangles_cover_the_region_and_little_else(width, height, data):
    tiles = tile_count(width, height)
    first = data.draw(st.integers(0, tiles - 1))
    region = Region(first, data.draw(st.integers(first + 1, tiles)))
    covered = np.zeros((height, width), int)
    for x0, y0, x1, y1 in pixel_rects(width, height, region, at_most=1000):
        assert 0 <= x0 < x1 <= width
        assert 0 <= y0 < y1 <= height
        covered[y0:y1, x0:x1] += 1
    wanted = np.zeros((height, width), int)
    for x, y in morton_tiles(width, height)[region.first : region.last]:
        wanted[y * 16 : y * 16 + 16, x * 16 : x * 16 + 16] = 1
    np.testing.assert_array_equal(covered, wanted)
    few = pixel_rects(width, height, region, at_most=2)
    assert len(few) <= 2
    for x0, y0, x1, y1 in few:
        wanted[y0:y1, x0:x1] = 0
    assert not wanted.any()
