"""A store's Gaussians as a file in the input's frame, block by block.

Invariant: memory does not grow with the scene (but for SOG, see gaussians/sog_write.py); the file appears under its
name only when it is complete.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from tidegs.data.scene import WorldTransform
from tidegs.gaussians.layout import BASE_FIELDS, RecordLayout
from tidegs.gaussians.select import Selection
from tidegs.gaussians.write import format_of, write_gaussians
from tidegs.store.block_store import BlockStore
from tidegs.store.memory import aligned_slots
from tidegs.train.result import ResultFolder
from tidegs.train.settled import settled_store
from tidegs.train.state import steps_done

BATCH = 16  # blocks in memory at a time
SUFFIX_OF = {"compressed-ply": "compressed.ply"}  # where it is not the name of the format


def export_result(
    result: ResultFolder,
    path: Path | None,
    progress: bool = True,
    kind: str | None = None,
    selection: Selection | None = None,
) -> tuple[Path, int]:
    """Writes the last snapshot of a result; returns the file and the number of Gaussians. `kind` is one of FORMATS
    (None: by the file's suffix, or PLY). Raises TidegsError."""
    kind = kind or (format_of(path) if path else "ply")
    with settled_store(result, quiet=not progress) as store:
        target = path or result.ply / f"point_cloud_{steps_done(store)}.{SUFFIX_OF.get(kind, kind)}"
        antialiased = result.config().antialiased
        return target, export_store(store, target, result.transform(), antialiased, progress, kind, selection)


def export_store(
    store: BlockStore,
    path: Path,
    transform: WorldTransform,
    antialiased: bool,
    progress: bool,
    kind: str | None = None,
    selection: Selection | None = None,
) -> int:
    """Writes the newest records of a store; returns the number of Gaussians. A selection is in the input's frame."""
    kind = kind or format_of(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    chunks = (selection or Selection()).apply(lambda: world_rows(store, transform, progress))
    return write_gaussians(path, chunks, store.layout.sh_degree, antialiased, kind)


def ply_nbytes(rows: int, layout: RecordLayout) -> int:
    """Size of a PLY of so many rows: the parameters and three normals in float32."""
    return rows * 4 * (layout.param_components + 3)


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
