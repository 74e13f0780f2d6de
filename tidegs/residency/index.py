"""When a block is needed next, along a known order of cameras.

Invariant: built from predicted working sets, so it steers evictions only; what a step needs is checked when it starts.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

NEVER = 1e18  # later than any visit


class NextUse(NamedTuple):
    """Visits of each block, ascending, as CSR: `times[offsets[b]:offsets[b + 1]]` relative to `base`.

    A visit is one camera of one step; visits are numbered along the order. `cursor` moves forward with the queries.
    """

    offsets: np.ndarray  # int64 [blocks + 1]
    times: np.ndarray  # int32 [uses]
    cursor: np.ndarray  # int64 [blocks]
    base: int


def empty_index(blocks: int) -> NextUse:
    """An index that knows no visits: no block is ever used again."""
    return NextUse(np.zeros(blocks + 1, np.int64), np.empty(0, np.int32), np.zeros(blocks, np.int64), 0)


def build_index(offsets: np.ndarray, ids: np.ndarray, order: np.ndarray, blocks: int, base: int) -> NextUse:
    """The index of visits base, base + 1, ...: visit base + i needs the working set (CSR `offsets`, `ids`, as from
    `visibility.working_sets`) number order[i] (int)."""
    starts, times = _invert(offsets, ids, np.asarray(order, np.int64), blocks)
    return NextUse(starts, times, starts[:-1].copy(), base)


@numba.njit(nogil=True, cache=True)
def _invert(offsets: np.ndarray, ids: np.ndarray, order: np.ndarray, blocks: int) -> tuple[np.ndarray, np.ndarray]:
    repeats = np.zeros(len(offsets) - 1, np.int64)
    for view in order:
        repeats[view] += 1
    starts = np.zeros(blocks + 1, np.int64)
    for view in range(len(repeats)):
        for i in range(offsets[view], offsets[view + 1]):
            starts[ids[i] + 1] += repeats[view]
    for b in range(blocks):
        starts[b + 1] += starts[b]
    at = starts[:-1].copy()
    times = np.empty(starts[-1], np.int32)
    for t in range(len(order)):
        view = order[t]
        for i in range(offsets[view], offsets[view + 1]):
            b = ids[i]
            times[at[b]] = t
            at[b] += 1
    return starts, times


@numba.njit(nogil=True, cache=True)
def next_use(index: NextUse, block: int, after: float) -> float:
    """The first visit later than `after` that needs the block, or NEVER. For each block, ask in ascending order."""
    at, end = index.cursor[block], index.offsets[block + 1]
    while at < end and index.times[at] + index.base <= after:
        at += 1
    index.cursor[block] = at
    return np.float64(index.times[at] + index.base) if at < end else NEVER
