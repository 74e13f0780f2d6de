"""Every call of a small run fails once, and from some call on all fail: exactly the last snapshot, or a typed error."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.faults.fault_files import FailingFiles, Fault, each_call
from tests.faults.scenario import Life
from tests.store.store_cases import SMALL, contents, filled_store
from tidegs.errors import CorruptError, StoreError
from tidegs.gaussians.layout import RecordLayout
from tidegs.store import unfinished
from tidegs.store.block_store import BlockStore
from tidegs.store.ingest import IngestOptions, ingest_points
from tidegs.store.memory import aligned_slots

STICKY = 1 << 60
KINDS = [("EIO", 0), ("EIO", STICKY), ("ENOSPC", 0), ("ENOSPC", STICKY)]
HARMLESS = [("EINTR", 0), ("EINTR", 3), ("short", 0), ("short", STICKY)]


def live(folder: Path, files: FailingFiles, seed: int) -> Life:
    shutil.rmtree(folder, ignore_errors=True)
    life = Life(folder, files, seed)
    life.run()
    return life


def check_each(quick_folder: Path, seed: int, step: int, injected: list[int]) -> None:
    folder = quick_folder / "s"
    for fault in each_call(lambda files: live(folder, files, seed), KINDS + HARMLESS, step):
        files = FailingFiles(fault)
        life = live(folder, files, seed)
        assert files.injected, fault
        assert not any(isinstance(e, CorruptError) for e in life.errors), (fault, life.errors)
        if fault.kind in ("EINTR", "short"):
            assert not life.errors, (fault, life.errors)
        try:
            life.oracle.check(folder)
        except Exception as e:
            raise AssertionError(f"after {fault} ({files.log[-1]}; {life.errors}): {e}") from e
        injected.append(1)


def test_any_call_may_fail(quick_folder: Path, injected: list[int]) -> None:
    check_each(quick_folder, seed=0, step=9, injected=injected)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_call_may_fail(quick_folder: Path, seed: int, injected: list[int]) -> None:
    check_each(quick_folder, seed, step=1, injected=injected)


def ingest(folder: Path, files: FailingFiles | None) -> BlockStore:
    rng = np.random.default_rng(0)
    chunks = [(rng.normal(size=(2000, 3)).astype(np.float32), np.zeros((2000, 3), np.uint8)) for _ in range(5)]
    options = IngestOptions(memory_budget=1 << 20, source="cloud")
    return ingest_points(folder, chunks, RecordLayout(512), options, files=files)


def begin_ingest(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves an ingest that was interrupted while it wrote blocks."""
    save, calls = unfinished.Unfinished.save, iter(range(1 << 30))

    def interrupted(self: unfinished.Unfinished, state: dict[str, np.ndarray]) -> None:
        save(self, state)
        if next(calls) == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(unfinished.Unfinished, "save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ingest(folder, None)


@pytest.mark.parametrize("begun", [False, True], ids=["new", "begun"])
@pytest.mark.parametrize("step", [pytest.param(23, id="some"), pytest.param(1, id="every", marks=pytest.mark.slow)])
def test_an_ingest_that_fails_can_be_repeated(
    quick_folder: Path, step: int, begun: bool, injected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unfinished, "KEEP_NBYTES", 1 << 15)
    with ingest(quick_folder / "right", None) as store:
        right = contents(store)
    if begun:
        begin_ingest(quick_folder / "begun", monkeypatch)
    folder = quick_folder / "s"

    def attempt(files: FailingFiles | None) -> bool:
        try:
            ingest(folder, files).close()
        except StoreError:
            return False
        return True

    def fresh(files: FailingFiles) -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        if begun:
            shutil.copytree(quick_folder / "begun", folder)
        return attempt(files)

    for fault in each_call(fresh, KINDS + HARMLESS, step):
        done = fresh(files := FailingFiles(fault))
        assert files.injected
        if not done:
            assert fault.kind not in ("EINTR", "short")
            try:
                BlockStore.open(folder, readonly=True, io_threads=0).close()
            except StoreError:
                assert attempt(None), fault
        with BlockStore.open(folder, io_threads=0) as store:
            assert contents(store) == right, fault
        injected.append(1)


def test_a_failed_fsync_poisons_the_store(quick_folder: Path) -> None:
    folder, slot = quick_folder / "s", aligned_slots(1, SMALL.slot_nbytes)
    for k in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        files = FailingFiles()
        store = filled_store(folder, files)
        before = contents(store)
        slot[:] = 1
        store.write([3], list(slot))
        files.log.clear()
        files.fail_only, files.fault, files.calls = "fsync", Fault("EIO", k), 0
        if not _commit_fails(store):
            assert k >= 4, "records, table, folder and root are synced"
            return
        for use in (lambda s: s.read([0], list(slot)), lambda s: s.write([0], list(slot)), lambda s: s.commit(b"x")):
            with pytest.raises(StoreError, match="failed earlier"):
                use(store)
        store.close()
        with BlockStore.open(folder) as again:
            slot[:] = 1
            assert contents(again) in (before, before | {3: slot[0].tobytes()})


def _commit_fails(store: BlockStore) -> bool:
    try:
        store.commit(b"second")
    except StoreError:
        return True
    return False
