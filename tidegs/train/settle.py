"""Settles deferred events: refine, reset and relocate catch up with a block when a step next needs it.

Invariant: what becomes of a block depends on its rows, its row of the table, the settings and the step alone, and new
blocks get their ids in ascending order of their parents; so on the cameras, never on what was resident.
"""

from __future__ import annotations

import bisect
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tidegs.device.base import Device
from tidegs.gaussians.layout import RecordLayout
from tidegs.residency.passes import Pass
from tidegs.residency.settlement import Settled
from tidegs.store.base import TABLE_DTYPE
from tidegs.store.block_store import BlockStore
from tidegs.store.memory import aligned_slots
from tidegs.train.merge import GIVES, joined, pairs_of
from tidegs.train.momentum import Momentum
from tidegs.train.strategies.chance import stream
from tidegs.train.strategies.divide import parts_of
from tidegs.train.strategies.refine import refine, reset_opacities
from tidegs.train.strategies.relocate import add_children, dead_rows, opacity_mass
from tidegs.train.strategies.rows import KEPT, Planes, planes_of, put_rows, row_bounds, take_rows
from tidegs.train.strategies.settings import DefaultStrategy, Event, MCMCStrategy, Strategy

_DISK_RESERVE = 256 << 20  # bytes left alone
_GROWTH = 3  # records that a block becomes at most, beside its old one


def events_of(strategy: Strategy | None, last_step: int) -> list[Event]:
    """The events of all steps before `last_step`."""
    return [e for step in range(last_step) for e in strategy.at(step)] if strategy else []


def is_owed(strategy: Strategy | None, dense: bool, steps: list[int], rows: np.ndarray, step: int) -> np.ndarray:
    """bool [n]: whether blocks (their `rows` of the table) must be settled before `step`; `steps`: of the events."""
    if isinstance(strategy, MCMCStrategy):
        due = _is_drawn(rows)
    else:
        at = bisect.bisect_left(steps, step)
        due = rows["event"] < (steps[at - 1] if at else 0)
    if dense:
        due |= (rows["adam"] > 0) & (rows["adam"] < step)
    return due & (rows["count"] > 0)


def _is_drawn(rows: np.ndarray | np.void) -> np.ndarray:
    """bool: whether relocation or growth has drawn on blocks since they settled."""
    return rows["relocated"] + rows["added"] + rows["doomed"] > 0


class Settler:
    """Knows which blocks are owed events, and settles them on their slots."""

    def __init__(
        self,
        strategy: Strategy | None,
        momentum: Momentum | None,
        store: BlockStore,
        device: Device,
        layout: RecordLayout,
        seed: int,
        extent: float,
        last_step: int,
        max_gaussians: int,
        say: Callable[[str], None],
    ) -> None:
        """`momentum`: of dense Adam. `layout`: of slots. `extent`: the scene's, scene units. `max_gaussians`: 0 for no
        limit but the disk's."""
        self._strategy, self._momentum = strategy, momentum
        self._store, self._device, self._layout = store, device, layout
        self._seed, self._extent, self._say = seed, extent, say
        self._most = max_gaussians or np.iinfo(np.int64).max
        self._events = events_of(strategy, last_step)
        self._steps = [e.step for e in self._events]
        self._total = 0  # Gaussians, as settled so far
        self._may_grow = True
        self._pairs: dict[int, int] = {}  # of the settlement at hand: who gives its rows to whom
        self._gifts: dict[int, tuple[Planes, int]] = {}  # rows on their way, and steps of Adam, by who gets them

    def owed(self, step: int, ids: np.ndarray) -> np.ndarray:
        """Those of the blocks `ids` that must be settled before `step`; a settlement of just these is to follow."""
        table = self._store.table
        due = ids[is_owed(self._strategy, self._momentum is not None, self._steps, table[ids], step)]
        merges = isinstance(self._strategy, DefaultStrategy)  # relocation leaves no block sparse
        self._pairs = pairs_of(table, due, self._layout.capacity) if merges else {}
        return due

    def owed_blocks(self, step: int) -> np.ndarray:
        """All blocks that must be settled before `step`, int32, ascending."""
        return self.owed(step, np.flatnonzero(self._store.table["count"] > 0).astype(np.int32))

    def settle(self, p: Pass, step: int) -> Settled:
        """Settles the blocks of a pass of phase "settle" before `step`."""
        self._begin(p, step)
        table = self._store.table
        found = Settled(table[p.ids].copy(), np.zeros(len(p.ids), bool))
        born: list[tuple[np.ndarray, np.void]] = []
        with self._device.edit(p.blocks.slots.tolist()) as slots:
            for i, (block, slot) in enumerate(zip(p.ids.tolist(), slots, strict=True)):
                row = found.rows[i]
                rows, count = self._settle_block(block, slot, row, step)
                self._total += count - int(row["count"])
                rows, count = self._merge(block, slot, row, rows, count)
                found.touched[i] = rows is not None
                row["count"] = count
                if rows is not None and count:
                    self._place(slot, row, rows, count, born, step)
        found.born_slots = [slot for slot, _ in born]
        found.born_rows = np.array([row for _, row in born], TABLE_DTYPE)
        return found

    def _merge(
        self, block: int, slot: np.ndarray, row: np.void, rows: Planes | None, count: int
    ) -> tuple[Planes | None, int]:
        """Takes the rows of a settled block that gives them away, or adds those that it was given."""
        taker = self._pairs.get(block)
        if taker is not None and 0 < count <= GIVES * self._layout.capacity:
            planes = rows or planes_of(self._layout, slot)
            given = take_rows(planes, np.arange(count, dtype=np.int32), np.full(count, KEPT, np.uint8))
            self._gifts[taker] = given, int(row["adam"])
            return rows, 0
        if block not in self._gifts:
            return rows, count
        given, steps = self._gifts.pop(block)
        row["adam"] = max(int(row["adam"]), steps)
        planes = rows or planes_of(self._layout, slot)
        return joined(planes, count, given), count + given.base.shape[1]

    def _begin(self, p: Pass, step: int) -> None:
        """Counts the Gaussians once a step, so that the count does not depend on how its blocks are parted."""
        if p.part == 0:
            self._total = int(self._store.table["count"].sum())
        free = shutil.disk_usage(Path(self._store.path)).free - _DISK_RESERVE
        fits = free > _GROWTH * len(p.ids) * self._layout.stored_record_nbytes
        if self._may_grow and not fits:
            self._say(f"{self._store.path}: the disk is nearly full, so the scene stops growing; free some space")
        self._may_grow = fits

    def _settle_block(self, block: int, slot: np.ndarray, row: np.void, step: int) -> tuple[Planes | None, int]:
        """The block's rows once it is settled (None: as they are), and how many."""
        planes, count = planes_of(self._layout, slot), int(row["count"])
        changed = False
        if not isinstance(self._strategy, DefaultStrategy):
            if isinstance(self._strategy, MCMCStrategy) and _is_drawn(row):  # goes by the rows before they catch up
                planes, count = self._relocate(self._strategy, block, planes, row, step)
                changed = True
            changed |= self._rested(planes, count, row, step)
            return (planes if changed else None), count
        first = bisect.bisect_right(self._steps, int(row["event"]))
        last = bisect.bisect_left(self._steps, step)
        for event in self._events[first:last]:
            changed = True
            self._rested(planes, count, row, event.step + 1)
            if event.kind == "reset":
                reset_opacities(self._strategy, planes, count)
                continue
            room = self._most - self._total - (count - int(row["count"])) if self._may_grow else 0
            place = (self._seed, block)
            new = refine(self._strategy, planes, count, event.step, self._extent, max(room, 0), place)
            if new is not None:
                planes, count = new
        row["event"] = self._steps[last - 1] if last else 0
        changed |= self._rested(planes, count, row, step)
        return (planes if changed else None), count

    def _rested(self, planes: Planes, count: int, row: np.void, step: int) -> bool:
        """Takes the steps of dense Adam that the block has missed; whether there were any."""
        return self._momentum is not None and self._momentum.catch_up(planes, count, row, step)

    def _relocate(
        self, strategy: MCMCStrategy, block: int, planes: Planes, row: np.void, step: int
    ) -> tuple[Planes, int]:
        """Dead rows that were replaced elsewhere go, children that were given to the block are drawn."""
        count, key = int(row["count"]), stream(self._seed, step, block)
        dead = dead_rows(planes, count, strategy.min_opacity)
        gone = dead if row["doomed"] else np.zeros(count, bool)
        floor, relocated = strategy.min_opacity, int(row["relocated"])
        planes, count = add_children(planes, count, gone, relocated, floor, key, 0)
        if row["added"]:
            planes, count = add_children(planes, count, None, int(row["added"]), floor, key, relocated)
        row["doomed"] = row["relocated"] = row["added"] = 0
        return planes, count

    def _place(
        self,
        slot: np.ndarray,
        row: np.void,
        rows: Planes,
        count: int,
        born: list[tuple[np.ndarray, np.void]],
        step: int,
    ) -> None:
        """Writes the rows to the slot, and to new slots what is beyond its capacity; sets bounds and sums."""
        parts = parts_of(rows.base, count, self._layout.capacity)
        for i, part in enumerate(parts):
            own = rows if len(parts) == 1 else take_rows(rows, part, np.zeros(len(part), np.uint8))
            target, target_row = slot, row
            if i > 0:
                target, target_row = aligned_slots(1, self._layout.slot_nbytes)[0], row.copy()
                target[:] = 0
                born.append((target, target_row))
            planes = planes_of(self._layout, target)
            if own.base.ctypes.data != planes.base.ctypes.data:
                put_rows(planes, own)
            self._describe(target, target_row, len(part), step)

    def _describe(self, slot: np.ndarray, row: np.void, count: int, step: int) -> None:
        lo, hi = np.empty(3, np.float32), np.empty(3, np.float32)
        row["extent"] = self.bounds(slot, count, step, lo, hi)
        row["lo"], row["hi"], row["count"] = lo, hi, count
        if isinstance(self._strategy, MCMCStrategy):
            row["opacity_mass"], row["dead"] = opacity_mass(
                self._layout.view(slot, "base"), count, np.float32(self._strategy.min_opacity)
            )

    def bounds(self, slot: np.ndarray, count: int, step: int, lo: np.ndarray, hi: np.ndarray) -> float:
        """Fills the least and greatest mean of the rows of a slot before `step`, and until the block is needed again;
        returns the greatest scale. Reads `base`, and with dense Adam its moments."""
        if self._momentum is not None:
            return self._momentum.bounds(planes_of(self._layout, slot), count, step, lo, hi)
        return row_bounds(self._layout.view(slot, "base"), count, lo, hi)
