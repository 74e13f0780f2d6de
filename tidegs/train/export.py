"""A store's Gaussians as a PLY in the input's frame, block by block.

Invariant: memory does not grow with the scene; the file appears under its name only when it is complete.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from tidegs.data.scene import WorldTransform
from tidegs.gaussians.layout import BASE_FIELDS
from tidegs.gaussians.ply import write_ply
from tidegs.store.block_store import BlockStore
from tidegs.store.memory import aligned_slots
from tidegs.train.result import ResultFolder
from tidegs.train.state import steps_done

BATCH = 16  # blocks in memory at a time


def export_result(result: ResultFolder, path: Path | None, progress: bool = True) -> tuple[Path, int]:
    """Writes the last snapshot of a result; returns the file and the number of Gaussians."""
    with BlockStore.open(result.store_path(), readonly=True) as store:
        target = path or result.ply / f"point_cloud_{steps_done(store)}.ply"
        return target, export_store(store, target, result.transform(), result.config().antialiased, progress)


def export_store(store: BlockStore, path: Path, transform: WorldTransform, antialiased: bool, progress: bool) -> int:
    """Writes the newest records of a store; returns the number of Gaussians."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_ply(path, world_rows(store, transform, progress), store.layout.sh_degree, antialiased)


def world_rows(store: BlockStore, transform: WorldTransform, progress: bool) -> Iterator[np.ndarray]:
    """Rows of each block, float32 [n, 14 + 3 K], means and log scales in the input's frame."""
    slots = aligned_slots(BATCH, store.layout.slot_nbytes)
    used = np.flatnonzero(store.table["count"] > 0)
    for first in tqdm(range(0, len(used), BATCH), desc="export", unit="batch", disable=not progress):
        ids = used[first : first + BATCH]
        store.read([int(i) for i in ids], list(slots[: len(ids)]))
        for slot, n in zip(slots, store.table["count"][ids], strict=False):
            planes = [store.layout.view(slot, plane)[:, :n].T for plane in ("base", "rest")]
            rows = np.concatenate(planes, axis=1)
            rows[:, BASE_FIELDS["means"]] = transform.to_world(rows[:, BASE_FIELDS["means"]])
            rows[:, BASE_FIELDS["scales"]] -= np.float32(np.log(transform.scale))
            yield rows
