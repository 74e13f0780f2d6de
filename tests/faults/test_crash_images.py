"""Power cuts: every prefix of the changes of a small life, with those not yet synced lost, kept, reordered or torn."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.faults.crash_image import CUTS, Disk
from tests.faults.fault_files import RecordingFiles
from tests.faults.scenario import Life, Oracle
from tests.store.store_cases import SMALL, contents, random_slot
from tidegs.store import records
from tidegs.store.block_store import BlockStore


@pytest.fixture
def small_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that hold little, so that images of them are quick."""
    monkeypatch.setattr(records, "_GROW_LEAST", 1 << 16)


def cut_power(folder: Path, seed: int, every: int, steps: int) -> int:
    """Checks images at every `every`-th event; returns how many."""
    files = RecordingFiles(folder)
    life = Life(folder / "s", files, seed, files.mark, steps)
    life.run()
    assert not life.errors
    oracle, disk, rng, images = Oracle(snapshots=life.oracle.snapshots), Disk(), np.random.default_rng(seed), 0
    for i, event in enumerate(files.events):
        disk.follow(event)
        if event.what == "mark" and event.offset > 0:
            oracle.doubtful = event.offset
        elif event.what == "mark":
            oracle.committed = -event.offset
        if i % every and event.what != "mark":
            continue
        for cut in CUTS[:1] if disk.is_settled() else CUTS:
            image = folder / "image"
            shutil.rmtree(image, ignore_errors=True)
            disk.write_image(image, cut, rng)
            try:
                oracle.check(image / "s")
            except Exception as e:
                raise AssertionError(f"seed {seed}, event {i} ({event.what} {event.name}), {cut}: {e}") from e
            images += 1
        if oracle.committed and rng.random() < 0.3:
            images += kill_then_cut_power(folder, disk, rng)
    return images


def kill_then_cut_power(folder: Path, disk: Disk, rng: np.random.Generator) -> int:
    """The process dies now: what it wrote can be seen, synced or not. The next process opens the store and commits,
    and the power is cut meanwhile."""
    killed, image = folder / "killed", folder / "again"
    shutil.rmtree(killed, ignore_errors=True)
    disk.write_image(killed, CUTS[1], rng)
    disk, files, oracle = copy.deepcopy(disk), RecordingFiles(killed), Oracle()
    with BlockStore.open(killed / "s", io_threads=0, files=files) as store:
        opened = len(files.events)
        oracle.snapshots[store.snapshot], oracle.committed = contents(store), store.snapshot
        blocks = np.flatnonzero(store.table["count"])
        store.write(blocks, [random_slot(SMALL, ("base", "rest"), rng) for _ in blocks])
        oracle.doubtful = store.snapshot + 1
        oracle.snapshots[oracle.doubtful] = contents(store)
        store.commit(str(oracle.doubtful).encode())
    for i, event in enumerate(files.events):
        disk.follow(event)
        if i < opened:
            continue
        for cut in CUTS:
            shutil.rmtree(image, ignore_errors=True)
            disk.write_image(image, cut, rng)
            oracle.check(image / "s")
    return (len(files.events) - opened) * len(CUTS)


def test_power_may_be_cut_at_any_moment(quick_folder: Path, small_growth: None, injected: list[int]) -> None:
    injected.append(cut_power(quick_folder, seed=0, every=5, steps=6))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 13))
def test_power_may_be_cut_at_every_moment(
    quick_folder: Path, small_growth: None, seed: int, injected: list[int]
) -> None:
    injected.append(cut_power(quick_folder, seed, every=1, steps=16))
