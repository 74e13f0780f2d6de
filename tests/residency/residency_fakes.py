"""A store and a device in plain memory, strict about what residency may do with them; a toy scene to look at."""

from __future__ import annotations

import faulthandler
import mmap
import os
import random
import sys
import threading
from collections.abc import Callable
from contextlib import contextmanager

import numpy as np
import pytest

from tidegs.device.base import BlockFlags, BlockUpdates, RenderSettings, View
from tidegs.gaussians.layout import RecordLayout
from tidegs.residency.passes import Pass
from tidegs.store.base import TABLE_DTYPE

SETTINGS = RenderSettings()
LAYOUT = RecordLayout(64, sh_degree=0, with_grads=True)
PRIME = 65521  # values stay whole numbers under 2^24, exact in float32


def within(seconds: float, work: Callable[[], object]) -> object:
    """Runs `work` in a thread; a hang fails the test, with the stacks of all threads."""
    result: list[object] = []
    errors: list[BaseException] = []

    def target() -> None:
        try:
            result.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        faulthandler.dump_traceback(file=sys.__stderr__)
        pytest.fail(f"still running after {seconds} s")
    if errors:
        raise errors[0]
    return result[0]


class Chaos:
    """Yields the processor a seeded number of times, so that threads interleave in many ways."""

    def __init__(self, seed: int | None, longest: int = 60) -> None:
        self._random = None if seed is None else random.Random(seed)
        self._longest = longest

    def __call__(self) -> None:
        if self._random is not None:
            for _ in range(self._random.choice((0, 0, 1, 5, self._longest))):
                os.sched_yield()


class MemoryStore:
    """Like BlockStore, in memory. `fail` may raise at the k-th read or write."""

    def __init__(self, layout: RecordLayout, table: np.ndarray, chaos: int | None = None, longest: int = 60):
        self.layout, self.table = layout, table
        self.records = {b: np.zeros(layout.record_nbytes, np.uint8) for b in range(len(table))}
        self.mid_step: dict[int, np.ndarray] = {}
        self.calls = {"read": 0, "write": 0}
        self.fetched = self.stowed = 0
        self.fail: Callable[[str, int], None] = lambda kind, call: None
        self.committed: dict[int, np.ndarray] = {}
        self.meta = b""
        self._busy: set[int] = set()
        self._chaos = {kind: Chaos(chaos, longest if kind == "write" else 60) for kind in self.calls}

    def read(self, blocks: list[int], slots: list[np.ndarray]) -> None:
        with self._alone("read", blocks):
            for b, slot in zip(blocks, slots, strict=True):
                slot[:] = 0xFF  # NaN: nobody may rely on scratch planes of a record that has none
                slot[: self.layout.record_nbytes] = self.records[b]
                if b in self.mid_step:
                    slot[self.layout.record_nbytes :] = self.mid_step[b]

    def write(self, blocks: list[int], slots: list[np.ndarray], scratch: bool = False) -> None:
        with self._alone("write", blocks):
            for b, slot in zip(blocks, slots, strict=True):
                self.records[b] = slot[: self.layout.record_nbytes].copy()
                self.mid_step.pop(b, None)
                if scratch:
                    self.mid_step[b] = slot[self.layout.record_nbytes :].copy()

    # A third of the records need the host (as seeds do) until they are written.

    def connect(self, link: FakeDevice) -> None:
        self._device, self._written = link, set()

    def can_fetch(self, blocks: np.ndarray) -> np.ndarray:
        return np.array([b % 3 > 0 or b in self._written for b in blocks.tolist()], bool)

    def fetch(self, blocks: list[int], slots: list[int]) -> None:
        assert self.can_fetch(np.array(blocks)).all()
        self._device.check_idle(slots)
        self.read(blocks, [self._device.arena[s] for s in slots])
        self._device.check_idle(slots)
        self.fetched += len(blocks)

    def stow(self, blocks: list[int], slots: list[int], scratch: bool = False) -> None:
        self._device.check_idle(slots)
        self.write(blocks, [self._device.arena[s] for s in slots], scratch)
        self._device.check_idle(slots)
        self._written |= set(blocks)
        self.stowed += len(blocks)

    @contextmanager
    def _alone(self, kind: str, blocks: list[int]):
        assert len(set(blocks)) == len(blocks)
        assert not self._busy & set(blocks), "two calls on one block at the same time"
        self._busy |= set(blocks)
        self.calls[kind] += 1
        self.fail(kind, self.calls[kind])
        self._chaos[kind]()
        yield
        self._busy -= set(blocks)

    def commit(self, meta: bytes) -> int:
        assert not self.mid_step
        self.committed, self.meta = dict(self.records), meta
        return 1

    def close(self) -> None: ...


class FakeDevice:
    """An arena of numpy memory, full of NaN at first. What is out in a pass must not be copied over."""

    name = "fake"

    def __init__(self, chaos: int | None = None) -> None:
        self.in_pass: set[int] = set()
        self._chaos = Chaos(chaos)
        self._chaos_down = Chaos(None if chaos is None else chaos + 1)

    def host_region(self, nbytes: int) -> np.ndarray:
        return np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)

    def open_arena(self, layout: RecordLayout, slots: int) -> None:
        self.arena = np.full((slots, layout.slot_nbytes), 0xFF, np.uint8)

    def check_idle(self, slots: list[int]) -> None:
        assert not self.in_pass & set(slots), "a copy from or to a slot of the running pass"

    def upload(self, host: list[np.ndarray], slots: list[int]) -> None:
        self._chaos()
        self.check_idle(slots)
        for h, s in zip(host, slots, strict=True):
            self.arena[s] = h
        self.check_idle(slots)

    def download(self, slots: list[int], host: list[np.ndarray]) -> None:
        self._chaos_down()
        self.check_idle(slots)
        for h, s in zip(host, slots, strict=True):
            h[:] = self.arena[s]


def run_pass(slots: list[np.ndarray], p: Pass, home: np.ndarray, layout: RecordLayout) -> BlockUpdates | None:
    """A toy backward pass over the slots of a pass, in whole-number arithmetic that depends on order. It checks that
    scratch planes are intact, and moves the bounds of what it changed about those of the table `home`."""
    for block, slot in zip(p.ids.tolist(), slots, strict=True):
        assert layout.view(slot, "base")[1, 0] == block, "not the block that was asked for"
    if not p.has_backward:
        return None
    n = len(p.ids)
    out = BlockUpdates(
        np.full((n, 3), np.nan, np.float32),
        np.full((n, 3), np.nan, np.float32),
        np.full(n, np.nan, np.float32),
        np.zeros(n, np.int32),
        np.ones(n, bool),
        None,
    )
    for i, block in enumerate(p.ids.tolist()):
        flags = int(p.flags[i])
        if block % 7 == 0:  # no row of it takes part
            out.touched[i] = False
            continue
        base, grads = (layout.view(slots[i], name) for name in ("base", "grads"))
        if flags & BlockFlags.FIRST_OF_STEP:
            grads[:] = 0
        grads[0] = (grads[0] * 5 + base[0] + p.camera) % PRIME
        if flags & BlockFlags.LAST_OF_STEP:
            base[0] = (base[0] * 3 + grads[0] + p.step) % PRIME
            if block % 5:
                out.visible[i] = 1
                shift = np.float32(np.sin(float(base[0, 0])) * 0.05)
                out.lo[i], out.hi[i] = home["lo"][block] + shift, home["hi"][block] + shift
                out.extent[i] = home["extent"][block]
    return out


def toy_table(rng: np.random.Generator, blocks: int) -> np.ndarray:
    """Blocks over a square of 16 x 16, in Morton-less random order."""
    table = np.zeros(blocks, TABLE_DTYPE)
    at = rng.uniform(-8, 8, (blocks, 3)) * (1, 1, 0.05)
    size = rng.uniform(0, 0.8, (blocks, 3))
    table["lo"], table["hi"] = at - size / 2, at + size / 2
    table["extent"] = rng.uniform(0.005, 0.05, blocks)
    table["count"] = rng.integers(1, 65, blocks)
    return table


def toy_views(rng: np.random.Generator, count: int, height: float = 4.0) -> list[View]:
    """Cameras that look down."""
    out = []
    for _ in range(count):
        centre = np.array([*rng.uniform(-8, 8, 2), height])
        viewmat = np.eye(4)
        viewmat[:3, :3] = np.diag([1.0, -1.0, -1.0])
        viewmat[:3, 3] = -viewmat[:3, :3] @ centre
        K = np.array([[60.0, 0, 35], [0, 60.0, 28], [0, 0, 1]])
        out.append(View(viewmat.astype(np.float32), K.astype(np.float32), 70, 56))
    return out


def fill_records(store: MemoryStore) -> None:
    """Writes each block's number into its record, to tell blocks apart."""
    for b, record in store.records.items():
        store.layout.view(record, "base")[1] = b
        store.layout.view(record, "base")[0] = b * 31 % PRIME
