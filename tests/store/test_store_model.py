"""The store against a plain model in memory, through random histories with reopening and crashes (Hypothesis)."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.store.store_cases import SMALL_SCRATCH, plane_subsets, random_seeds, random_slot, read_slots
from tidegs.gaussians.layout import RECORD_PLANES
from tidegs.store.block_store import BlockStore
from tidegs.store.memory import aligned_slots

SUBSETS = plane_subsets(RECORD_PLANES)


class StoreMachine(RuleBasedStateMachine):
    """`newest` and `committed` map block ids to record bytes; `scratch` to whole slots that hold partial gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.newest: dict[int, bytes] = {}
        self.committed: dict[int, bytes] = {}
        self.scratch: dict[int, bytes] = {}
        self.meta = b""
        self.commits = 0

    @initialize()
    def create(self) -> None:
        self.store = BlockStore.create(self.folder / "s", SMALL_SCRATCH, io_threads=1)
        self.commit(b"first")

    @rule(n=st.integers(1, 5))
    def allocate(self, n: int) -> None:
        ids = self.store.allocate(n).tolist()
        assert not set(ids) & set(self.newest)
        assert len(self.store.table) <= len(self.newest) + n or max(ids) < len(self.store.table)
        for block in ids:
            self.newest[block] = bytes(SMALL_SCRATCH.record_nbytes)
            self.store.table["count"][block] = 64

    @precondition(lambda self: self.newest)
    @rule(data=st.data(), seed=st.integers(0, 2**32), scratch=st.booleans())
    def write(self, data: st.DataObject, seed: int, scratch: bool) -> None:
        blocks = data.draw(st.lists(st.sampled_from(sorted(self.newest)), unique=True, min_size=1, max_size=6))
        rng = np.random.default_rng(seed)
        extra = ("grads",) if scratch else ()
        picks = [SUBSETS[rng.integers(len(SUBSETS))] + extra for _ in blocks]
        slots = [random_slot(SMALL_SCRATCH, planes, rng) for planes in picks]
        self.store.write(blocks, slots, scratch=scratch)
        for block, slot in zip(blocks, slots, strict=True):
            self.newest[block] = slot[: SMALL_SCRATCH.record_nbytes].tobytes()
            self.scratch.pop(block, None)
            if scratch:
                self.scratch[block] = slot.tobytes()

    @precondition(lambda self: self.newest)
    @rule(data=st.data(), seed=st.integers(0, 2**32))
    def write_seeds(self, data: st.DataObject, seed: int) -> None:
        block = data.draw(st.sampled_from(sorted(self.newest)))
        self.store.write_seeds([block], [random_seeds(SMALL_SCRATCH, 64, np.random.default_rng(seed))])
        self.newest[block] = read_slots(self.store, [block])[0].tobytes()
        self.scratch.pop(block, None)

    @precondition(lambda self: self.newest)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(sorted(self.newest)), unique=True, min_size=1, max_size=3))
        self.store.free(blocks)
        for block in blocks:
            del self.newest[block]
            self.scratch.pop(block, None)

    @rule(meta=st.binary(max_size=20))
    def commit(self, meta: bytes) -> None:
        self.commits += 1
        assert self.store.commit(meta) == self.commits
        self.committed, self.meta, self.scratch = dict(self.newest), meta, {}

    @rule(readonly=st.booleans())
    def crash_and_reopen(self, readonly: bool) -> None:
        self.store.close()
        if readonly:
            with BlockStore.open(self.folder / "s", readonly=True, io_threads=1) as store:
                self.check(store, self.committed)
        self.store = BlockStore.open(self.folder / "s", with_grads=True, io_threads=1)
        assert self.store.snapshot == self.commits
        self.newest, self.scratch = dict(self.committed), {}

    @rule()
    def read_scratch(self) -> None:
        slots = aligned_slots(len(self.scratch), SMALL_SCRATCH.slot_nbytes)
        slots[:] = 0xEE
        self.store.read(sorted(self.scratch), list(slots))
        assert [s.tobytes() for s in slots] == [self.scratch[b] for b in sorted(self.scratch)]

    @invariant()
    def newest_is_read(self) -> None:
        if hasattr(self, "store"):
            self.check(self.store, self.newest)
            assert self.store.meta == self.meta

    @invariant()
    def extents_are_used_once(self) -> None:
        """Records of now and of the snapshot lie apart, and the allocator counts exactly these."""
        if not hasattr(self, "store"):
            return
        for kind, extents in enumerate(self.store.records.extents):
            now, n = self.store.table, len(self.store.table)
            places = set(now["offset"][now["kind"] == kind].tolist())
            assert len(places) == np.count_nonzero(now["kind"] == kind)
            places |= set(self.store._snap_offset[:n][self.store._snap_kind[:n] == kind].tolist())
            assert extents.used == len(places)

    def check(self, store: BlockStore, expected: dict[int, bytes]) -> None:
        assert np.flatnonzero(store.table["count"]).tolist() == sorted(expected)
        slots = read_slots(store, sorted(expected))
        assert [s.tobytes() for s in slots] == [expected[b] for b in sorted(expected)]

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
        shutil.rmtree(self.folder)


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
