"""When a block is needed next, along a known order of cameras.

Invariant: built from predicted working sets, so it steers evictions only; what a step needs is checked when it starts.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

NEVER = 1e18  # later than any visit
_NONE = np.iinfo(np.int32).max


class NextUse(NamedTuple):
    """For each visit and each block that it needs, the next visit that needs the block.

    A visit is one camera of one step. Visits base, base + 1, ... need the working sets number `order[i]` of the CSR
    `offsets`, `ids`; `later[starts[i]:]` runs along that set. All visits inside are relative to `base`.
    """

    offsets: np.ndarray  # int64 [views + 1]
    ids: np.ndarray  # int32 [entries], ascending in each view
    order: np.ndarray  # int64 [visits]
    starts: np.ndarray  # int64 [visits + 1]
    later: np.ndarray  # int32 [uses]; _NONE where there is no later visit
    first: np.ndarray  # int32 [blocks], first visit of all
    base: int

    def grown(self, blocks: int) -> NextUse:
        """The same for more blocks; nothing is known of the new ones."""
        more = blocks - len(self.first)
        return self if more <= 0 else self._replace(first=np.concatenate([self.first, np.full(more, _NONE, np.int32)]))


def empty_index(blocks: int) -> NextUse:
    """An index that knows no visits: no block is ever used again."""
    return build_index(np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.int64), blocks, 0)


def build_index(offsets: np.ndarray, ids: np.ndarray, order: np.ndarray, blocks: int, base: int) -> NextUse:
    """The index of visits base + i that need the working sets number order[i] (int) of `offsets`, `ids` (CSR, as from
    `visibility.working_sets`). 4 bytes a use."""
    order = np.asarray(order, np.int64)
    starts = np.zeros(len(order) + 1, np.int64)
    np.cumsum((offsets[1:] - offsets[:-1])[order], out=starts[1:])
    later = np.empty(starts[-1], np.int32)
    first = np.full(blocks, _NONE, np.int32)
    _link_uses(offsets, ids, order, starts, later, first)
    return NextUse(offsets, ids, order, starts, later, first, base)


@numba.njit(nogil=True, cache=True)
def _link_uses(
    offsets: np.ndarray, ids: np.ndarray, order: np.ndarray, starts: np.ndarray, later: np.ndarray, first: np.ndarray
) -> None:
    for t in range(len(order) - 1, -1, -1):
        begin = offsets[order[t]]
        for i in range(starts[t + 1] - starts[t]):
            b = ids[begin + i]
            later[starts[t] + i] = first[b]
            first[b] = t


@numba.njit(nogil=True, cache=True)
def uses_after(index: NextUse, blocks: np.ndarray, visit: int, after: int, out: np.ndarray) -> None:
    """out[i] = the first visit later than `after` that needs blocks[i] (ascending), all of them needed by `visit`."""
    t = visit - index.base
    if t < 0 or t >= len(index.order):
        out[: len(blocks)] = NEVER
        return
    at, end = index.offsets[index.order[t]], index.offsets[index.order[t] + 1]
    shift = index.starts[t] - at
    for i in range(len(blocks)):
        while at < end and index.ids[at] < blocks[i]:
            at += 1
        if at < end and index.ids[at] == blocks[i]:
            out[i] = _follow(index, blocks[i], index.later[at + shift], after)
        else:  # not foreseen: nothing is known of it
            out[i] = NEVER


@numba.njit(nogil=True, cache=True)
def use_after(index: NextUse, block: int, known: float, after: float) -> float:
    """The first visit later than `after` that needs the block, which is needed by visit `known` <= after."""
    if known >= NEVER:
        return NEVER
    return _follow(index, block, np.int64(known) - index.base, after)


@numba.njit(nogil=True, cache=True)
def first_use_after(index: NextUse, block: int, after: float) -> float:
    """The first visit later than `after` that needs the block; `after` should be near the index's base."""
    return _follow(index, block, index.first[block], after)


@numba.njit(nogil=True, cache=True)
def _follow(index: NextUse, block: int, t: int, after: float) -> float:
    """Goes along the uses of a block, from visit `t`, until one is later than `after`."""
    while t != _NONE and t + index.base <= after:
        if t < 0 or t >= len(index.order):
            return NEVER
        begin, end = index.offsets[index.order[t]], index.offsets[index.order[t] + 1]
        at = begin + np.searchsorted(index.ids[begin:end], block)
        if at == end or index.ids[at] != block:
            return NEVER
        t = np.int64(index.later[index.starts[t] + at - begin])
    return np.float64(t + index.base) if t != _NONE else NEVER
