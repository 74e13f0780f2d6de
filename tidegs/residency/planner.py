"""Decides each load and each eviction, and lists the moves that carry it out.

Invariant: nothing here depends on time or on transfers: the same calls give the same moves.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tidegs.residency import moves as kernels
from tidegs.residency import state as states
from tidegs.residency.index import NextUse, empty_index
from tidegs.residency.moves import HOST_SLOT
from tidegs.residency.state import ARENA


class Planner:
    """The state of both tiers. Not thread-safe."""

    def __init__(
        self, blocks: int, arena_slots: int, host_slots: int, chunk: int = 16, host_keeps: bool = True
    ) -> None:
        """`chunk`: most blocks of a batch of moves; it is lowered where the host tier is small. Where `host_keeps` is
        not set, blocks only pass through the host slots."""
        self.arena_slots, self.host_slots = arena_slots, host_slots
        self.staging = max(1, min(4 * chunk, host_slots // 4)) if host_keeps else host_slots
        self.chunk = max(1, min(chunk, self.staging // 2))
        self.index = empty_index(blocks)
        self.state = states.new_state(blocks, arena_slots, host_slots)

    @property
    def arena_used(self) -> int:
        return self.arena_slots - int(self.state.rings[1])

    @property
    def host_used(self) -> int:
        return self.host_slots - int(self.state.rings[3])

    def grow(self, blocks: int) -> None:
        """Makes room for blocks up to id `blocks` (exclusive); new ones are in the store."""
        if blocks > len(self.state.where):
            self.state = states.grown(self.state, blocks)
        self.index = self.index.grown(len(self.state.where))

    def forget(self, ids: np.ndarray) -> None:
        """Blocks that died, none of them pinned: whatever holds them is free."""
        states.forget(self.state, ids)

    def missing(self, ids: np.ndarray) -> np.ndarray:
        """Those of `ids` that are not in the arena."""
        return ids[self.state.where[ids] != ARENA]

    def admit(self, ids: np.ndarray, later: np.ndarray | None, visit: int, after: int) -> None:
        """Pins the blocks of a pass of a visit, and sets their next use: `later` [n] where the same step needs them
        again (0 where not; None for nowhere), else the next use in the index later than visit `after`."""
        states.pin(self.state, self.index, ids, _NO_LATER if later is None else later, visit, after)

    def unpin(self, ids: np.ndarray) -> None:
        """Ends one `admit`."""
        states.unpin(self.state, ids)

    def retract(self, ids: np.ndarray, time: float) -> None:
        """Takes back one `admit` of a pass that is still to come, at `time`."""
        states.retract(self.state, ids, time)

    def set_index(self, index: NextUse, after: float) -> None:
        """Takes a new index; next uses of all resident blocks are those after visit `after`."""
        self.index = index
        states.renew_keys(self.state, index, after)

    def load(self, missing: np.ndarray, now: float, most: int, patient: bool = False) -> tuple[np.ndarray, int]:
        """Plans to bring up to `most` of the blocks `missing` (int32, not in the arena) into the arena, for the pass
        admitted last, at `now`. Returns the moves in order, and how many blocks they bring: fewer than asked when the
        rest of the arena is pinned, or, if `patient`, when the blocks that should leave for them are."""
        moves = np.empty((5 * most, 6), np.int32)
        count, loaded = kernels.load(
            self.state, self.index, missing, most, now, patient, self.staging, self.chunk, moves
        )
        return moves[:count], loaded

    def clean(self) -> np.ndarray:
        """Plans to write all dirty blocks to the store; they stay where they are, and are clean."""
        dirty = np.flatnonzero(self.state.dirty).astype(np.int32)
        moves = np.empty((2 * len(dirty), 6), np.int32)
        return moves[: kernels.clean(self.state, dirty, self.chunk, moves)]

    def lend(self, ids: np.ndarray) -> Loan:
        """Host slots that hold the blocks `ids` after the moves; no block changes its place. At most as many as there
        are free host slots."""
        moves = np.empty((len(ids), 6), np.int32)
        hosts = np.empty(len(ids), np.int32)
        return Loan(ids, hosts, moves[: kernels.lend(self.state, ids, hosts, moves)])

    def give_back(self, loan: Loan) -> None:
        """Ends a loan."""
        kernels.give_back(self.state, loan.moves[:, HOST_SLOT])


class Loan(NamedTuple):
    """Blocks to be looked at, each in a host slot: its own, or a free one for the time being."""

    ids: np.ndarray  # int32 [n]
    hosts: np.ndarray  # int32 [n]
    moves: np.ndarray  # int32 [m, 6]


_NO_LATER = np.empty(0)
