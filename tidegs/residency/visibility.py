"""Which blocks a view needs, from the bounds in the table.

Invariant: no false negatives. A block that holds a row which gsplat's projection keeps (radius > 0), in float32, is
always reported.

A row is kept when its mean lies between the near and the far plane, and its rectangle, mean2d +- radius, overlaps the
image (gsplat `_fully_fused_projection`): radius = ceil(3.33 sqrt(J S J^T + eps2d)) for each axis, J as in EWA splatting
(Zwicker et al. 2001) with x/z clamped to `lim`. With s the greatest sigma, J S J^T <= s^2 fx^2 (1 + lim^2) / z^2, so
radius <= 3.33 s fx sqrt(1 + lim^2) / z + c0. Times z > 0, each edge of the image becomes a half-space in which the
row's mean must lie, moved out by a multiple of s; a box is tested by its corner farthest inside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numba
import numpy as np

from tidegs.device.base import RenderSettings, View

GROUP = 64  # blocks in a group; groups are tested first
_GAMMA = 64 * 2.0**-24  # rounding of the device's float32 transform and of this test, relative to magnitudes
_EMPTY = np.float32(-1e30)

# One plane: normal xyz, |normal| xyz (inflated in predictions), offset, multiple of the extent.
_PLANE_FLOATS = 8
PLANES = 6


class Bounds:
    """Boxes of all blocks and of groups of them, ready for the kernels: float32, component-major, padded to groups."""

    def __init__(self, table: np.ndarray) -> None:
        self.count = len(table)
        groups = max(1, -(-self.count // GROUP))
        self.blocks = np.zeros((7, groups * GROUP), np.float32)  # centre xyz, half xyz, extent
        self.blocks[3:6] = _EMPTY
        self.groups = np.zeros((7, groups), np.float32)
        self.update(np.arange(self.count, dtype=np.int32), table)

    def grow(self, count: int) -> None:
        """Makes room for blocks up to id `count` (exclusive); they are empty until `update`."""
        self.count = max(count, self.count)
        groups = -(-self.count // GROUP)
        if groups > self.groups.shape[1]:
            groups = max(groups, self.groups.shape[1] * 5 // 4)
            blocks, old = np.zeros((7, groups * GROUP), np.float32), self.groups
            blocks[3:6] = _EMPTY
            blocks[:, : self.blocks.shape[1]] = self.blocks
            self.groups = np.zeros((7, groups), np.float32)
            self.groups[3:6] = _EMPTY
            self.groups[:, : old.shape[1]] = old
            self.blocks = blocks

    def update(self, ids: np.ndarray, table: np.ndarray) -> None:
        """Takes over the bounds of blocks `ids` (int32) from the table; a block of count 0 is never seen."""
        rows = table[ids]
        _store_boxes(self.blocks, self.groups, ids, rows["lo"], rows["hi"], rows["extent"], rows["count"])


@numba.njit(nogil=True, cache=True)
def _store_boxes(
    blocks: np.ndarray,
    groups: np.ndarray,
    ids: np.ndarray,
    lo: np.ndarray,
    hi: np.ndarray,
    extent: np.ndarray,
    count: np.ndarray,
) -> None:
    for i in range(len(ids)):
        b = ids[i]
        if count[i] <= 0:
            blocks[3:6, b] = _EMPTY
            blocks[:3, b] = 0
            blocks[6, b] = 0
            continue
        magnitude = 0.0
        for k in range(3):
            magnitude += max(abs(np.float64(lo[i, k])), abs(np.float64(hi[i, k])))
        for k in range(3):
            a, z = np.float64(lo[i, k]), np.float64(hi[i, k])
            blocks[k, b] = 0.5 * (a + z)
            blocks[3 + k, b] = 0.5 * (z - a) * (1 + 1e-6) + 2 * _GAMMA * magnitude + 1e-30
        blocks[6, b] = extent[i]
    last = -1
    for i in range(len(ids)):
        g = ids[i] // GROUP
        if g != last:
            _store_group(blocks, groups, g)
            last = g


@numba.njit(nogil=True, cache=True)
def _store_group(blocks: np.ndarray, groups: np.ndarray, g: int) -> None:
    first = g * GROUP
    empty = True
    biggest = np.float32(0)
    for b in range(first, first + GROUP):
        if not blocks[3, b] < 0:
            empty = False
            if not blocks[6, b] <= biggest:
                biggest = blocks[6, b]
    groups[6, g] = biggest
    for k in range(3):
        a, z = np.inf, -np.inf
        for b in range(first, first + GROUP):
            if not blocks[3, b] < 0:
                low = np.float64(blocks[k, b]) - np.float64(blocks[3 + k, b])
                high = np.float64(blocks[k, b]) + np.float64(blocks[3 + k, b])
                if not low >= a:
                    a = low
                if not high <= z:
                    z = high
        if empty:
            groups[k, g] = 0
            groups[3 + k, g] = _EMPTY
        else:
            groups[k, g] = 0.5 * (a + z)
            groups[3 + k, g] = 0.5 * (z - a) * (1 + 1e-6) + _GAMMA * max(abs(a), abs(z))


def view_planes(view: View, settings: RenderSettings, inflate: float = 0.0) -> np.ndarray:
    """The half-spaces of a view, float32 [6, 8]. `inflate` > 0 widens boxes and extents by that share: for
    predictions, while the bounds still move."""
    out = np.empty((PLANES, _PLANE_FLOATS), np.float32)
    _fill_planes(
        np.asarray(view.viewmat, np.float64),
        np.asarray(view.K, np.float64),
        (float(view.width), float(view.height)),
        (float(settings.near_plane), float(settings.far_plane), float(settings.eps2d), float(inflate)),
        out,
    )
    return out


@numba.njit(nogil=True, cache=True)
def _fill_planes(
    viewmat: np.ndarray,
    K: np.ndarray,
    size: tuple[float, float],
    settings: tuple[float, float, float, float],
    out: np.ndarray,
) -> None:
    near, far, eps2d, inflate = settings
    norm = 0.0  # >= square of the spectral norm of the rotation: greatest column sum of |R R^T|
    for i in range(3):
        total = 0.0
        for j in range(3):
            total += abs(viewmat[i, 0] * viewmat[j, 0] + viewmat[i, 1] * viewmat[j, 1] + viewmat[i, 2] * viewmat[j, 2])
        norm = max(norm, total)
    stretch = 3.33 * 1.0001 * math.sqrt(norm)
    c0 = 3.33 * math.sqrt(eps2d) + 1.02 + 2e-6 * max(size[0], size[1])
    for axis in range(2):
        f, c = K[axis, axis], K[axis, 2]
        lim = max(abs(size[axis] - c), abs(c)) / f + 0.15 * size[axis] / f
        reach = stretch * f * math.sqrt(1 + lim * lim)
        _fill_plane(viewmat, axis, f, c + c0, 0.0, reach, inflate, out[2 * axis])
        _fill_plane(viewmat, axis, -f, size[axis] - c + c0, 0.0, reach, inflate, out[2 * axis + 1])
    _fill_plane(viewmat, 0, 0.0, 1.0, -near * (1 - 1e-6), 0.0, inflate, out[4])
    _fill_plane(viewmat, 0, 0.0, -1.0, far * (1 + 1e-6), 0.0, inflate, out[5])


@numba.njit(nogil=True, cache=True)
def _fill_plane(
    viewmat: np.ndarray, axis: int, n: float, nz: float, offset: float, reach: float, inflate: float, out: np.ndarray
) -> None:
    """The plane n * camera[axis] + nz * camera z + offset + reach * extent >= 0, in the world, normalised."""
    scale = 1 / math.sqrt(n * n + nz * nz)
    for k in range(3):
        world = (n * viewmat[axis, k] + nz * viewmat[2, k]) * scale
        out[k] = world
        out[3 + k] = abs(world) * (1 + inflate)
    slack = 2 * _GAMMA * (abs(n * viewmat[axis, 3]) + abs(nz * viewmat[2, 3]) + abs(offset))
    out[6] = (n * viewmat[axis, 3] + nz * viewmat[2, 3] + offset + slack) * scale
    out[7] = reach * scale * (1 + inflate) + inflate


@numba.njit(nogil=True, cache=True, inline="always")
def _inside(boxes: np.ndarray, first: int, n: int, planes: np.ndarray, ok: np.ndarray) -> None:
    """ok[i] = box first + i is not outside any plane. NaN counts as inside."""
    for i in range(n):
        ok[i] = 1
    for p in range(6):
        nx, ny, nz = planes[p, 0], planes[p, 1], planes[p, 2]
        ax, ay, az = planes[p, 3], planes[p, 4], planes[p, 5]
        d, e = planes[p, 6], planes[p, 7]
        for i in range(n):
            b = first + i
            at = nx * boxes[0, b] + ny * boxes[1, b] + nz * boxes[2, b] + d
            reach = ax * boxes[3, b] + ay * boxes[4, b] + az * boxes[5, b] + e * boxes[6, b]
            ok[i] &= not (at + reach < 0)


@numba.njit(nogil=True, cache=True)
def _needed(blocks: np.ndarray, groups: np.ndarray, planes: np.ndarray, out: np.ndarray, ok: np.ndarray) -> int:
    """Fills `out` with ascending ids; returns how many, or -1 when they could be more than it holds."""
    count = 0
    groups_ok = ok[GROUP:]
    _inside(groups, 0, groups.shape[1], planes, groups_ok)
    for g in range(groups.shape[1]):
        if groups_ok[g]:
            if count + GROUP > len(out):
                return -1
            _inside(blocks, g * GROUP, GROUP, planes, ok)
            for i in range(GROUP):
                if ok[i]:
                    out[count] = g * GROUP + i
                    count += 1
    return count


def needed_blocks(bounds: Bounds, planes: np.ndarray) -> np.ndarray:
    """Ids of the blocks that may hold a visible row, int32, ascending. `planes` from `view_planes`."""
    padded = bounds.blocks.shape[1]
    ok = np.empty(GROUP + bounds.groups.shape[1], np.uint8)
    room = min(padded, 1 << 14)
    while True:
        out = np.empty(room, np.int32)
        n = _needed(bounds.blocks, bounds.groups, planes, out, ok)
        if n >= 0:
            return out[:n].copy()
        room = min(padded, room * 4)


@numba.njit(nogil=True, cache=True)
def _working_sets(
    blocks: np.ndarray,
    groups: np.ndarray,
    planes: np.ndarray,
    first: int,
    ids: np.ndarray,
    used: int,
    offsets: np.ndarray,
) -> tuple[int, int]:
    ok = np.empty(GROUP + groups.shape[1], np.uint8)
    for v in range(first, len(planes)):
        n = _needed(blocks, groups, planes[v], ids[used:], ok)
        if n < 0:
            return v, used
        used += n
        offsets[v + 1] = used
    return len(planes), used


def view_sets(table: np.ndarray, views: Sequence[View], settings: RenderSettings) -> tuple[np.ndarray, np.ndarray]:
    """`working_sets` of views by the bounds in a table (store.base.TABLE_DTYPE)."""
    planes = np.stack([view_planes(v, settings) for v in views]) if views else np.empty((0, PLANES, _PLANE_FLOATS))
    return working_sets(Bounds(table), planes.astype(np.float32, copy=False))


def working_sets(bounds: Bounds, planes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Needed blocks of many views as (offsets int64 [views + 1], ids int32). `planes` float32 [views, 6, 8]."""
    offsets = np.zeros(len(planes) + 1, np.int64)
    ids = np.empty(max(1 << 16, 2 * bounds.blocks.shape[1]), np.int32)
    view, used = 0, 0
    while True:
        view, used = _working_sets(bounds.blocks, bounds.groups, planes, view, ids, used, offsets)
        if view == len(planes):
            return offsets, ids[:used]
        guess = int(used / max(view, 1) * len(planes) * 1.05) + bounds.blocks.shape[1]
        ids = np.concatenate([ids[:used], np.empty(max(guess - used, len(ids) // 2), np.int32)])
