"""Who is where: the arrays that the planner's kernels share.

Invariants: a block is in the store, in one host slot or in one arena slot, never in two; `arena_rank` and `host_rank`
say for each slot how gladly it gives up its block.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from tidegs.residency.index import NEVER, NextUse, first_use_after, use_after, uses_after

STORE, HOST, ARENA, LEAVING = 0, 1, 2, 3  # LEAVING: for the time of a call
_EMPTY, _PINNED = -1.0, -1.0
_AWAITED = 0.0  # in the host tier, and a pass to come has it pinned


class State(NamedTuple):
    """One entry a block, or one a slot."""

    where: np.ndarray  # uint8 [blocks]: STORE, HOST or ARENA
    slot: np.ndarray  # int32 [blocks]: host or arena slot, -1 in the store
    dirty: np.ndarray  # bool [blocks]: newer than the store's record
    live: np.ndarray  # bool [blocks]: between its first and last backward pass of a step; scratch planes count
    pins: np.ndarray  # int32 [blocks]: admitted passes that need it
    key: np.ndarray  # float64 [blocks]: next use after the passes admitted so far
    turn: np.ndarray  # int64 [blocks]: the last `pin` that it was in
    turns: np.ndarray  # int64 [1]: pins so far
    arena_block: np.ndarray  # int32 [arena slots]: block or -1
    arena_rank: np.ndarray  # float64 [arena slots]: next use; later is gladlier; negative: not to be taken
    host_block: np.ndarray  # int32 [host slots]
    host_rank: np.ndarray  # float64 [host slots]
    arena_free: np.ndarray  # int32 [arena slots]: ring of free slots
    host_free: np.ndarray  # int32 [host slots]
    rings: np.ndarray  # int64 [4]: first, count of arena_free; first, count of host_free


_OF_BLOCKS = ("where", "slot", "dirty", "live", "pins", "key", "turn")  # fields with one entry a block


def new_state(blocks: int, arena_slots: int, host_slots: int) -> State:
    """Everything in the store."""
    return State(
        where=np.zeros(blocks, np.uint8),
        slot=np.full(blocks, -1, np.int32),
        dirty=np.zeros(blocks, np.bool_),
        live=np.zeros(blocks, np.bool_),
        pins=np.zeros(blocks, np.int32),
        key=np.full(blocks, NEVER),
        turn=np.zeros(blocks, np.int64),
        turns=np.zeros(1, np.int64),
        arena_block=np.full(arena_slots, -1, np.int32),
        arena_rank=np.full(arena_slots, _EMPTY),
        host_block=np.full(host_slots, -1, np.int32),
        host_rank=np.full(host_slots, _EMPTY),
        arena_free=np.arange(arena_slots, dtype=np.int32),
        host_free=np.arange(host_slots, dtype=np.int32),
        rings=np.array([0, arena_slots, 0, host_slots], np.int64),
    )


def grown(s: State, blocks: int) -> State:
    """The same with entries for blocks up to id `blocks` (exclusive), which are in the store."""
    fresh = new_state(max(blocks, len(s.where) * 5 // 4) - len(s.where), 0, 0)
    return s._replace(**{name: np.concatenate([getattr(s, name), getattr(fresh, name)]) for name in _OF_BLOCKS})


@numba.njit(nogil=True, cache=True)
def forget(s: State, ids: np.ndarray) -> None:
    """Blocks that died: whatever holds them is free."""
    for b in ids:
        if s.where[b] == ARENA:
            leave_arena(s, b)
        elif s.where[b] == HOST:
            leave_host(s, b)
        s.dirty[b] = False
        s.key[b] = NEVER


# -- slots ----------------------------------------------------------------------------------------------------------


@numba.njit(nogil=True, cache=True)
def pop_arena(s: State) -> int:
    return _pop(s.arena_free, s.rings[0:2])


@numba.njit(nogil=True, cache=True)
def pop_host(s: State) -> int:
    return _pop(s.host_free, s.rings[2:4])


@numba.njit(nogil=True, cache=True)
def push_host(s: State, slot: int) -> None:
    _push(s.host_free, s.rings[2:4], slot)


@numba.njit(nogil=True, cache=True)
def _pop(ring: np.ndarray, head: np.ndarray) -> int:
    slot = ring[head[0]]
    head[0] = (head[0] + 1) % len(ring)
    head[1] -= 1
    return slot


@numba.njit(nogil=True, cache=True)
def _push(ring: np.ndarray, head: np.ndarray, slot: int) -> None:
    ring[(head[0] + head[1]) % len(ring)] = slot
    head[1] += 1


@numba.njit(nogil=True, cache=True)
def enter_arena(s: State, b: int, slot: int) -> None:
    s.where[b], s.slot[b], s.arena_block[slot] = ARENA, slot, b
    s.arena_rank[slot] = rank(s, b)


@numba.njit(nogil=True, cache=True)
def enter_host(s: State, b: int, slot: int) -> None:
    s.where[b], s.slot[b], s.host_block[slot] = HOST, slot, b
    s.host_rank[slot] = rank(s, b)


@numba.njit(nogil=True, cache=True)
def leave_arena(s: State, b: int) -> int:
    """Frees the block's arena slot; returns it."""
    slot = s.slot[b]
    s.arena_block[slot], s.arena_rank[slot] = -1, _EMPTY
    _push(s.arena_free, s.rings[0:2], slot)
    s.where[b], s.slot[b] = STORE, -1
    return slot


@numba.njit(nogil=True, cache=True)
def leave_host(s: State, b: int) -> None:
    """Frees the block's host slot."""
    slot = s.slot[b]
    s.host_block[slot], s.host_rank[slot] = -1, _EMPTY
    push_host(s, slot)
    s.where[b], s.slot[b] = STORE, -1


# -- ranks ----------------------------------------------------------------------------------------------------------


@numba.njit(nogil=True, cache=True)
def rank(s: State, b: int) -> float:
    """How far the block's next use is; of those never used again, clean ones are the farthest."""
    if s.pins[b] > 0:
        return _PINNED if s.where[b] == ARENA else _AWAITED
    if s.key[b] >= NEVER and not s.dirty[b]:
        return 2 * NEVER
    return s.key[b]


@numba.njit(nogil=True, cache=True)
def _rank_again(s: State, b: int) -> None:
    if s.where[b] == ARENA:
        s.arena_rank[s.slot[b]] = rank(s, b)
    elif s.where[b] == HOST:
        s.host_rank[s.slot[b]] = rank(s, b)


@numba.njit(nogil=True, cache=True)
def pin(s: State, index: NextUse, ids: np.ndarray, later: np.ndarray, visit: int, after: int) -> None:
    s.turns[0] += 1
    keys = np.empty(len(ids))
    uses_after(index, ids, visit, after, keys)
    for i in range(len(ids)):
        b = ids[i]
        s.pins[b] += 1
        s.turn[b] = s.turns[0]
        s.key[b] = later[i] if len(later) and later[i] > 0 else keys[i]
        _rank_again(s, b)


@numba.njit(nogil=True, cache=True)
def unpin(s: State, ids: np.ndarray) -> None:
    for b in ids:
        s.pins[b] -= 1
        _rank_again(s, b)


@numba.njit(nogil=True, cache=True)
def retract(s: State, ids: np.ndarray, time: float) -> None:
    for b in ids:
        s.pins[b] -= 1
        s.key[b] = time
        _rank_again(s, b)


@numba.njit(nogil=True, cache=True)
def renew_keys(s: State, index: NextUse, after: float) -> None:
    """Takes the next uses of all resident blocks from a new index."""
    for blocks in (s.arena_block, s.host_block):
        for b in blocks:
            if b >= 0:
                s.key[b] = first_use_after(index, b, after)
                _rank_again(s, b)


@numba.njit(nogil=True, cache=True)
def pass_over(s: State, index: NextUse, ranks: np.ndarray, blocks: np.ndarray, now: float) -> None:
    """Where a predicted use did not come true, looks for the one after."""
    for slot in range(len(ranks)):
        if 0 <= ranks[slot] <= now:
            b = blocks[slot]
            if s.pins[b] == 0:
                s.key[b] = use_after(index, b, s.key[b], now)
                ranks[slot] = rank(s, b)


@numba.njit(nogil=True, cache=True)
def farthest(ranks: np.ndarray, n: int) -> np.ndarray:
    """Places of the `n` greatest ranks that are not negative, or of as many as there are; in no order."""
    if n <= 0:
        return np.empty(0, np.int32)
    heap = np.empty(min(n, len(ranks)), np.int32)  # the nearest of those found so far is on top
    count = 0
    for i in range(len(ranks)):
        if ranks[i] < 0:
            continue
        if count < len(heap):
            at = count
            count += 1
            while at > 0 and ranks[heap[(at - 1) // 2]] > ranks[i]:
                heap[at] = heap[(at - 1) // 2]
                at = (at - 1) // 2
            heap[at] = i
        elif ranks[i] > ranks[heap[0]]:
            at = 0
            while 2 * at + 1 < count:
                child = 2 * at + 1
                if child + 1 < count and ranks[heap[child + 1]] < ranks[heap[child]]:
                    child += 1
                if ranks[heap[child]] >= ranks[i]:
                    break
                heap[at] = heap[child]
                at = child
            heap[at] = i
    return heap[:count]
