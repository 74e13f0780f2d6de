"""Gaussians from seed points, as gsplat begins: scales from the three nearest neighbours, opacity 0.1, colour as SH0.

Invariant: the same points give the same bits, for any number of threads. Neighbours are exact, in O(n log n).
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit, prange

from tidegs.gaussians.layout import BASE_COMPONENTS, BASE_FIELDS

SH_C0 = 0.28209479177387814  # 1 / (2 sqrt(pi)): the constant band of the spherical harmonics
NEIGHBOURS = 3
MIN_DISTANCE = math.sqrt(1e-7)  # floor for points that coincide, as INRIA's reference code takes it
_LEAF = 12  # rows below which a node of the tree is scanned
_STACK = 64  # deeper than a median-split tree of 2^62 rows


def from_points(xyz: np.ndarray, rgb: np.ndarray, init_scale: float = 1.0, init_opacity: float = 0.1) -> np.ndarray:
    """Points xyz float [n, 3] (scene frame), rgb uint8 [n, 3] -> float32 [n, 14]: means, quats, log scales, logit
    opacities, sh0, in the order of BASE_FIELDS.

    Scales are log(init_scale x root mean square distance to the three nearest points), the same on all axes, as in
    gsplat's simple_trainer. Quats are (1, 0, 0, 0): gsplat draws them at random, but a sphere looks alike from all
    sides, and fixed ones keep an untouched block a pure function of its points.
    """
    out = np.zeros((len(xyz), BASE_COMPONENTS), np.float32)
    out[:, BASE_FIELDS["means"]] = xyz
    out[:, BASE_FIELDS["quats"]] = (1.0, 0.0, 0.0, 0.0)
    distance = neighbour_distances(xyz).astype(np.float64)
    out[:, BASE_FIELDS["scales"]] = np.log(np.maximum(distance, MIN_DISTANCE) * init_scale)[:, None]
    out[:, BASE_FIELDS["opacities"]] = math.log(init_opacity / (1.0 - init_opacity))
    out[:, BASE_FIELDS["sh0"]] = (rgb / 255.0 - 0.5) / SH_C0
    return out


def neighbour_distances(xyz: np.ndarray) -> np.ndarray:
    """Root mean square distance of each point, float [n, 3], to its three nearest other points: float32 [n].

    Computed in float64 from the float32 coordinates. Of two or three points all others count; a lone point gets 1.
    """
    points = np.ascontiguousarray(xyz, np.float32)
    n = len(points)
    if n < 2:
        return np.ones(n, np.float32)
    order = np.arange(n)
    axes = np.zeros(n, np.uint8)
    _build(points, order, axes)
    out = np.empty(n, np.float32)
    _query(points[order], order, axes, min(NEIGHBOURS, n - 1), out)
    return out


@njit(cache=True)
def _build(points: np.ndarray, order: np.ndarray, axes: np.ndarray) -> None:
    """Sorts `order` into an implicit k-d tree: the middle row of each range splits it on axes[middle]."""
    stack = np.empty((_STACK, 2), np.int64)
    stack[0] = 0, len(order)
    top = 1
    while top:
        top -= 1
        first, last = stack[top]
        if last - first <= _LEAF:
            continue
        axis = _widest(points, order, first, last)
        middle = (first + last) // 2
        _select(points, order, axis, first, last - 1, middle)
        axes[middle] = axis
        stack[top] = first, middle
        stack[top + 1] = middle + 1, last
        top += 2


@njit(cache=True)
def _widest(points: np.ndarray, order: np.ndarray, first: int, last: int) -> int:
    axis, widest = 0, -1.0
    for k in range(3):
        lo = hi = points[order[first], k]
        for i in range(first + 1, last):
            value = points[order[i], k]
            lo, hi = min(lo, value), max(hi, value)
        if hi - lo > widest:
            axis, widest = k, hi - lo
    return axis


@njit(cache=True)
def _select(points: np.ndarray, order: np.ndarray, axis: int, lo: int, hi: int, nth: int) -> None:
    """Quickselect (Hoare 1961): order[nth] gets the value it has when sorted, no greater ones before it. Stopping at
    equal values keeps it linear for duplicates; the pivot is a median of three."""
    while hi > lo:
        a, b, c = points[order[lo], axis], points[order[(lo + hi) // 2], axis], points[order[hi], axis]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = lo, hi
        while i <= j:
            while points[order[i], axis] < pivot:
                i += 1
            while points[order[j], axis] > pivot:
                j -= 1
            if i <= j:
                order[i], order[j] = order[j], order[i]
                i += 1
                j -= 1
        if nth <= j:
            hi = j
        elif nth >= i:
            lo = i
        else:
            return


@njit(cache=True, parallel=True)
def _query(tree: np.ndarray, order: np.ndarray, axes: np.ndarray, k: int, out: np.ndarray) -> None:
    """For each row of the tree (points in tree order), the root mean square of its k least distances."""
    for i in prange(len(tree)):
        best = np.full(NEIGHBOURS, np.inf)  # ascending squares
        _nearest(tree, axes, i, k, best)
        total = 0.0
        for j in range(k):
            total += best[j]
        out[order[i]] = math.sqrt(total / k)


@njit(cache=True)
def _nearest(tree: np.ndarray, axes: np.ndarray, me: int, k: int, best: np.ndarray) -> None:
    """Depth-first, the near side first; a far side is skipped when its plane is no nearer than the k-th best."""
    ranges = np.empty((_STACK, 2), np.int64)
    planes = np.empty(_STACK)  # square distance to the plane behind which the range lies
    ranges[0] = 0, len(tree)
    planes[0] = 0.0
    top = 1
    while top:
        top -= 1
        first, last = ranges[top]
        if planes[top] >= best[k - 1]:
            continue
        if last - first <= _LEAF:
            for j in range(first, last):
                if j != me:
                    _offer(best, k, _square(tree, me, j))
            continue
        middle = (first + last) // 2
        if middle != me:
            _offer(best, k, _square(tree, me, middle))
        axis = axes[middle]
        away = np.float64(tree[me, axis]) - np.float64(tree[middle, axis])
        near, far = (first, middle), (middle + 1, last)
        if away > 0.0:
            near, far = far, near
        ranges[top], planes[top] = far, away * away
        ranges[top + 1], planes[top + 1] = near, 0.0
        top += 2


@njit(cache=True)
def _square(tree: np.ndarray, i: int, j: int) -> float:
    total = 0.0
    for axis in range(3):
        d = np.float64(tree[i, axis]) - np.float64(tree[j, axis])
        total += d * d
    return total


@njit(cache=True)
def _offer(best: np.ndarray, k: int, value: float) -> None:
    for j in range(k):
        if value < best[j]:
            best[j], value = value, best[j]
