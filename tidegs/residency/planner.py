"""Who is where, logically: decides each load and each eviction, and lists the moves that carry it out.

Invariants: a block is in the store, in one host slot or in one arena slot, never in two; pinned blocks do not leave the
arena; victims are the blocks of farthest next use (Belady 1966), at both tiers; at least `staging` host slots hold no
block after each call, so that every move has a slot to pass through. Nothing here depends on time or on transfers.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from tidegs.residency.index import NEVER, NextUse, empty_index, next_use

STORE, HOST, ARENA, _LEAVING = 0, 1, 2, 3
READ, UPLOAD, DOWNLOAD, WRITE = 0, 1, 2, 3  # store -> host, host -> arena, arena -> host, host -> store
DROP, WRITE_THROUGH, KEEP = 0, 1, 2  # what becomes of a victim of the arena

# Columns of a list of moves, int32 [n, 6]. Moves of one kind and batch do not depend on one another; ARENA_SLOT is -1
# where the kind has none; a WRITE in the middle of a step has SCRATCH set: the scratch planes go along.
KIND, BATCH, BLOCK, ARENA_SLOT, HOST_SLOT, SCRATCH = range(6)
NO_MOVES = np.empty((0, 6), np.int32)


class State(NamedTuple):
    """Arrays of the kernels; one entry a block, or one a slot."""

    where: np.ndarray  # uint8 [blocks]: STORE, HOST or ARENA
    slot: np.ndarray  # int32 [blocks]: host or arena slot, -1 in the store
    dirty: np.ndarray  # bool [blocks]: newer than the store's record
    live: np.ndarray  # bool [blocks]: between its first and last backward pass of a step; scratch planes count
    pins: np.ndarray  # int32 [blocks]: admitted passes that need it
    key: np.ndarray  # float64 [blocks]: next use after the passes admitted so far
    arena_block: np.ndarray  # int32 [arena slots]: block or -1
    host_block: np.ndarray  # int32 [host slots]
    arena_free: np.ndarray  # int32 [arena slots]: ring of free slots
    host_free: np.ndarray  # int32 [host slots]
    rings: np.ndarray  # int64 [4]: first, count of arena_free; first, count of host_free


class Planner:
    """The state of both tiers. Not thread-safe."""

    def __init__(self, blocks: int, arena_slots: int, host_slots: int, chunk: int = 16) -> None:
        """`chunk`: most blocks of a batch of moves; it is lowered where the host tier is small."""
        self.arena_slots, self.host_slots = arena_slots, host_slots
        self.staging = max(1, min(4 * chunk, host_slots // 4))
        self.chunk = max(1, min(chunk, self.staging // 2))
        self.index = empty_index(blocks)
        self.state = State(
            where=np.zeros(blocks, np.uint8),
            slot=np.full(blocks, -1, np.int32),
            dirty=np.zeros(blocks, np.bool_),
            live=np.zeros(blocks, np.bool_),
            pins=np.zeros(blocks, np.int32),
            key=np.full(blocks, NEVER),
            arena_block=np.full(arena_slots, -1, np.int32),
            host_block=np.full(host_slots, -1, np.int32),
            arena_free=np.arange(arena_slots, dtype=np.int32),
            host_free=np.arange(host_slots, dtype=np.int32),
            rings=np.array([0, arena_slots, 0, host_slots], np.int64),
        )

    @property
    def arena_used(self) -> int:
        return self.arena_slots - int(self.state.rings[1])

    @property
    def host_used(self) -> int:
        return self.host_slots - int(self.state.rings[3])

    def missing(self, ids: np.ndarray) -> np.ndarray:
        """Those of `ids` that are not in the arena."""
        return ids[self.state.where[ids] != ARENA]

    def admit(self, ids: np.ndarray, later: np.ndarray | None, after: float) -> None:
        """Pins the blocks of a pass, and sets their next use: `later` [n] where the same step needs them again
        (0 where not, None for nowhere), else by the index, after visit `after`."""
        _admit(self.state, self.index, ids, _NO_LATER if later is None else later, after)

    def unpin(self, ids: np.ndarray) -> None:
        """Ends one `admit`."""
        self.state.pins[ids] -= 1

    def retract(self, ids: np.ndarray, time: float) -> None:
        """Takes back one `admit` of a pass that is still to come, at `time`."""
        self.state.pins[ids] -= 1
        self.state.key[ids] = time

    def set_index(self, index: NextUse, after: float) -> None:
        """Takes a new index; next uses of all resident blocks are those after visit `after`."""
        self.index = index
        _refresh_keys(self.state, index, after)

    def load(self, missing: np.ndarray, now: float, most: int | None = None) -> tuple[np.ndarray, int]:
        """Plans to bring up to `most` of the blocks `missing` (int32, not in the arena) into the arena; `now` is the
        last visit admitted. Returns the moves in order, and how many blocks they bring: fewer than asked when the rest
        of the arena is pinned."""
        n = len(missing) if most is None else min(most, len(missing))
        moves = np.empty((5 * n, 6), np.int32)
        count, loaded = _load(self.state, self.index, missing, n, now, self.staging, self.chunk, moves)
        return moves[:count], loaded

    def clean(self) -> np.ndarray:
        """Plans to write all dirty blocks to the store; they stay where they are, and are clean."""
        dirty = np.flatnonzero(self.state.dirty).astype(np.int32)
        moves = np.empty((2 * len(dirty), 6), np.int32)
        return moves[: _clean(self.state, dirty, self.chunk, moves)]

    def lend(self, ids: np.ndarray) -> Loan:
        """Host slots that hold the blocks `ids` after the moves; no block changes its place. At most as many as there
        are free host slots."""
        moves = np.empty((len(ids), 6), np.int32)
        hosts = np.empty(len(ids), np.int32)
        return Loan(ids, hosts, moves[: _lend(self.state, ids, hosts, moves)])

    def give_back(self, loan: Loan) -> None:
        """Ends a loan."""
        _give_back(self.state, loan.moves[:, HOST_SLOT])


class Loan(NamedTuple):
    """Blocks to be looked at, each in a host slot: its own, or a free one for the time being."""

    ids: np.ndarray  # int32 [n]
    hosts: np.ndarray  # int32 [n]
    moves: np.ndarray  # int32 [m, 6]


_NO_LATER = np.empty(0)


@numba.njit(nogil=True, cache=True)
def _admit(s: State, index: NextUse, ids: np.ndarray, later: np.ndarray, after: float) -> None:
    for i in range(len(ids)):
        b = ids[i]
        s.pins[b] += 1
        s.key[b] = later[i] if len(later) and later[i] > 0 else next_use(index, b, after)


@numba.njit(nogil=True, cache=True)
def _refresh_keys(s: State, index: NextUse, after: float) -> None:
    for blocks in (s.arena_block, s.host_block):
        for b in blocks:
            if b >= 0:
                s.key[b] = next_use(index, b, after)


@numba.njit(nogil=True, cache=True)
def _rank(s: State, index: NextUse, b: int, now: float) -> float:
    """How far the block's next use is; of those never used again, clean ones are the farthest."""
    if s.pins[b] > 0:
        return -1.0
    if s.key[b] <= now:  # a predicted use that did not come true
        s.key[b] = next_use(index, b, now)
    if s.key[b] >= NEVER and not s.dirty[b]:
        return 2 * NEVER
    return s.key[b]


@numba.njit(nogil=True, cache=True)
def _farthest(ranks: np.ndarray, blocks: np.ndarray, n: int) -> np.ndarray:
    """The `n` blocks of greatest rank; ties go to those listed first."""
    if n >= len(blocks):
        return blocks.copy()
    if n <= 0:
        return np.empty(0, np.int32)
    out = np.empty(n, np.int32)
    edge = np.partition(ranks, len(ranks) - n)[len(ranks) - n]
    above = 0
    for r in ranks:
        above += r > edge
    ties, count = n - above, 0
    for i in range(len(blocks)):
        if ranks[i] > edge or (ranks[i] == edge and ties > 0):
            ties -= ranks[i] == edge
            out[count] = blocks[i]
            count += 1
    return out


@numba.njit(nogil=True, cache=True)
def _pop(ring: np.ndarray, heads: np.ndarray, which: int) -> int:
    slot = ring[heads[which]]
    heads[which] = (heads[which] + 1) % len(ring)
    heads[which + 1] -= 1
    return slot


@numba.njit(nogil=True, cache=True)
def _push(ring: np.ndarray, heads: np.ndarray, which: int, slot: int) -> None:
    ring[(heads[which] + heads[which + 1]) % len(ring)] = slot
    heads[which + 1] += 1


@numba.njit(nogil=True, cache=True)
def _emit(moves: np.ndarray, at: int, kind: int, batch: int, block: int, arena: int, host: int, scratch: bool) -> int:
    moves[at, 0], moves[at, 1], moves[at, 2] = kind, batch, block
    moves[at, 3], moves[at, 4], moves[at, 5] = arena, host, scratch
    return at + 1


@numba.njit(nogil=True, cache=True)
def _victims(s: State, index: NextUse, n: int, now: float) -> np.ndarray:
    blocks = np.empty(len(s.arena_block), np.int32)
    ranks = np.empty(len(s.arena_block))
    count = 0
    for b in s.arena_block:
        if b >= 0 and s.pins[b] == 0:
            blocks[count] = b
            ranks[count] = _rank(s, index, b, now)
            count += 1
    return _farthest(ranks[:count], blocks[:count], n)


@numba.njit(nogil=True, cache=True)
def _leave_host(s: State, index: NextUse, victims: np.ndarray, room: int, now: float) -> np.ndarray:
    """Of the host's blocks and the arena's victims, those that the host tier cannot keep."""
    blocks = np.empty(len(s.host_block) + len(victims), np.int32)
    ranks = np.empty(len(blocks))
    count = 0
    for b in s.host_block:
        if b >= 0 and s.where[b] == HOST:
            blocks[count] = b
            count += 1
    for b in victims:
        if _worth_keeping(s, b):
            blocks[count] = b
            count += 1
    if count <= room:
        return np.empty(0, np.int32)
    for i in range(count):
        ranks[i] = _rank(s, index, blocks[i], now)
    return _farthest(ranks[:count], blocks[:count], count - room)


@numba.njit(nogil=True, cache=True)
def _to_store(s: State, b: int) -> None:
    """The block leaves its host slot for the store."""
    s.host_block[s.slot[b]] = -1
    _push(s.host_free, s.rings, 2, s.slot[b])
    s.where[b] = STORE
    s.slot[b] = -1


@numba.njit(nogil=True, cache=True)
def _write(s: State, b: int, moves: np.ndarray, at: int, batch: int) -> int:
    """Writes a block from its host slot. With live scratch planes it stays dirty: a snapshot must not hold it so."""
    at = _emit(moves, at, WRITE, batch, b, -1, s.slot[b], s.live[b])
    s.dirty[b] = s.live[b]
    return at


@numba.njit(nogil=True, cache=True)
def _shrink_host(s: State, leavers: np.ndarray, chunk: int, moves: np.ndarray, at: int, batch: int) -> tuple[int, int]:
    """Those of `leavers` that are in the host tier go; returns (moves, batch)."""
    written = 0
    for b in leavers:
        if s.where[b] == HOST:
            if s.dirty[b]:
                at = _write(s, b, moves, at, batch + written // chunk)
                written += 1
            _to_store(s, b)
    return at, batch + 1 + written // chunk


@numba.njit(nogil=True, cache=True)
def _evict(s: State, victims: np.ndarray, fates: np.ndarray, moves: np.ndarray, at: int, batch: int) -> int:
    """Takes victims out of the arena."""
    for i in range(len(victims)):
        b = victims[i]
        a = s.slot[b]
        s.arena_block[a] = -1
        _push(s.arena_free, s.rings, 0, a)
        if fates[i] == DROP:
            s.where[b] = STORE
            s.slot[b] = -1
        else:
            h = _pop(s.host_free, s.rings, 2)
            at = _emit(moves, at, DOWNLOAD, batch, b, a, h, False)
            s.where[b] = HOST
            s.slot[b] = h
            s.host_block[h] = b
    for i in range(len(victims)):
        if fates[i] == WRITE_THROUGH:
            at = _write(s, victims[i], moves, at, batch + 1)
            _to_store(s, victims[i])
    return at


@numba.njit(nogil=True, cache=True)
def _bring(s: State, blocks: np.ndarray, moves: np.ndarray, at: int, batch: int) -> int:
    """Loads blocks into free arena slots: from the host tier, or through it from the store."""
    for b in blocks:
        if s.where[b] == STORE:
            h = _pop(s.host_free, s.rings, 2)
            at = _emit(moves, at, READ, batch, b, -1, h, False)
            s.slot[b] = h
    for b in blocks:
        a = _pop(s.arena_free, s.rings, 0)
        h = s.slot[b]
        at = _emit(moves, at, UPLOAD, batch + 1, b, a, h, False)
        s.host_block[h] = -1
        _push(s.host_free, s.rings, 2, h)
        s.where[b] = ARENA
        s.slot[b] = a
        s.arena_block[a] = b
    return at


@numba.njit(nogil=True, cache=True)
def _order_victims(s: State, victims: np.ndarray, leavers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Victims that are dropped, then those written through, then those kept; and their fates.

    Kept ones come last, when promoted blocks have left the host tier, so that it never overflows on the way."""
    for b in leavers:
        if s.where[b] == ARENA:
            s.where[b] = _LEAVING
    fates = np.empty(len(victims), np.int32)
    for i in range(len(victims)):
        b = victims[i]
        if s.where[b] == _LEAVING or not _worth_keeping(s, b):
            fates[i] = WRITE_THROUGH if s.dirty[b] else DROP
        else:
            fates[i] = KEEP
        s.where[b] = ARENA
    order = np.argsort(fates, kind="mergesort")
    return victims[order], fates[order]


@numba.njit(nogil=True, cache=True)
def _worth_keeping(s: State, b: int) -> bool:
    """A clean block that is never needed again is not worth a copy."""
    return s.dirty[b] or s.key[b] < NEVER


@numba.njit(nogil=True, cache=True)
def _load(
    s: State, index: NextUse, missing: np.ndarray, n: int, now: float, staging: int, chunk: int, moves: np.ndarray
) -> tuple[int, int]:
    """Fills `moves`; returns how many there are, and how many blocks they bring."""
    victims = _victims(s, index, n - s.rings[1], now)
    n = min(n, s.rings[1] + len(victims))
    loads = np.empty(n, np.int32)
    promoted = 0
    for b in missing:  # blocks of the host tier first: they make room there
        if s.where[b] == HOST and promoted < n:
            loads[promoted] = b
            promoted += 1
            s.where[b] = _LEAVING
    filled = promoted
    for b in missing:
        if s.where[b] == STORE and filled < n:
            loads[filled] = b
            filled += 1

    leavers = _leave_host(s, index, victims, len(s.host_block) - staging, now)
    at, batch = _shrink_host(s, leavers, chunk, moves, 0, 0)
    victims, fates = _order_victims(s, victims, leavers)
    evicted = 0
    for first in range(0, n, chunk):
        part = loads[first : first + chunk]
        more = evicted + max(0, len(part) - s.rings[1])
        at = _evict(s, victims[evicted:more], fates[evicted:more], moves, at, batch)
        at = _bring(s, part, moves, at, batch + 2)
        evicted, batch = more, batch + 4
    return at, n


@numba.njit(nogil=True, cache=True)
def _clean(s: State, dirty: np.ndarray, chunk: int, moves: np.ndarray) -> int:
    at, batch = 0, 0
    for first in range(0, len(dirty), chunk):
        part = dirty[first : first + chunk]
        hosts = np.empty(len(part), np.int32)
        for i in range(len(part)):
            b = part[i]
            hosts[i] = s.slot[b]
            if s.where[b] == ARENA:
                hosts[i] = _pop(s.host_free, s.rings, 2)
                at = _emit(moves, at, DOWNLOAD, batch, b, s.slot[b], hosts[i], False)
        for i in range(len(part)):
            b = part[i]
            at = _emit(moves, at, WRITE, batch + 1, b, -1, hosts[i], False)
            s.dirty[b] = False
            if s.where[b] == ARENA:
                _push(s.host_free, s.rings, 2, hosts[i])
        batch += 2
    return at


@numba.njit(nogil=True, cache=True)
def _lend(s: State, ids: np.ndarray, hosts: np.ndarray, moves: np.ndarray) -> int:
    at = 0
    for i in range(len(ids)):
        b = ids[i]
        if s.where[b] == HOST:
            hosts[i] = s.slot[b]
        else:
            hosts[i] = _pop(s.host_free, s.rings, 2)
            in_arena = s.where[b] == ARENA
            at = _emit(moves, at, DOWNLOAD if in_arena else READ, 0, b, s.slot[b], hosts[i], False)
    return at


@numba.njit(nogil=True, cache=True)
def _give_back(s: State, hosts: np.ndarray) -> None:
    for h in hosts:
        _push(s.host_free, s.rings, 2, h)
