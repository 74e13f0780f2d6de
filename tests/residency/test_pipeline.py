"""The pipeline against a plain model in memory: any capacities, any interleaving, nothing stale, nothing lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from residency_fakes import (
    LAYOUT,
    SETTINGS,
    FakeDevice,
    MemoryStore,
    fill_records,
    run_pass,
    toy_table,
    toy_views,
    within,
)

from tidegs.errors import CapacityError, CorruptError, StoreError
from tidegs.residency.passes import Pass, PassPlanner
from tidegs.residency.pipeline import Residency
from tidegs.residency.schedule import Step
from tidegs.residency.visibility import Bounds


class Rig:
    """A toy scene with a pipeline, and the model: every slot in memory, updated by the same passes."""

    def __init__(self, seed: int, blocks: int, arena: int, host: int, most: int | None = None, chaos: bool = True):
        rng = np.random.default_rng(seed)
        self.views = toy_views(rng, 12)
        self.store = MemoryStore(LAYOUT, toy_table(rng, blocks), seed if chaos else None)
        self.home = self.store.table.copy()
        fill_records(self.store)
        self.device = FakeDevice(seed if chaos else None)
        self.residency = Residency(self.store, self.device, LAYOUT, arena, host, SETTINGS, max_pass_blocks=most)
        self.model = np.full((blocks, LAYOUT.slot_nbytes), 0xFF, np.uint8)
        for b in range(blocks):
            self.model[b, : LAYOUT.record_nbytes] = self.store.records[b]
        self.log: list[tuple] = []
        self.steps = [
            Step(i, tuple(int(c) for c in rng.integers(0, len(self.views), rng.integers(1, 4)))) for i in range(14)
        ]

    def do(self, p: Pass) -> None:
        """Both the device and the model run the pass."""
        self.log.append((p.step, p.camera, p.position, p.phase, p.part, p.ids.tolist(), p.flags.tolist()))
        assert p.blocks.counts.tolist() == self.home["count"][p.ids].tolist()
        self.device.in_pass = set(p.blocks.slots.tolist())
        assert len(self.device.in_pass) == len(p.ids)
        updates = run_pass([self.device.arena[s] for s in p.blocks.slots], p, self.home, LAYOUT)
        run_pass([self.model[b] for b in p.ids], p, self.home, LAYOUT)
        self.device.in_pass = set()
        self.residency.done(p, updates)

    def train(self, steps: list[Step]) -> None:
        for p in self.residency.run(steps, self.views):
            self.do(p)

    def check_store(self) -> None:
        """After a flush the store holds what the model holds."""
        self.residency.flush()
        self.store.commit(b"")
        for b, record in self.store.records.items():
            assert np.array_equal(record, self.model[b, : LAYOUT.record_nbytes]), f"block {b}"


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    blocks=st.integers(80, 200),
    spare=st.integers(0, 60),
    host=st.one_of(st.integers(1, 6), st.integers(7, 150)),
)
def test_any_capacities_give_what_plain_memory_gives(seed: int, blocks: int, spare: int, host: int) -> None:
    def drive() -> None:
        rig = Rig(seed, blocks, 1 + spare, host)
        try:
            rig.train(rig.steps[:8])
            rig.check_store()
            for block, slot in rig.residency.visit(range(blocks)):
                assert np.array_equal(slot[: LAYOUT.record_nbytes], rig.model[block, : LAYOUT.record_nbytes])
            rig.train(rig.steps[8:])
            newest = dict((b, s[: LAYOUT.record_nbytes].copy()) for b, s in rig.residency.visit(range(blocks)))
            assert all(np.array_equal(newest[b], rig.model[b, : LAYOUT.record_nbytes]) for b in range(blocks))
            rig.check_store()
            assert rig.residency.counters.dropped_blocks == 0
        finally:
            rig.residency.close()

    within(120, drive)
