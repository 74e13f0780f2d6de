"""Tours through all cameras: near ones after another, or those that miss the fewest blocks.

Invariant: a tour is a permutation of the cameras; the same input gives the same tour.
"""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np

from tidegs.device.base import View


def locality_tour(views: Sequence[View]) -> np.ndarray:
    """A nearest-neighbour tour by position and viewing direction, int32 [views]. Turning by a right angle counts as
    much as going four typical distances between neighbours. 50,000 views take some seconds."""
    viewmats = np.stack([np.asarray(v.viewmat, np.float64) for v in views])
    rotations = viewmats[:, :3, :3]
    positions = -np.einsum("nji,nj->ni", rotations, viewmats[:, :3, 3])
    sample = positions[:: max(1, len(views) // 256)]
    squares = ((sample[:, None] - positions[None]) ** 2).sum(-1)
    squares[squares == 0] = np.inf
    nearest = squares.min(1)
    scale = float(np.median(nearest[np.isfinite(nearest)])) if np.isfinite(nearest).any() else 1.0
    features = np.concatenate([positions / np.sqrt(scale), rotations[:, 2] * np.sqrt(8)], 1)
    first = int(np.argmin(features @ np.linspace(1, 2, features.shape[1])))
    return _nearest_neighbours(np.ascontiguousarray(features.T.astype(np.float32)), first)


@numba.njit(nogil=True, cache=True)
def _nearest_neighbours(features: np.ndarray, first: int) -> np.ndarray:
    n = features.shape[1]
    left = np.arange(n).astype(np.int32)
    rest = features.copy()
    out = np.empty(n, np.int32)
    at = first
    for i in range(n):
        out[i] = left[at]
        here = rest[:, at].copy()
        last = n - 1 - i
        left[at] = left[last]
        rest[:, at] = rest[:, last]
        best = np.float32(np.inf)
        for j in range(last):
            d = np.float32(0)
            for k in range(6):
                d += (rest[k, j] - here[k]) * (rest[k, j] - here[k])
            if d < best:
                best = d
                at = j
    return out


def cache_tour(offsets: np.ndarray, ids: np.ndarray, blocks: int, capacity: int) -> np.ndarray:
    """A greedy tour for a cache of `capacity` blocks, int32 [views]: the next view is the one that misses the fewest
    blocks. Working sets as CSR (`visibility.working_sets`). The simulated cache drops blocks that no view left needs,
    then those used longest ago. Miss counts are kept through the inverted lists (block to views). 50,000 views of 1,400
    blocks each take some seconds."""
    starts, users = _invert(offsets, ids, blocks)
    return _cache_tour(offsets, ids, starts, users, capacity)


@numba.njit(nogil=True, cache=True)
def _invert(offsets: np.ndarray, ids: np.ndarray, blocks: int) -> tuple[np.ndarray, np.ndarray]:
    """The views that need each block, as CSR."""
    starts = np.zeros(blocks + 1, np.int64)
    for b in ids:
        starts[b + 1] += 1
    for b in range(blocks):
        starts[b + 1] += starts[b]
    at = starts[:-1].copy()
    users = np.empty(len(ids), np.int32)
    for view in range(len(offsets) - 1):
        for i in range(offsets[view], offsets[view + 1]):
            users[at[ids[i]]] = view
            at[ids[i]] += 1
    return starts, users


@numba.njit(nogil=True, cache=True)
def _cache_tour(
    offsets: np.ndarray, ids: np.ndarray, starts: np.ndarray, users: np.ndarray, capacity: int
) -> np.ndarray:
    n, blocks = len(offsets) - 1, len(starts) - 1
    out = np.empty(n, np.int32)
    missing = (offsets[1:] - offsets[:-1]).astype(np.int32)  # blocks of each view left that are not cached
    left = (starts[1:] - starts[:-1]).astype(np.int32)  # views left that need each block
    # Cached blocks as a ring of links from the one used last to the one used first; entry `blocks` is its head.
    newer, older = np.full(blocks + 1, -1, np.int32), np.full(blocks + 1, -1, np.int32)
    newer[blocks] = older[blocks] = blocks
    cached = 0
    for i in range(n):
        view = _least(missing)
        out[i] = view
        for j in range(offsets[view], offsets[view + 1]):
            b = ids[j]
            left[b] -= 1
            if newer[b] >= 0:
                _unlink(newer, older, b)
            else:
                cached += 1
                _count(missing, users[starts[b] : starts[b + 1]], -1)
            _link(newer, older, b, blocks)
        missing[view] = _VISITED
        for j in range(offsets[view], offsets[view + 1]):
            b = ids[j]
            if left[b] == 0:
                _unlink(newer, older, b)
                cached -= 1
        while cached > capacity:
            b = newer[blocks]
            _unlink(newer, older, b)
            cached -= 1
            _count(missing, users[starts[b] : starts[b + 1]], 1)
    return out


_VISITED = 1 << 30


@numba.njit(nogil=True, cache=True)
def _least(missing: np.ndarray) -> int:
    least = missing.min()
    for i in range(len(missing)):
        if missing[i] == least:
            return i
    return 0


@numba.njit(nogil=True, cache=True)
def _count(missing: np.ndarray, views: np.ndarray, change: int) -> None:
    for view in views:
        if missing[view] < _VISITED:
            missing[view] += change


@numba.njit(nogil=True, cache=True)
def _link(newer: np.ndarray, older: np.ndarray, b: int, head: int) -> None:
    """Makes b the newest: behind the head in the direction of `older`."""
    first = older[head]
    older[head], newer[b] = b, head
    older[b], newer[first] = first, b


@numba.njit(nogil=True, cache=True)
def _unlink(newer: np.ndarray, older: np.ndarray, b: int) -> None:
    older[newer[b]], newer[older[b]] = older[b], newer[b]
    newer[b] = older[b] = -1
