"""Care of a store: verify all of it, copy it to a new place, give free space back.

Invariant: compaction and copies go through the same writes and commits as training, so that a crash loses nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tqdm import tqdm

from tidegs.errors import CorruptError, StoreError
from tidegs.store import format as fmt
from tidegs.store.block_store import BlockStore
from tidegs.store.files import Files
from tidegs.store.memory import aligned_slots
from tidegs.store.root import RootFile

_BATCH_NBYTES = 32 << 20


@dataclass
class CheckReport:
    """What a check found. `problems`: one sentence each; empty for a sound store."""

    snapshot: int = 0
    blocks: int = 0
    bytes_read: int = 0
    problems: list[str] = field(default_factory=list)


def check_store(path: str | os.PathLike, progress: bool = False) -> CheckReport:
    """Reads every record of the last snapshot and verifies it, and what else must hold. StoreError where the store is
    in use or is none; damage goes into the report."""
    report, folder = CheckReport(), Path(path)
    try:
        _, mirrored = RootFile.read(folder, Files())
        if not mirrored:
            report.problems.append(
                f"{folder / fmt.ROOT}: one of the two root slots is damaged; opening the store for writing mends it"
            )
        store = BlockStore.open(folder, readonly=True)
    except CorruptError as e:
        report.problems.append(str(e))
        return report
    with store:
        report.snapshot = store.snapshot
        blocks = np.flatnonzero(store.table["count"] > 0)
        for ids, slots in _batches(store, blocks, "check", progress):
            _check_batch(store, ids, slots, report)
            report.blocks += len(ids)
        report.bytes_read = store.counters.records_read
    return report


def copy_store(source: str | os.PathLike, target: str | os.PathLike, progress: bool = False) -> int:
    """Copies the last snapshot into a new folder, packed and in the order of block ids, and reads all of it back.
    Returns the number of blocks. Leaves nothing behind where it fails."""
    with BlockStore.open(source, readonly=True) as old:
        new = BlockStore.create(target, old.layout, old.seed_opacity)
        try:
            new.allocate(len(old.table))
            for name in set(old.table.dtype.names or ()) - {"offset", "generation", "crc", "planes", "kind"}:
                new.table[name] = old.table[name]
            for ids, slots in _batches(old, np.flatnonzero(old.table["count"] > 0), "copy", progress):
                _move(old, new, ids, slots)
            new.records.trim()
            new.commit(old.meta)
            if not all(np.array_equal(new.table[name], old.table[name]) for name in ("crc", "planes", "kind")):
                raise StoreError(f"{target}: the copy differs from {source}: do not use it")
        except BaseException:
            new.abandon()
            raise
        new.close()
    report = check_store(target, progress)
    if report.problems:
        raise CorruptError(f"the copy was read back wrong: {report.problems[0]}")
    return report.blocks


def compact_store(path: str | os.PathLike, progress: bool = False) -> int:
    """Moves records into the holes of their files, commits, and cuts the files; returns the bytes given back."""
    with BlockStore.open(path) as store:
        rows, high = store.table, np.zeros(len(store.table), bool)
        for kind in range(len(fmt.KINDS)):
            mine = rows["kind"] == kind
            high |= mine & (rows["offset"] >= int(mine.sum()) * store.records.nbytes[kind])
        for ids, slots in _batches(store, np.flatnonzero(high), "compact", progress):
            _move(store, store, ids, slots)
        if high.any():
            store.commit(store.meta)
        return store.records.trim()


def _batches(
    store: BlockStore, blocks: np.ndarray, name: str, progress: bool
) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
    """Block ids in order, and slots to read them into."""
    nbytes = max(store.layout.slot_nbytes, store.seed_nbytes)
    count = max(1, _BATCH_NBYTES // nbytes)
    slots = list(aligned_slots(min(count, max(1, len(blocks))), nbytes))
    for first in tqdm(range(0, len(blocks), count), desc=name, unit=" batch", disable=not progress):
        ids = blocks[first : first + count]
        yield ids, slots[: len(ids)]


def _check_batch(store: BlockStore, ids: np.ndarray, slots: list[np.ndarray], report: CheckReport) -> None:
    try:
        store.read(ids, slots)
    except StoreError:
        for block, slot in zip(ids, slots, strict=True):
            try:
                store.read([block], [slot])
            except StoreError as e:
                report.problems.append(str(e))


def _move(old: BlockStore, new: BlockStore, ids: np.ndarray, slots: list[np.ndarray]) -> None:
    """Reads blocks of one store and writes them to another, or to another place: seeds as seeds."""
    seeds = old.table["kind"][ids] == fmt.SEEDS
    if seeds.any():
        old.read_seeds(ids[seeds], slots[: seeds.sum()])
        new.write_seeds(ids[seeds], slots[: seeds.sum()])
    if not seeds.all():
        old.read(ids[~seeds], slots[: (~seeds).sum()])
        new.write(ids[~seeds], slots[: (~seeds).sum()])
