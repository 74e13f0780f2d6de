"""The pipeline against a plain model in memory: any capacities, any interleaving, nothing stale, nothing lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.residency.residency_fakes import (
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
from tidegs.device.base import BlockFlags
from tidegs.errors import CapacityError, CorruptError, StoreError
from tidegs.residency.passes import Pass
from tidegs.residency.pipeline import Residency
from tidegs.residency.schedule import Step


class Rig:
    """A toy scene with a pipeline, and the model: every slot in memory, updated by the same passes."""

    def __init__(
        self,
        seed: int,
        blocks: int,
        arena: int,
        host: int,
        most: int | None = None,
        longest: int = 60,
        keeps: bool = True,
        direct: bool = False,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.views = toy_views(rng, 12)
        self.store = MemoryStore(LAYOUT, toy_table(rng, blocks), seed, longest)
        self.home = self.store.table.copy()
        fill_records(self.store)
        self.device = FakeDevice(seed)
        self.residency = Residency(
            self.store,
            self.device,
            LAYOUT,
            arena,
            host,
            SETTINGS,
            max_pass_blocks=most,
            host_keeps=keeps,
            link=(lambda: self.device) if direct else None,
        )
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


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    blocks=st.integers(80, 200),
    spare=st.integers(0, 60),
    host=st.one_of(st.integers(1, 6), st.integers(7, 150)),
    way=st.sampled_from(["kept", "passing through", "straight"]),
)
def test_any_capacities_give_what_plain_memory_gives(seed: int, blocks: int, spare: int, host: int, way: str) -> None:
    def drive() -> None:
        rig = Rig(seed, blocks, 1 + spare, host, keeps=way == "kept", direct=way == "straight")
        try:
            rig.train(rig.steps[:8])
            rig.check_store()
            for block, slot in rig.residency.visit(range(blocks)):
                assert np.array_equal(slot[: LAYOUT.record_nbytes], rig.model[block, : LAYOUT.record_nbytes])
            rig.train(rig.steps[8:])
            newest = {b: s[: LAYOUT.record_nbytes].copy() for b, s in rig.residency.visit(range(blocks))}
            assert all(np.array_equal(newest[b], rig.model[b, : LAYOUT.record_nbytes]) for b in range(blocks))
            rig.check_store()
            assert rig.residency.counters.dropped_blocks == 0
        finally:
            rig.residency.close()

    within(120, drive)


def run_rig(*args: object, **kwargs: object) -> Rig:
    """A rig that has trained all its steps and been flushed and checked."""

    def drive() -> Rig:
        rig = Rig(*args, **kwargs)  # type: ignore[arg-type]
        try:
            rig.train(rig.steps)
            rig.check_store()
        finally:
            rig.residency.close()
        return rig

    return within(120, drive)


def test_passes_depend_on_their_greatest_size_alone() -> None:
    logs = [run_rig(7, 150, arena, host, most=20).log for arena, host in ((20, 1), (33, 9), (200, 200))]
    assert logs[0] == logs[1] == logs[2]
    assert any(entry[3] == "backward" for entry in logs[0])
    assert run_rig(7, 150, 200, 5, most=40).log != logs[0]


def test_a_read_never_overtakes_the_write_of_its_block() -> None:
    """Writes take so long that whatever does not wait for them comes too early."""
    rig = run_rig(15, 120, 16, 1, longest=3000)
    assert rig.residency.counters.blocks["write"] > 120  # blocks were written, read again and written again


def test_records_go_straight_where_they_can() -> None:
    """Nothing comes down to the host, and up from it only what needs the host; nothing stays there."""
    straight = run_rig(15, 120, 16, 16, longest=3000, keeps=False, direct=True)
    passing = run_rig(15, 120, 16, 16, longest=3000, keeps=False)
    moved = straight.residency.counters.blocks
    assert moved["write"] == straight.store.stowed > 120
    assert moved["upload"] == moved["read"]
    assert 0 < moved["read"] - straight.store.fetched <= 120 / 3 + 1
    assert straight.residency.counters.peak_slots["host"] == passing.residency.counters.peak_slots["host"] == 0
    assert straight.log == passing.log


def test_parts_and_batches_update_each_block_once_a_step() -> None:
    log = run_rig(8, 150, 16, 4).log
    for step in {entry[0] for entry in log}:
        passes = [e for e in log if e[0] == step]
        firsts = [b for e in passes for b, f in zip(e[5], e[6], strict=True) if f & BlockFlags.FIRST_OF_STEP]
        lasts = [b for e in passes for b, f in zip(e[5], e[6], strict=True) if f & BlockFlags.LAST_OF_STEP]
        assert sorted(firsts) == sorted(lasts) == sorted({b for e in passes for b in e[5]})
        for position in {e[2] for e in passes}:
            phases = [e[3] for e in passes if e[2] == position]
            parts = phases.count("forward")
            assert phases == ["forward"] * parts + ["whole"] + ["backward"] * parts


def test_a_scene_that_fits_is_loaded_once_and_never_moves_again() -> None:
    rig = run_rig(9, 120, 120, 8)
    used = len({b for entry in rig.log for b in entry[5]})
    moved = rig.residency.counters.blocks
    assert used <= moved["read"] == moved["upload"] <= 120
    assert 0 < moved["write"] <= 120  # the flush at the end alone
    assert rig.residency.counters.snapshot()["dropped_blocks"] == 0


def test_a_second_flush_writes_nothing() -> None:
    rig = Rig(10, 120, 30, 20)
    rig.train(rig.steps[:4])
    rig.check_store()
    calls = rig.store.calls["write"]
    rig.check_store()
    assert rig.store.calls["write"] == calls
    rig.residency.close()


def test_rendering_between_steps_changes_nothing_and_training_goes_on() -> None:
    rig, plain = Rig(11, 150, 24, 12), Rig(11, 150, 24, 12)

    def drive() -> None:
        for p in rig.residency.run(rig.steps, rig.views):
            rig.do(p)
            if p.last_of_step and p.step % 3 == 0:
                for q in rig.residency.render(range(12), rig.views):
                    assert q.phase == "render"
                    rig.do(q)
        rig.check_store()
        plain.train(plain.steps)
        plain.check_store()

    within(120, drive)
    assert [e for e in rig.log if e[3] != "render"] == plain.log
    assert all(np.array_equal(rig.store.records[b], plain.store.records[b]) for b in range(150))
    rig.residency.close()
    plain.residency.close()


@pytest.mark.parametrize("kind", ["read", "write"])
@pytest.mark.parametrize("call", [1, 2, 5, 20])
def test_a_failing_store_stops_the_run_with_its_own_error(kind: str, call: int) -> None:
    rig = Rig(12, 150, 24, 3)
    error = (CorruptError if kind == "read" else StoreError)(f"records.base: block 3, {kind} {call}")

    def fail(which: str, number: int) -> None:
        if which == kind and number == call:
            raise error

    rig.store.fail = fail

    def train_and_flush() -> None:
        rig.train(rig.steps * 3)
        rig.residency.flush()

    def drive() -> None:
        with pytest.raises(type(error)) as raised:
            train_and_flush()
        assert raised.value is error
        calls = dict(rig.store.calls)
        with pytest.raises(type(error)):
            rig.residency.flush()
        with pytest.raises(type(error)):
            next(rig.residency.run(rig.steps, rig.views))
        rig.residency.close()
        assert rig.store.calls["write"] == calls["write"] or kind == "read"

    within(60, drive)
    assert not rig.store.committed


def test_a_trainer_that_breaks_off_can_go_on_with_another_run() -> None:
    rig = Rig(13, 150, 24, 12)

    def drive() -> None:
        for p in rig.residency.run(rig.steps, rig.views):
            rig.do(p)
            if p.last_of_step and p.step == 5:
                break
        rig.train(rig.steps[6:])
        rig.check_store()
        assert not rig.residency._planner.state.pins.any()
        rig.residency.close()

    within(60, drive)


def test_misuse_is_refused() -> None:
    rig = Rig(14, 100, 30, 10)
    passes = rig.residency.run(rig.steps, rig.views)
    p = next(passes)
    with pytest.raises(ValueError, match="between two steps"):
        rig.residency.flush()
    with pytest.raises(ValueError, match="between two steps"):
        next(rig.residency.visit([0]))
    with pytest.raises(ValueError, match="before done"):
        next(passes)
    with pytest.raises(ValueError, match="handed out last"):
        rig.residency.done(p)
    rig.residency.close()


def test_budgets_without_a_slot_are_refused() -> None:
    table = toy_table(np.random.default_rng(0), 10)
    for arena, host in ((0, 4), (4, 0)):
        with pytest.raises(CapacityError, match="room for at least 1"):
            Residency(MemoryStore(LAYOUT, table), FakeDevice(), LAYOUT, arena, host, SETTINGS)
