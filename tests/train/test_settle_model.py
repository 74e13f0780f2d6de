"""Settling through residency, under any budgets, gives what a plain in-memory model gives: blocks refined, reset,
relocated, split, died, reborn under old ids, evicted, snapshot and opened again."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.reference.noise import noised
from tests.residency.residency_fakes import SETTINGS, FakeDevice, MemoryStore, toy_views, within
from tidegs.device.base import AdamSettings, BlockFlags, BlockUpdates
from tidegs.gaussians.layout import RecordLayout
from tidegs.residency.pipeline import Residency
from tidegs.residency.schedule import Step
from tidegs.residency.settlement import COLUMNS
from tidegs.residency.visibility import Bounds, needed_blocks, view_planes
from tidegs.store.base import TABLE_DTYPE
from tidegs.train import merge, settle
from tidegs.train.momentum import Momentum
from tidegs.train.noise import Noise, draw_relocation
from tidegs.train.settle import Settler
from tidegs.train.strategies.rows import planes_of, row_bounds
from tidegs.train.strategies.settings import DefaultStrategy, MCMCStrategy

LAYOUT = RecordLayout(64, sh_degree=0, stat_components=2, with_grads=True)
EXTENT, SEED, STEPS = 8.0, 5, 24
DEFAULT = DefaultStrategy(refine_start_iter=1, refine_every=3, reset_every=8, refine_stop_iter=22, prune_opa=0.05)
MCMC = MCMCStrategy(refine_start_iter=1, refine_every=3, refine_stop_iter=22, cap_max=700, noise_lr=2.0)


class GrowingStore(MemoryStore):
    """Hands out block ids as BlockStore does."""

    path = Path(".")

    def allocate(self, n: int) -> np.ndarray:
        ids = np.flatnonzero(self.table["count"] == 0)[:n]
        more = n - len(ids)
        ids = np.concatenate([ids, np.arange(len(self.table), len(self.table) + more)])
        self.table = np.concatenate([self.table, np.zeros(more, TABLE_DTYPE)])
        self.table["count"][ids] = 1
        return ids


class Edited:
    """The part of a device that a settler uses, over memory."""

    def __init__(self, arena) -> None:
        self.arena = arena

    @contextmanager
    def edit(self, slots):
        yield [self.arena[s] for s in slots]

    def add_noise(self, blocks, noise, adam):
        return noised([planes_of(LAYOUT, self.arena[s]) for s in blocks.slots], blocks.counts.tolist(), noise, adam)


class CpuLikeDevice(FakeDevice, Edited):
    def __init__(self) -> None:
        FakeDevice.__init__(self)


@dataclass
class Case:
    """A scene of random blocks and an order of cameras."""

    store: GrowingStore
    views: list
    steps: list[Step]


def make_case(seed: int, batch: int) -> Case:
    rng = np.random.default_rng(seed)
    store = GrowingStore(LAYOUT, np.zeros(12, TABLE_DTYPE))
    for b in range(12):
        count = int(rng.integers(45, 65) if rng.random() < 0.6 else rng.integers(2, 17))
        base = planes_of(LAYOUT, store.records[b]).base
        base[:, :count] = rng.normal(size=(14, count))
        if b % 2 == 0:  # blocks come in twos, side by side
            place = rng.uniform(-8, 8, (3, 1)) * [[1], [1], [0.05]]
        base[:3, :count] = place + 0.3 * (b % 2) + rng.normal(size=(3, count)) * 0.3
        base[7:10, :count] = rng.uniform(-5, -1.5, (3, count))
        base[10, :count] = rng.uniform(-6, 3, count)
        set_bounds(store.table[b : b + 1], base, count)
        store.table["opacity_mass"][b] = 0.1 * count
    views = toy_views(rng, 6)
    steps = [Step(i, tuple(rng.integers(0, 6, batch).tolist())) for i in range(STEPS)]
    return Case(store, views, steps)


def set_bounds(row: np.ndarray, base: np.ndarray, count: int) -> None:
    lo, hi = np.empty(3, np.float32), np.empty(3, np.float32)
    row["extent"] = row_bounds(base, count, lo, hi)
    row["lo"], row["hi"], row["count"] = lo, hi, count


def train_block(slot: np.ndarray, count: int, block: int, step: int) -> None:
    """Stands for gradients and Adam."""
    rng = np.random.default_rng([block, step])
    planes = planes_of(LAYOUT, slot)
    planes.base[:3, :count] += rng.normal(size=(3, count)).astype(np.float32) * np.float32(0.02)
    planes.base[10, :count] += rng.normal(size=count).astype(np.float32) * np.float32(0.4)
    planes.m_base[:, :count] += np.float32(0.1)
    planes.v_base[:, :count] = planes.m_base[:, :count] ** 2
    planes.stats[0, :count] += rng.uniform(0, 4e-4, count).astype(np.float32)
    planes.stats[1, :count] += np.float32(1)


def settler_of(strategy, store, device) -> Settler:
    momentum = Momentum(lambda step: AdamSettings((0.01,) * 6, step + 1), STEPS)
    return Settler(strategy, momentum, store, device, LAYOUT, SEED, EXTENT, STEPS, 600, lambda text: None)


def noise_of(strategy) -> Noise | None:
    if not isinstance(strategy, MCMCStrategy):
        return None
    return Noise(strategy, SEED, lambda step: AdamSettings((0.01,) * 6, step + 1, dense=True))


def run_model(case: Case, strategy) -> GrowingStore:
    """The same without residency: every block lies in a dictionary."""
    store = case.store
    slots = {b: np.concatenate([r, np.zeros(LAYOUT.slot_nbytes - len(r), np.uint8)]) for b, r in store.records.items()}
    settler, noise = settler_of(strategy, store, Edited(slots)), noise_of(strategy)

    def settle(ids: np.ndarray, step: int) -> None:
        found = settler.settle(SimpleNamespace(ids=ids, part=0, blocks=SimpleNamespace(slots=ids)), step)
        born = store.allocate(len(found.born_slots))
        for b, slot in zip(born.tolist(), found.born_slots, strict=True):
            slots[b] = slot.copy()
        for name in COLUMNS:
            store.table[name][born] = found.born_rows[name]
            store.table[name][ids] = found.rows[name]

    def needed(step: Step) -> np.ndarray:
        bounds = Bounds(store.table)
        sets = [needed_blocks(bounds, view_planes(case.views[c], SETTINGS)) for c in step.cameras]
        return np.unique(np.concatenate(sets))

    for step in case.steps:
        owed = settler.owed(step.index, needed(step))
        if len(owed):
            settle(owed, step.index)
        ids = needed(step)
        counts = store.table["count"][ids]
        updates = blank_updates(len(ids))
        for i, (b, count) in enumerate(zip(ids.tolist(), counts.tolist(), strict=True)):
            train_block(slots[b], count, b, step.index)
            updates.extent[i] = settler.bounds(slots[b], count, step.index + 1, updates.lo[i], updates.hi[i])
        store.table["adam"][ids] = step.index + 1
        if noise:
            flags = np.full(len(ids), BlockFlags.ALL, np.uint8)
            blocks = SimpleNamespace(slots=ids, counts=counts)
            p = SimpleNamespace(ids=ids, step=step.index, flags=flags, blocks=blocks)
            noise.apply(p, updates, Edited(slots), store.table)
        for name in ("lo", "hi", "extent"):
            store.table[name][ids] = getattr(updates, name)
        if noise and strategy.at(step.index):
            draw_relocation(strategy, store.table, SEED, step.index)
    if len(owed := settler.owed_blocks(STEPS)):
        settle(owed, STEPS)
    store.records = {b: slot[: LAYOUT.record_nbytes] for b, slot in slots.items()}
    return store


def blank_updates(n: int) -> BlockUpdates:
    nans = np.full((n, 3), np.nan, np.float32)
    size, ones = np.full(n, np.nan, np.float32), np.ones(n, np.int32)
    return BlockUpdates(nans, nans.copy(), size, ones, np.ones(n, bool), None)


def run_tiers(case: Case, strategy, budgets: list[tuple[int, int, int]]) -> GrowingStore:
    """Through residency; opened again with other budgets (arena, host, most blocks of a pass) on the way."""
    store = case.store
    per = -(-STEPS // len(budgets))
    for k, (arena, host, most) in enumerate(budgets):
        device = CpuLikeDevice()
        residency = Residency(store, device, LAYOUT, arena, host, SETTINGS, max_pass_blocks=most or None)
        settler, noise = settler_of(strategy, store, device), noise_of(strategy)
        try:
            for p in residency.run(iter(case.steps[k * per : (k + 1) * per]), case.views, settler.owed):
                if p.phase == "settle":
                    residency.settled(p, settler.settle(p, p.step))
                    continue
                updates = None
                if p.has_backward:
                    updates = train_pass(p, device.arena, settler)
                    store.table["adam"][p.ids[(p.flags & BlockFlags.LAST_OF_STEP) != 0]] = p.step + 1
                    if noise:
                        noise.apply(p, updates, device, store.table)
                residency.done(p, updates)
                if p.last_of_step and noise and strategy.at(p.step):
                    draw_relocation(strategy, store.table, SEED, p.step)
            if k == len(budgets) - 1 and len(owed := settler.owed_blocks(STEPS)):
                for p in residency.settle(owed):
                    residency.settled(p, settler.settle(p, STEPS))
            residency.flush()
            assert residency.counters.dropped_blocks == 0
        finally:
            residency.close()
    return store


def train_pass(p, arena: np.ndarray, settler: Settler) -> BlockUpdates:
    updates = blank_updates(len(p.ids))
    for i in np.flatnonzero(p.flags & BlockFlags.LAST_OF_STEP).tolist():
        slot, count = arena[p.blocks.slots[i]], int(p.blocks.counts[i])
        train_block(slot, count, int(p.ids[i]), p.step)
        updates.extent[i] = settler.bounds(slot, count, p.step + 1, updates.lo[i], updates.hi[i])
    return updates


def assert_alike(one: GrowingStore, other: GrowingStore) -> None:
    assert len(one.table) == len(other.table)
    for name in COLUMNS:
        used = one.table["count"] > 0
        np.testing.assert_array_equal(one.table[name][used], other.table[name][used], err_msg=name)
    for b in np.flatnonzero(one.table["count"] > 0).tolist():
        count = int(one.table["count"][b])
        for x, y in zip(planes_of(LAYOUT, one.records[b]), planes_of(LAYOUT, other.records[b]), strict=True):
            np.testing.assert_array_equal(x[:, :count].view(np.uint32), y[:, :count].view(np.uint32))


BUDGETS = st.lists(
    st.tuples(st.integers(1, 25), st.integers(4, 20), st.sampled_from([0, 1, 3])), min_size=1, max_size=3
)


@pytest.mark.parametrize("strategy", [DEFAULT, MCMC], ids=["default", "mcmc"])
@hypothesis_settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 30), batch=st.integers(1, 3), budgets=BUDGETS)
def test_tiers_agree_with_plain_memory(strategy, seed, batch, budgets):
    model = run_model(make_case(seed, batch), strategy)
    tiers = within(300, lambda: run_tiers(make_case(seed, batch), strategy, budgets))
    assert_alike(model, tiers)


@pytest.mark.parametrize("strategy", [DEFAULT, MCMC], ids=["default", "mcmc"])
def test_the_model_sees_every_kind_of_event(strategy):
    """The property test would mean little if blocks did not split and shrink."""
    before = make_case(3, 2).store.table["count"].copy()
    table = run_model(make_case(3, 2), strategy).table
    assert len(table) > 12
    assert table["count"].max() <= 64
    assert (table["count"][:12] < before).any()


def test_the_model_sees_merges(monkeypatch):
    merged = []
    monkeypatch.setattr(settle, "joined", lambda *args: merged.append(1) or merge.joined(*args))
    for seed in range(10):
        run_model(make_case(seed, 2), DEFAULT)
    assert len(merged) > 3
