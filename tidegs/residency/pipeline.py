"""The pipeline: hands out passes whose blocks are in the arena, and moves blocks between the tiers meanwhile.

Invariants: a pass is handed out only when every block that it needs is in the arena in its newest state; a block does
not move while a pass that needs it is out; what is computed does not depend on what was resident.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields

import numpy as np

from tidegs.device.base import BlockFlags, BlockUpdates, Device, PassBlocks, RenderSettings, View
from tidegs.errors import CapacityError
from tidegs.gaussians.layout import RecordLayout
from tidegs.residency.counters import Counters
from tidegs.residency.horizon import Due, Horizon
from tidegs.residency.hostcache import HostCache
from tidegs.residency.mover import Mover
from tidegs.residency.passes import Pass, PassPlan, PassPlanner
from tidegs.residency.planner import Loan, Planner
from tidegs.residency.reach import reach_of
from tidegs.residency.schedule import Step
from tidegs.residency.settlement import COLUMNS, Settled
from tidegs.residency.visibility import Bounds
from tidegs.store.base import ArenaLink, Store

_PREDICTION_INFLATE = 0.02  # share by which bounds are widened in predictions
_CHUNK_NBYTES = 16 << 20  # bytes of a batch of moves, about
Owed = Callable[[int, np.ndarray], np.ndarray]
_PLAN_FIELDS = tuple(f.name for f in fields(PassPlan))


class Residency:
    """Owns the host tier and the arena's slots. One thread uses it; it has threads of its own.

    `for p in residency.run(steps, views): ...; residency.done(p, updates)` trains; `render` is the same without
    gradients, and may be used while a `run` is suspended between two steps. After an error of any transfer, every call
    raises that error, and the contents of arena and host tier are void: go back to the last snapshot.
    """

    def __init__(
        self,
        store: Store,
        device: Device,
        layout: RecordLayout,
        arena_slots: int,
        host_slots: int,
        settings: RenderSettings,
        max_pass_blocks: int | None = None,
        host_keeps: bool = True,
        link: Callable[[], ArenaLink] | None = None,
    ) -> None:
        """Opens the device's arena. `layout`: of slots, with the scratch planes that training needs. `settings`: of
        them near_plane, far_plane and eps2d decide what a view needs. `max_pass_blocks`: cameras that need more are
        split (default: the arena). Where `host_keeps` is not set, blocks only
        pass through the host slots; with `link` (called once the arena is open) not even that, where a record can go
        straight. Raises CapacityError."""
        if link and host_keeps:
            raise ValueError("records that go straight to the arena leave nothing for a host cache to keep")
        if arena_slots < 1 or host_slots < 1:
            raise CapacityError(
                f"the budgets give {arena_slots} arena slots and {host_slots} host slots of {layout.slot_nbytes} bytes "
                f"each: give each of --device-memory and --host-memory room for at least 1"
            )
        self.layout, self.counters = layout, Counters()
        self._store, self._settings = store, settings
        blocks = len(store.table)
        self._bounds = Bounds(store.table)
        self._capacity = min(arena_slots, max_pass_blocks or arena_slots)
        chunk = max(1, min(64, _CHUNK_NBYTES // layout.slot_nbytes))
        self._planner = Planner(blocks, arena_slots, host_slots, chunk, host_keeps)
        self._host = HostCache(host_slots, layout.slot_nbytes, device.host_region)
        device.open_arena(layout, arena_slots)
        if link:
            store.connect(link())
        self._mover = Mover(store, device, layout, self._host, arena_slots, self.counters, direct=link is not None)
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._horizon: Horizon | None = None
        self._out: tuple[Pass, Due] | None = None
        self._dying: list[np.ndarray] = []
        self._handed_out = 0.0
        self._blocks_in_use = int(np.count_nonzero(store.table["count"]))
        self._more_to_plan = self._main_waits = self._visiting = self._closing = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._plan_ahead, name="tidegs-planner", daemon=True)
        self._thread.start()

    # -- passes -------------------------------------------------------------------------------------------------------

    def run(self, steps: Iterable[Step], views: Sequence[View], owed: Owed | None = None) -> Iterator[Pass]:
        """The passes of the steps in order; `done` must be called for each before the next is asked for. Steps are
        read ahead. `owed(step, ids)`: which of the blocks `ids` (int32, ascending) must be settled before the step;
        for those come passes of phase "settle" first, each of which ends with `settled`, and the blocks that the step
        needs are then determined anew, once. Raises errors of the store."""
        return self._run(iter(steps), views, False, owed)

    def render(
        self, cameras: Iterable[int], views: Sequence[View], settings: RenderSettings | None = None
    ) -> Iterator[Pass]:
        """One or more passes of phase "render" for each camera; blocks stay as they are. `settings`: other ones."""
        steps = (Step(i, (camera,)) for i, camera in enumerate(cameras))
        return self._run(steps, views, True, None, settings)

    def within_reach(self, view: View, settings: RenderSettings, rows: int) -> RenderSettings:
        """The settings with a far plane so near that the view needs no blocks of more than `rows` rows in all."""
        return reach_of(self._bounds, self._store.table["count"], view, settings, rows)

    def settle(self, ids: np.ndarray) -> Iterator[Pass]:
        """Passes of phase "settle" for the blocks `ids` (int32, ascending), between two steps."""
        exact = PassPlanner(self._bounds, _no_views, self._settings, self._capacity)
        horizon = Horizon(self._planner, exact, exact, iter(()), 1, self._planner.chunk)
        outer = self._enter(horizon)
        try:
            yield from self._settle(horizon, ids)
        finally:
            self._leave(outer)

    def done(self, p: Pass, updates: BlockUpdates | None = None) -> None:
        """The device has finished the pass. `updates`: what its backward returned."""
        due = self._take_back(p)
        self.counters.computed(self._handed_out)
        with self._planning():
            if updates is not None:
                self._take_updates(p, updates)
            assert self._horizon is not None
            self._horizon.finish(due)

    def settled(self, p: Pass, found: Settled) -> None:
        """The blocks of a pass of phase "settle" are settled. New blocks get their ids in the order given."""
        due = self._take_back(p)
        born = self._bear(found)
        with self._planning():
            table = self._store.table
            for name in COLUMNS:
                table[name][born] = found.born_rows[name]
            lives = found.rows["count"] > 0
            ids = p.ids[lives]
            for name in COLUMNS:
                table[name][ids] = found.rows[name][lives]
            self._dying.append(p.ids[~lives])
            self._planner.grow(len(table))
            self._mover.grow(len(table))
            self._bounds.grow(len(table))
            self._planner.state.dirty[p.ids[found.touched & lives]] = True
            changed = np.sort(np.concatenate([ids, born.astype(np.int32)]))
            self._bounds.update(changed, table)
            assert self._horizon is not None
            self._horizon.finish(due)

    def _bear(self, found: Settled) -> np.ndarray:
        """Writes new blocks to the store; returns their ids. Where the id of a dead block is used again, its writes
        must have ended."""
        if not found.born_slots:
            return np.empty(0, np.int64)
        born = self._store.allocate(len(found.born_slots))
        self._store.table["count"][born] = found.born_rows["count"]
        with self._lock:
            self._mover.grow(len(self._store.table))
            writes = self._mover.writes(born)
        self._mover.wait(writes)
        for first in range(0, len(born), self._planner.chunk):
            part = slice(first, first + self._planner.chunk)
            self._store.write(born[part].tolist(), found.born_slots[part])
        return born

    def _settle(self, horizon: Horizon, ids: np.ndarray) -> Iterator[Pass]:
        with self._planning():
            dues = horizon.settle(ids)
        for due in dues:
            yield self._hand_out(horizon, due)
            self._check_returned("settled()")
        with self._planning():  # only now, so that ids do not depend on how the blocks were parted
            dead = np.concatenate([*self._dying, np.empty(0, np.int32)])
            self._dying.clear()
            self._store.table["count"][dead] = 0
            self._bounds.update(dead, self._store.table)
            self._planner.forget(dead)
            self._blocks_in_use = int(np.count_nonzero(self._store.table["count"]))

    def _check_returned(self, call: str) -> None:
        if self._out is not None:
            raise ValueError(f"the next pass was asked for before {call} was called for the last one")

    def _take_back(self, p: Pass) -> Due:
        if self._out is None or self._out[0] is not p:
            raise ValueError("a pass is given back once, and only the one that was handed out last")
        due, self._out = self._out[1], None
        return due

    def _run(
        self,
        steps: Iterator[Step],
        views: Sequence[View],
        render: bool,
        owed: Owed | None,
        settings: RenderSettings | None = None,
    ) -> Iterator[Pass]:
        planner, bounds, settings = self._planner, self._bounds, settings or self._settings
        exact = PassPlanner(bounds, views.__getitem__, settings, self._capacity)
        predicted = PassPlanner(bounds, views.__getitem__, settings, self._capacity, _PREDICTION_INFLATE)
        window = max(1024, 2 * len(views))
        ahead = max(planner.chunk, planner.arena_slots // 50)
        horizon = Horizon(planner, exact, predicted, steps, window, ahead, render)
        outer = self._enter(horizon)
        try:
            while True:
                with self._planning():
                    dues = horizon.begin()
                if dues is None:
                    return
                if owed is not None and len(ids := owed(dues[0].plan.step, _union(dues))):
                    yield from self._settle(horizon, ids)
                    with self._planning():
                        dues = horizon.again()
                for due in dues:
                    yield self._hand_out(horizon, due)
                    self._check_returned("done()")
                self.counters.steps += 1
        finally:
            self._leave(outer)

    def _enter(self, horizon: Horizon) -> Horizon | None:
        with self._planning():
            self._check()
            if self._out is not None:
                raise ValueError("a run cannot start while a pass is out")
            outer, self._horizon = self._horizon, horizon
            if outer is not None:
                outer.suspend()
            return outer

    def _leave(self, outer: Horizon | None) -> None:
        with self._planning():
            if self._horizon is not None:
                self._horizon.suspend()
            self._out = None
            self._horizon = outer
            if outer is not None:
                outer.suspend()

    def _hand_out(self, horizon: Horizon, due: Due) -> Pass:
        """Waits until the blocks of the pass are in the arena."""
        ids, planner, counters = due.plan.ids, self._planner, self.counters
        with self._planning():
            self._check()
            moves, brought = horizon.ensure(due)
            for part in moves:
                self._mover.submit(part)
            slots = planner.state.slot[ids]
            tasks = self._mover.uploads(slots)
            counters.peak(planner.arena_used, planner.host_used)  # under the lock: not in the middle of a plan
        if tasks:
            start = counters.now()
            self._mover.wait(tasks)
            counters.stall(start, counters.now())
        state = planner.state
        counters.dropped_blocks += len(ids) - int(np.count_nonzero(state.arena_block[slots] == ids))
        counters.passes += 1
        counters.misses += brought
        counters.hits += len(ids) - brought
        blocks = PassBlocks(slots, self._store.table["count"][ids], due.plan.flags)
        p = Pass(**{name: getattr(due.plan, name) for name in _PLAN_FIELDS}, blocks=blocks)
        self._out, self._handed_out = (p, due), counters.now()
        return p

    def _take_updates(self, p: Pass, updates: BlockUpdates) -> None:
        state, table = self._planner.state, self._store.table
        state.dirty[p.ids[updates.touched]] = True
        last = (p.flags & BlockFlags.LAST_OF_STEP) != 0
        self.counters.rows_needed += int(p.blocks.counts[last].sum())
        self.counters.rows_visible += int(updates.visible[last].sum())
        state.live[p.ids] = ~last
        state.dirty[p.ids[~last]] = True  # its scratch planes count from now on
        # Bounds change only with rows, so that the table does not depend on how passes are split.
        moved = np.flatnonzero(last & (updates.visible > 0))
        ids = p.ids[moved]
        table["lo"][ids] = updates.lo[moved]
        table["hi"][ids] = updates.hi[moved]
        table["extent"][ids] = updates.extent[moved]
        self._bounds.update(ids, table)

    # -- the rest -----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Writes all that is newer than the store; returns when it is written. Between steps only. What is resident
        stays, and is clean."""
        with self._planning():
            self._check_between_steps("flush()")
            self._mover.submit(self._planner.clean())
        self._mover.drain()

    def visit(self, order: Iterable[int]) -> Iterator[tuple[int, np.ndarray]]:
        """(block, slot) for each block of `order` in its newest state, between steps; a slot is uint8 [slot_nbytes], to
        be read only, and valid until the next one is asked for. No block changes its place."""
        ids = np.fromiter(order, np.int32)
        with self._planning():
            self._check_between_steps("visit()")
            self._visiting = True
        loans: deque[Loan] = deque()  # the one being looked at, and the next
        try:
            free = self._planner.host_slots - self._planner.host_used
            depth = min(2, free)
            n = min(self._planner.chunk, free // depth)
            for first in range(0, len(ids), n):
                self._borrow(loans, ids[first : first + n])
                if len(loans) == depth:
                    yield from self._look_at(loans)
            while loans:
                yield from self._look_at(loans)
        finally:
            with self._planning():
                self._visiting = False
                for loan in loans:
                    self._planner.give_back(loan)

    def _borrow(self, loans: deque[Loan], ids: np.ndarray) -> None:
        with self._lock:
            loans.append(self._planner.lend(ids))
            self._mover.submit(loans[-1].moves)

    def _look_at(self, loans: deque[Loan]) -> Iterator[tuple[int, np.ndarray]]:
        self._mover.wait(self._mover.on_host(loans[0].hosts))
        for block, host in zip(loans[0].ids.tolist(), loans[0].hosts.tolist(), strict=True):
            yield block, self._host.slots[host]
        with self._lock:
            self._planner.give_back(loans.popleft())

    def close(self) -> None:
        """Ends the threads; what was not flushed is lost."""
        with self._planning():
            self._closing = True
        self._thread.join()
        self._mover.close()

    # -- planning ahead -----------------------------------------------------------------------------------------------

    @contextmanager
    def _planning(self) -> Iterator[None]:
        """The caller's thread changes the plan; afterwards the planner thread looks at it again, unless everything is
        in the arena already."""
        start = self.counters.now()
        self._main_waits = True
        with self._lock:
            self._main_waits = False
            try:
                yield
            finally:
                self._more_to_plan = self._planner.arena_used < self._blocks_in_use
                if self._more_to_plan or self._closing:
                    self._wake.notify_all()
        end = self.counters.now()
        self.counters.plan_seconds += end - start
        self.counters.event("plan", start, end)

    def _plan_ahead(self) -> None:
        """The planner thread: loads for passes to come, a piece at a time, whenever something has changed."""
        with self._lock:
            while not self._closing:
                idle = self._horizon is None or self._visiting or self._error is not None
                if idle or self._main_waits or not self._more_to_plan:
                    self._wake.wait()
                    continue
                assert self._horizon is not None
                try:
                    self._horizon.hideable = self.counters.hideable_blocks()
                    moves = self._horizon.advance()
                    self._more_to_plan = moves is not None
                    if moves is not None:
                        self._mover.submit(moves)
                except BaseException as error:  # carried to the thread that asks for the next pass
                    self._error, self._more_to_plan = error, False

    def _check(self) -> None:
        self._mover.check()
        if self._error is not None:
            raise self._error
        if self._visiting:
            raise ValueError("a visit() is still under way")

    def _check_between_steps(self, what: str) -> None:
        self._check()
        if self._out is not None or self._planner.state.live.any():
            raise ValueError(f"{what} is for the time between two steps")


def _union(dues: list[Due]) -> np.ndarray:
    """The blocks of a step, ascending."""
    return dues[0].plan.ids if len(dues) == 1 else np.unique(np.concatenate([d.plan.ids for d in dues]))


def _no_views(camera: int) -> View:
    raise ValueError(f"camera {camera} was asked for where there is none")
