"""A small life of a store, told step by step, with an oracle of what each snapshot holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.store.store_cases import SMALL_SCRATCH, contents, plane_subsets, random_seeds, random_slot, read_slots
from tidegs.errors import StoreError
from tidegs.gaussians.layout import RECORD_PLANES
from tidegs.store.block_store import BlockStore
from tidegs.store.files import Files

SUBSETS = plane_subsets(RECORD_PLANES)
Contents = dict[int, bytes]


@dataclass
class Oracle:
    """What the store must hold: record bytes by block, for each snapshot number."""

    newest: Contents = field(default_factory=dict)
    snapshots: dict[int, Contents] = field(default_factory=dict)
    committed: int = 0  # the last snapshot whose commit returned
    doubtful: int = 0  # a later one whose commit was begun

    def check(self, path: Path) -> int:
        """Opens the store with the system's own file operations: exactly the last snapshot, or the one whose commit was
        under way. Returns its number; 0 where there rightly is none yet."""
        if self.committed == 0:
            try:
                store = BlockStore.open(path, io_threads=0)
            except StoreError:
                return 0
        else:
            store = BlockStore.open(path, io_threads=0)
        with store:
            allowed = {n for n in (self.committed, self.doubtful) if n}
            assert store.snapshot in allowed, f"snapshot {store.snapshot} where {allowed} may be"
            assert store.meta == str(store.snapshot).encode()
            assert contents(store) == self.snapshots[store.snapshot]
            return store.snapshot


class Life:
    """Runs the steps. A step that fails is tried once more, as a user would; then the life ends."""

    def __init__(
        self, path: Path, files: Files, seed: int = 0, mark: Callable[[int], None] = lambda _: None, steps: int = 14
    ) -> None:
        self.path, self.files, self.seed, self.mark, self.steps = path, files, seed, mark, steps
        self.oracle = Oracle()
        self.store: BlockStore | None = None
        self.errors: list[StoreError] = []

    def run(self) -> None:
        """Every exception but StoreError is a defect and is passed on."""
        rng = np.random.default_rng(self.seed)
        plan: list[Callable[[np.random.Generator], None]] = [self.create, self.grow, self.commit, self.reopen]
        plan += [self.ACTIONS[i](self) for i in rng.integers(0, len(self.ACTIONS), self.steps)]
        plan += [self.write, self.commit, self.seeds, self.reopen, self.write, self.commit]
        try:
            for step in plan:
                seed = rng.integers(1 << 30)
                try:
                    step(np.random.default_rng(seed))
                except StoreError as e:
                    self.errors.append(e)
                    step(np.random.default_rng(seed))
        except StoreError as e:
            self.errors.append(e)
        finally:
            if self.store:
                self.store.close()

    def create(self, rng: np.random.Generator) -> None:
        self.store = BlockStore.create(self.path, SMALL_SCRATCH, io_threads=0, files=self.files)

    def grow(self, rng: np.random.Generator) -> None:
        assert self.store
        ids = self.store.allocate(3).tolist()
        self.store.table["count"][ids] = 64
        self.oracle.newest |= {b: bytes(SMALL_SCRATCH.record_nbytes) for b in ids}
        self.write(rng)

    def write(self, rng: np.random.Generator, scratch: bool = False) -> None:
        assert self.store
        blocks = sorted(self.oracle.newest)
        blocks = [b for b in blocks if rng.random() < 0.6] or blocks[:1]
        planes = [SUBSETS[rng.integers(len(SUBSETS))] for _ in blocks]
        slots = [random_slot(SMALL_SCRATCH, p + ("grads",) * scratch, rng) for p in planes]
        self.store.write(blocks, slots, scratch=scratch)
        for block, slot in zip(blocks, slots, strict=True):
            self.oracle.newest[block] = slot[: SMALL_SCRATCH.record_nbytes].tobytes()

    def write_scratch(self, rng: np.random.Generator) -> None:
        self.write(rng, scratch=True)

    def seeds(self, rng: np.random.Generator) -> None:
        assert self.store
        block = min(self.oracle.newest)
        self.store.write_seeds([block], [random_seeds(SMALL_SCRATCH, 64, rng)])
        self.oracle.newest[block] = read_slots(self.store, [block])[0].tobytes()

    def free(self, rng: np.random.Generator) -> None:
        assert self.store
        if len(self.oracle.newest) > 2:
            block = max(self.oracle.newest)
            self.store.free([block])
            del self.oracle.newest[block]

    def read(self, rng: np.random.Generator) -> None:
        assert self.store
        assert contents(self.store) == self.oracle.newest

    def commit(self, rng: np.random.Generator) -> None:
        assert self.store
        number = self.oracle.committed + 1
        self.oracle.snapshots[number] = dict(self.oracle.newest)
        self.oracle.doubtful = number
        self.mark(number)
        assert self.store.commit(str(number).encode()) == number
        self.oracle.committed = number
        self.mark(-number)

    def reopen(self, rng: np.random.Generator) -> None:
        if self.store:
            self.store.close()
        self.store = BlockStore.open(self.path, with_grads=True, io_threads=0, files=self.files)
        assert self.store.snapshot == self.oracle.committed
        self.oracle.newest = dict(self.oracle.snapshots[self.oracle.committed])

    ACTIONS: tuple[Callable[[Life], Callable], ...] = (
        lambda self: self.grow,
        lambda self: self.write,
        lambda self: self.write,
        lambda self: self.write_scratch,
        lambda self: self.seeds,
        lambda self: self.free,
        lambda self: self.read,
        lambda self: self.commit,
        lambda self: self.reopen,
    )
