"""The passes to come, as far as they are planned: exact ones of the step at hand, predicted ones of the next steps.

Invariant: the blocks of admitted passes are pinned. Predictions steer loads and evictions only; when a step starts, its
exact passes replace them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tidegs.residency.index import build_index
from tidegs.residency.moves import NO_MOVES
from tidegs.residency.passes import PassPlan, PassPlanner, settle_plans
from tidegs.residency.planner import Planner
from tidegs.residency.schedule import Step
from tidegs.residency.visibility import working_sets

MAX_QUEUE = 64  # passes
_WORTH_HIDING = 0.02  # of a pass
_RENEW_AFTER = 32  # visits after blocks came or went in which the index of next uses may lack them
_MAX_USES = 150_000_000  # entries of an index: 0.6 GB


@dataclass
class Due:
    """A pass in the queue."""

    plan: PassPlan
    later: np.ndarray | None  # float64 [n]: when the same step needs the block again; 0 where it does not
    time: float  # visit, plus the share of its camera's passes that come before it
    last_visit: int  # of the step
    loaded: int = 0  # blocks brought for it ahead of time
    admitted: bool = False
    complete: bool = False  # all its blocks are in the arena or on their way there
    out: bool = False  # handed out


@dataclass(frozen=True)
class _Known:
    """A step whose passes are in the queue, and its first visit."""

    step: Step
    visit: int
    passes: int


class Horizon:
    """One run over an order of steps. Calls are made under the pipeline's lock."""

    def __init__(
        self,
        planner: Planner,
        exact: PassPlanner,
        predicted: PassPlanner,
        steps: Iterator[Step],
        window: int,
        ahead_blocks: int,
        render: bool = False,
    ) -> None:
        """`window`: visits in an index of next uses. `ahead_blocks`: most blocks loaded for passes after the next."""
        self._planner, self._exact, self._predicted, self._render = planner, exact, predicted, render
        self._steps, self._window, self._ahead_blocks = steps, window, ahead_blocks
        self._peeked: deque[Step] = deque()
        self._known: deque[_Known] = deque()  # the step at hand, then predicted ones
        self._next_visit = 0  # of the first peeked step
        self._renew_at = -1.0  # visit at which the index is to be renewed
        self._soon = np.zeros(len(planner.state.where))
        self._started = False
        self._settling: _Known | None = None  # the step that waits while events are settled
        self.hideable = 0.0  # blocks that can be moved while one pass is computed, as measured
        self.queue: deque[Due] = deque()

    def begin(self) -> list[Due] | None:
        """Starts the next step: its exact passes, first in the queue now; None after the last step."""
        if self._started:
            self._known.popleft()
        self._started = bool(self._known or self._peek(1))
        if not self._started:
            return None
        if self._known:
            known = self._known.popleft()
            for _ in range(known.passes):
                self._retract(self.queue.popleft())
            step, visit = known.step, known.visit
        else:
            step, visit = self._take()
        dues = self._timed(self._exact.step(step, self._render), step, visit)
        self.queue.extendleft(reversed(dues))
        self._known.appendleft(_Known(step, visit, len(dues)))
        return dues

    def settle(self, ids: np.ndarray) -> list[Due]:
        """Puts passes that settle `ids` (int32, ascending) first. Whatever was planned is void: blocks may come and
        go; `again` plans it anew."""
        for due in self.queue:
            self._retract(due)
        self.queue.clear()
        self._settling = self._known.popleft() if self._known else _Known(Step(0, ()), self._next_visit, 0)
        for known in reversed(self._known):
            self._peeked.appendleft(known.step)
        self._known.clear()
        step, visit = self._settling.step, self._settling.visit
        self._next_visit = visit + len(step.cameras)
        self._renew_at = min(self._renew_at, visit + _RENEW_AFTER)
        plans = settle_plans(step.index, ids, self._exact.capacity)
        dues = [Due(p, np.full(len(p.ids), visit + 0.5), visit, visit) for p in plans]
        self.queue.extend(dues)
        return dues

    def again(self) -> list[Due]:
        """The exact passes of the step that was begun, after `settle`."""
        assert self._settling is not None
        step, visit, self._settling = self._settling.step, self._settling.visit, None
        dues = self._timed(self._exact.step(step, self._render), step, visit)
        self.queue.extend(dues)
        self._known.append(_Known(step, visit, len(dues)))
        return dues

    def ensure(self, due: Due) -> tuple[list[np.ndarray], int]:
        """Plans whatever the first pass in the queue still lacks; returns moves, and how many blocks they bring."""
        self._admit(due)
        moves, brought = [], 0
        while len(missing := self._planner.missing(due.plan.ids)):
            part, loaded = self._load(due, missing, len(missing), False)
            moves.append(part)
            brought += loaded
            if loaded < len(missing):
                self._retract(next(d for d in reversed(self.queue) if d.admitted and d is not due))
        due.complete = due.out = True
        return moves, brought

    def finish(self, due: Due) -> None:
        """The first pass in the queue is over: its blocks may leave."""
        self.queue.popleft()
        self._planner.unpin(due.plan.ids)

    def suspend(self) -> None:
        """Another run comes in between: nothing stays pinned, and the index is to be renewed."""
        for due in self.queue:
            self._retract(due)
        self._renew_at = -1.0

    def advance(self) -> np.ndarray | None:
        """Plans one more load ahead of time and returns its moves (maybe none); None when it is time to wait."""
        ahead = 0
        following = True
        for due in self.queue:
            if due.out:
                continue
            if not due.complete:
                self._admit(due)
                missing = self._planner.missing(due.plan.ids)
                room = max(self._ahead_blocks, self._planner.arena_slots - self._planner.arena_used) - ahead
                moves = self._fetch(due, missing, len(missing) if following else min(len(missing), room))
                if moves is None and following:
                    moves = self._fetch_eagerly(due, missing)
                due.complete = due.complete or not len(missing)
                if moves is not None or not due.complete:
                    return moves
            ahead += 0 if following else due.loaded
            following = False
        return NO_MOVES if self._predict() else None

    def _fetch(self, due: Due, missing: np.ndarray, most: int, patient: bool = True) -> np.ndarray | None:
        """Loads up to `most` blocks for a pass; None where none can be."""
        if most <= 0:
            return None
        moves, loaded = self._load(due, missing, most, patient)
        due.loaded += loaded
        due.complete = loaded == len(missing)
        return moves if loaded else None

    def _fetch_eagerly(self, due: Due, missing: np.ndarray) -> np.ndarray | None:
        """Loads what patience would leave until compute has to wait for it, in the place of blocks that are needed
        sooner than those of the pass at hand: as much as can be hidden behind that pass, if that is worth anything."""
        if len(missing) <= _WORTH_HIDING * self.hideable:
            return None
        return self._fetch(due, missing, int(min(len(missing), self.hideable - due.loaded)), patient=False)

    def _predict(self) -> bool:
        if self._settling is not None or len(self.queue) >= MAX_QUEUE or not self._peek(1):
            return False
        passes = self._predicted.step(self._peeked[0], self._render)
        step, visit = self._take()
        self.queue.extend(self._timed(passes, step, visit))
        self._known.append(_Known(step, visit, len(passes)))
        return True

    def _load(self, due: Due, missing: np.ndarray, most: int, patient: bool) -> tuple[np.ndarray, int]:
        stale = self._settling is None and due.time >= self._renew_at
        if stale and most > self._planner.arena_slots - self._planner.arena_used:
            self._renew_index(due.time)
        return self._planner.load(missing, due.time, most, patient)

    def _admit(self, due: Due) -> None:
        if not due.admitted:
            self._planner.admit(due.plan.ids, due.later, int(due.time), due.last_visit)
            due.admitted = True

    def _retract(self, due: Due) -> None:
        if due.admitted:
            self._planner.retract(due.plan.ids, due.time)
            due.admitted = due.complete = False

    def _peek(self, steps: int) -> bool:
        """Whether there is a step to peek at, after peeking at up to `steps`."""
        while len(self._peeked) < steps and (step := next(self._steps, None)) is not None:
            self._peeked.append(step)
        return bool(self._peeked)

    def _take(self) -> tuple[Step, int]:
        step, visit = self._peeked.popleft(), self._next_visit
        self._next_visit += len(step.cameras)
        return step, visit

    def _timed(self, passes: list[PassPlan], step: Step, visit: int) -> list[Due]:
        """Sets when each pass comes, and when its step needs its blocks again."""
        last_visit = visit + len(step.cameras) - 1
        if len(passes) == 1:
            return [Due(passes[0], None, visit, last_visit)]
        if len(self._soon) < len(self._planner.state.where):
            self._soon = np.zeros(len(self._planner.state.where))
        counts = np.bincount([p.position for p in passes], minlength=len(step.cameras))
        firsts = np.cumsum(counts) - counts
        out = []
        for i, p in reversed(list(enumerate(passes))):
            time = visit + p.position + float(i - firsts[p.position]) / float(counts[p.position])
            out.append(Due(p, self._soon[p.ids], time, last_visit))
            self._soon[p.ids] = time
        for p in passes:
            self._soon[p.ids] = 0
        return out[::-1]

    def _renew_index(self, now: float) -> None:
        """Builds the index of next uses for the visits from the step at hand on, by the bounds as they are now."""
        first = self._known[0].visit
        self._peek(self._window)
        order = [camera for known in self._known for camera in known.step.cameras]
        order += [camera for step in self._peeked for camera in step.cameras]
        cameras, which = np.unique(np.array(order[: self._window], np.int64), return_inverse=True)
        planes = np.stack([self._predicted.planes(int(c)) for c in cameras])
        offsets, ids = working_sets(self._predicted.bounds, planes)
        uses = np.cumsum(np.diff(offsets)[which])
        which = which[: max(1, int(np.searchsorted(uses, _MAX_USES)))]
        index = build_index(offsets, ids, which, len(self._planner.state.where), first)
        self._planner.set_index(index, now)
        self._renew_at = first + max(1, len(which) // 2) if len(order) > len(which) else np.inf
