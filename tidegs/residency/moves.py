"""The moves that bring blocks into the arena and make room for them: compiled.

Invariants: pinned blocks do not leave the arena; victims are the blocks of farthest next use (Belady 1966), at both
tiers; after each call at least `staging` host slots hold no block, so that every move has a slot to pass through.
"""

from __future__ import annotations

import numba
import numpy as np

from tidegs.residency.index import NEVER, NextUse
from tidegs.residency.state import (
    ARENA,
    HOST,
    LEAVING,
    STORE,
    State,
    enter_arena,
    enter_host,
    farthest,
    leave_arena,
    leave_host,
    pass_over,
    pop_arena,
    pop_host,
    push_host,
    rank,
)

READ, UPLOAD, DOWNLOAD, WRITE = 0, 1, 2, 3  # store -> host, host -> arena, arena -> host, host -> store
FETCH, STOW = 4, 5  # store -> arena, arena -> store, past the host tier: what `shorten` makes of two moves
_DROP, _WRITE_THROUGH, _KEEP = 0, 1, 2  # what becomes of a victim of the arena

# Columns of a list of moves, int32 [n, 6]. Moves of one kind and batch do not depend on one another; ARENA_SLOT is -1
# where the kind has none; a WRITE in the middle of a step has SCRATCH set: the scratch planes go along.
KIND, BATCH, BLOCK, ARENA_SLOT, HOST_SLOT, SCRATCH = range(6)
NO_MOVES = np.empty((0, 6), np.int32)


@numba.njit(nogil=True, cache=True)
def _emit(moves: np.ndarray, at: int, kind: int, batch: int, block: int, arena: int, host: int) -> int:
    moves[at, 0], moves[at, 1], moves[at, 2] = kind, batch, block
    moves[at, 3], moves[at, 4], moves[at, 5] = arena, host, 0
    return at + 1


@numba.njit(nogil=True, cache=True)
def _write(s: State, b: int, moves: np.ndarray, at: int, batch: int) -> int:
    """Writes a block from its host slot. With live scratch planes it stays dirty: a snapshot must not hold it so."""
    at = _emit(moves, at, WRITE, batch, b, -1, s.slot[b])
    moves[at - 1, SCRATCH] = s.live[b]
    s.dirty[b] = s.live[b]
    return at


@numba.njit(nogil=True, cache=True)
def _shrink_host(s: State, leavers: np.ndarray, chunk: int, moves: np.ndarray, batch: int) -> tuple[int, int]:
    """Those of `leavers` that are in the host tier go; returns (moves, batch)."""
    at = 0
    for b in leavers:
        if s.where[b] == HOST:
            if s.dirty[b]:
                at = _write(s, b, moves, at, batch + at // chunk)
            leave_host(s, b)
    return at, batch + 1 + at // chunk


@numba.njit(nogil=True, cache=True)
def _evict(s: State, victims: np.ndarray, fates: np.ndarray, moves: np.ndarray, at: int, batch: int) -> int:
    """Takes victims out of the arena."""
    for i in range(len(victims)):
        b = victims[i]
        a = leave_arena(s, b)
        if fates[i] != _DROP:
            h = pop_host(s)
            enter_host(s, b, h)
            at = _emit(moves, at, DOWNLOAD, batch, b, a, h)
    for i in range(len(victims)):
        if fates[i] == _WRITE_THROUGH:
            at = _write(s, victims[i], moves, at, batch)
            leave_host(s, victims[i])
    return at


@numba.njit(nogil=True, cache=True)
def _bring(s: State, blocks: np.ndarray, moves: np.ndarray, at: int, batch: int) -> int:
    """Loads blocks into free arena slots: from the host tier, or through it from the store."""
    hosts = np.empty(len(blocks), np.int32)
    for i in range(len(blocks)):
        b = blocks[i]
        if s.where[b] == STORE:
            hosts[i] = pop_host(s)
            at = _emit(moves, at, READ, batch, b, -1, hosts[i])
    for i in range(len(blocks)):
        b = blocks[i]
        if s.where[b] == STORE:
            push_host(s, hosts[i])
        else:
            hosts[i] = s.slot[b]
            leave_host(s, b)
        enter_arena(s, b, pop_arena(s))
        at = _emit(moves, at, UPLOAD, batch, b, s.slot[b], hosts[i])
    return at


@numba.njit(nogil=True, cache=True)
def _worth_keeping(s: State, b: int) -> bool:
    """A clean block that is never needed again is not worth a copy."""
    return s.dirty[b] or s.key[b] < NEVER


@numba.njit(nogil=True, cache=True)
def _leavers(s: State, index: NextUse, victims: np.ndarray, room: int, now: float) -> np.ndarray:
    """Of the host's blocks and the arena's victims, those that the host tier cannot keep."""
    hosts = len(s.host_block)
    used = hosts - s.rings[3]
    ranks = np.empty(hosts + len(victims))
    for i in range(len(victims)):
        keep = _worth_keeping(s, victims[i])
        used += keep
        ranks[hosts + i] = rank(s, victims[i]) if keep else -1.0
    if used <= room:
        return np.empty(0, np.int32)
    pass_over(s, index, s.host_rank, s.host_block, now)
    ranks[:hosts] = s.host_rank
    out = farthest(ranks, used - room)
    for i in range(len(out)):
        out[i] = s.host_block[out[i]] if out[i] < hosts else victims[out[i] - hosts]
    return out


@numba.njit(nogil=True, cache=True)
def _order_victims(s: State, victims: np.ndarray, leavers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Victims that are dropped, then those written through, then those kept; and their fates.

    Kept ones come last, when promoted blocks have left the host tier, so that it never overflows on the way."""
    for b in leavers:
        if s.where[b] == ARENA:
            s.where[b] = LEAVING
    fates = np.empty(len(victims), np.int32)
    for i in range(len(victims)):
        b = victims[i]
        if s.where[b] == LEAVING or not _worth_keeping(s, b):
            fates[i] = _WRITE_THROUGH if s.dirty[b] else _DROP
        else:
            fates[i] = _KEEP
        s.where[b] = ARENA
    order = np.argsort(fates, kind="mergesort")
    return victims[order], fates[order]


@numba.njit(nogil=True, cache=True)
def _victims(s: State, index: NextUse, n: int, now: float, patient: bool) -> np.ndarray:
    """Blocks of the arena to evict: at most the `n` of farthest next use, none of them pinned.

    Patient: a block that is pinned by passes before the last one takes its place among the `n` if its next use is far
    enough; then fewer come back, and the caller asks again when it is free. Impatient: others go in its stead."""
    pass_over(s, index, s.arena_rank, s.arena_block, now)
    ranks = s.arena_rank
    if patient:
        ranks = ranks.copy()
        for slot in range(len(ranks)):
            b = s.arena_block[slot]
            if ranks[slot] < 0 and b >= 0 and s.turn[b] != s.turns[0]:
                ranks[slot] = s.key[b]
    slots = farthest(ranks, n)
    out = np.empty(len(slots), np.int32)
    count = 0
    for slot in slots:
        if s.arena_rank[slot] >= 0:
            out[count] = s.arena_block[slot]
            count += 1
    return out[:count]


@numba.njit(nogil=True, cache=True)
def _pick(s: State, blocks: np.ndarray, tier: int, out: np.ndarray, count: int) -> int:
    """Adds the blocks of a tier to `out` until it is full; returns how many it holds."""
    for b in blocks:
        if s.where[b] == tier and count < len(out):
            out[count] = b
            count += 1
    return count


@numba.njit(nogil=True, cache=True)
def load(
    s: State,
    index: NextUse,
    missing: np.ndarray,
    n: int,
    now: float,
    patient: bool,
    staging: int,
    chunk: int,
    moves: np.ndarray,
) -> tuple[int, int]:
    """Brings up to `n` of the blocks `missing`; fills `moves`; returns how many moves and how many blocks."""
    victims = np.empty(0, np.int32)
    if n > s.rings[1]:
        victims = _victims(s, index, n - s.rings[1], now, patient)
        n = min(n, s.rings[1] + len(victims))
    loads = np.empty(n, np.int32)
    promoted = _pick(s, missing, HOST, loads, 0)  # first, as they make room in the host tier
    _pick(s, missing, STORE, loads, promoted)

    for b in loads[:promoted]:
        s.host_rank[s.slot[b]] = -1.0
    leavers = _leavers(s, index, victims, len(s.host_block) - staging + promoted, now)
    at, batch = _shrink_host(s, leavers, chunk, moves, 0)
    victims, fates = _order_victims(s, victims, leavers)
    evicted = 0
    for first in range(0, n, chunk):
        part = loads[first : first + chunk]
        more = evicted + max(0, len(part) - s.rings[1])
        at = _evict(s, victims[evicted:more], fates[evicted:more], moves, at, batch)
        at = _bring(s, part, moves, at, batch)
        evicted, batch = more, batch + 1
    return at, n


@numba.njit(nogil=True, cache=True)
def clean(s: State, dirty: np.ndarray, chunk: int, moves: np.ndarray) -> int:
    """Writes blocks to the store; they stay where they are."""
    at = 0
    for first in range(0, len(dirty), chunk):
        part = dirty[first : first + chunk]
        hosts = np.empty(len(part), np.int32)
        for i in range(len(part)):
            b = part[i]
            hosts[i] = s.slot[b]
            if s.where[b] == ARENA:
                hosts[i] = pop_host(s)
                at = _emit(moves, at, DOWNLOAD, first, b, s.slot[b], hosts[i])
        for i in range(len(part)):
            b = part[i]
            at = _emit(moves, at, WRITE, first, b, -1, hosts[i])
            s.dirty[b] = False
            if s.where[b] == ARENA:
                push_host(s, hosts[i])
    return at


@numba.njit(nogil=True, cache=True)
def lend(s: State, ids: np.ndarray, hosts: np.ndarray, moves: np.ndarray) -> int:
    at = 0
    for i in range(len(ids)):
        b = ids[i]
        if s.where[b] == HOST:
            hosts[i] = s.slot[b]
        else:
            hosts[i] = pop_host(s)
            in_arena = s.where[b] == ARENA
            at = _emit(moves, at, DOWNLOAD if in_arena else READ, 0, b, s.slot[b], hosts[i])
    return at


@numba.njit(nogil=True, cache=True)
def give_back(s: State, hosts: np.ndarray) -> None:
    for h in hosts:
        push_host(s, h)


@numba.njit(nogil=True, cache=True)
def shorten(moves: np.ndarray, can_fetch: np.ndarray, host_slots: int) -> np.ndarray:
    """The moves without detours through the host tier: READ and UPLOAD of a block become FETCH where `can_fetch` [n]
    allows, DOWNLOAD and WRITE become STOW. For tiers whose host slots keep no block: what came down is written, and no
    other block has been in the slot meanwhile."""
    first = np.full(host_slots, -1, np.int32)  # the move that last filled each host slot
    kept = np.ones(len(moves), np.bool_)
    out = moves.copy()
    for i in range(len(moves)):
        kind, host = moves[i, 0], moves[i, 4]
        before = first[host]
        if kind in (READ, DOWNLOAD):
            first[host] = i
        elif before >= 0 and moves[before, 2] == moves[i, 2]:
            if kind == UPLOAD and moves[before, 0] == READ and can_fetch[i]:
                out[i, 0], out[i, 4], kept[before] = FETCH, -1, False
            elif kind == WRITE and moves[before, 0] == DOWNLOAD:
                out[i, 0], out[i, 3], out[i, 4], kept[before] = STOW, moves[before, 3], -1, False
    return out[kept]
