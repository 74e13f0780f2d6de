"""How few loads any eviction rule could have done: Belady's MIN over the order of cameras that a run took.

Invariant: a lower bound for the given working sets: no cache of this capacity that starts empty loads fewer blocks.

A visit needs a set of blocks at once; what is missing is loaded, and what stays behind are those of nearest next use
(L. A. Belady, A study of replacement algorithms for a virtual-storage computer, 1966). A visit that needs more than the
capacity is counted once for each missing block, as if its passes needed no block twice.
"""

from __future__ import annotations

import heapq

import numba
import numpy as np

MOST_USES = 20_000_000  # of blocks by visits; a longer order is cut here


def least_loads(offsets: np.ndarray, ids: np.ndarray, order: np.ndarray, blocks: int, capacity: int) -> int:
    """Loads of the order (indices into the CSR working sets `offsets`, `ids`) with room for `capacity` blocks."""
    return int(_loads(offsets, ids, np.asarray(order, np.int64), blocks, capacity))


def cut(offsets: np.ndarray, order: np.ndarray, most: int = MOST_USES) -> np.ndarray:
    """As much of the order as has at most `most` uses of blocks, and at least one visit."""
    uses = np.cumsum(np.diff(offsets)[order])
    return order[: max(1, int(np.searchsorted(uses, most, side="right")))]


@numba.njit(nogil=True, cache=True)
def _next_visits(offsets: np.ndarray, ids: np.ndarray, order: np.ndarray, blocks: int) -> np.ndarray:
    """For each use along the order, the next visit that needs the same block, or the number of visits."""
    total = 0
    for view in order:
        total += offsets[view + 1] - offsets[view]
    out = np.empty(total, np.int64)
    seen = np.full(blocks, len(order), np.int64)
    at = total
    for t in range(len(order) - 1, -1, -1):
        view = order[t]
        at -= offsets[view + 1] - offsets[view]
        for i in range(offsets[view], offsets[view + 1]):
            out[at + i - offsets[view]] = seen[ids[i]]
        for i in range(offsets[view], offsets[view + 1]):
            seen[ids[i]] = t
    return out


@numba.njit(nogil=True, cache=True)
def _loads(offsets: np.ndarray, ids: np.ndarray, order: np.ndarray, blocks: int, capacity: int) -> int:
    later = _next_visits(offsets, ids, order, blocks)
    next_use = np.full(blocks, -1, np.int64)  # of resident blocks; -1 elsewhere
    heap = [(np.int64(1), np.int64(-1))]  # (-next use, block); entries whose next use has changed are stale
    heap.pop()
    loads, resident, at = 0, 0, 0
    for t in range(len(order)):
        first, last = offsets[order[t]], offsets[order[t] + 1]
        missing = 0
        for i in range(first, last):
            missing += next_use[ids[i]] < 0
        if last - first <= capacity:  # residents that this visit needs have the nearest next use of all, t, and stay
            resident -= _evict(heap, next_use, resident + missing - capacity, t)
        for i in range(first, last):
            next_use[ids[i]] = later[at]
            heapq.heappush(heap, (-later[at], np.int64(ids[i])))
            at += 1
        loads += missing
        resident += missing
        resident -= _evict(heap, next_use, resident - capacity, t)
    return loads


@numba.njit(nogil=True, cache=True)
def _evict(heap: list[tuple[int, int]], next_use: np.ndarray, count: int, now: int) -> int:
    """Drops up to `count` residents of farthest next use, later than visit `now`; returns how many."""
    dropped = 0
    while dropped < count and len(heap) and -heap[0][0] > now:
        use, b = heapq.heappop(heap)
        if next_use[b] == -use:
            next_use[b] = -1
            dropped += 1
    return dropped
