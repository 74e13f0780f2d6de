"""What a store holds and how well it uses the disk. Reads the table alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegs.store import format as fmt
from tidegs.store.block_store import BlockStore


def describe(store: BlockStore) -> dict[str, Any]:
    """Plain data for `tidegs info` and reports. Bytes are of the newest records; `files` counts whole record files.

    `fragmentation`: share of the record files that holds no current record. `adjacent`: share of neighbouring blocks of
    a kind (by id) whose records touch, so that they are read in one request. `write_amplification`: bytes written
    since the store was opened, for each byte of planes written.
    """
    rows = store.table[store.table["count"] > 0]
    counters, layout = store.counters, store.layout
    files = sum(e.total * e.nbytes for e in store.records.extents)
    held = int(_record_nbytes(store, rows).sum())
    return {
        "snapshot": store.snapshot,
        "blocks": len(rows),
        "gaussians": int(rows["count"].sum()),
        "capacity": layout.capacity,
        "sh_degree": layout.sh_degree,
        "store_dtype": layout.store_dtype,
        "fill": float(rows["count"].mean() / layout.capacity) if len(rows) else 0.0,
        "blocks_by_kind": {kind: int((rows["kind"] == i).sum()) for i, kind in enumerate(fmt.KINDS)}
        | {"nothing": int((rows["kind"] == fmt.NOTHING).sum())},
        "bytes_by_plane": _plane_nbytes(store, rows),
        "record_bytes": held,
        "file_bytes": files,
        "fragmentation": 1.0 - held / files if files else 0.0,
        "adjacent": _adjacent(store, rows),
        "table_bytes": store.table.nbytes,
        "meta_bytes": len(store.meta),
        "direct_io": store.records.direct,
        "bytes_written_ever": store.bytes_written,
        "bytes_written": counters.written,
        "bytes_read": counters.records_read,
        "write_amplification": counters.written / counters.planes_written if counters.planes_written else 0.0,
    }


def _record_nbytes(store: BlockStore, rows: np.ndarray) -> np.ndarray:
    payload = fmt.planes_nbytes(store.layout, rows["planes"])
    payload[rows["kind"] == fmt.SEEDS] = store.seed_nbytes
    return np.where(rows["kind"] == fmt.NOTHING, 0, payload + fmt.ALIGN)


def _plane_nbytes(store: BlockStore, rows: np.ndarray) -> dict[str, int]:
    seeds = int((rows["kind"] == fmt.SEEDS).sum())
    out = {"seeds": seeds * store.seed_nbytes, "headers": int((rows["kind"] != fmt.NOTHING).sum()) * fmt.ALIGN}
    for i, plane in enumerate(fmt.PLANES):
        out[plane] = int(((rows["planes"] >> i) & 1).sum()) * store.layout.stored_nbytes(plane)
    return out


def _adjacent(store: BlockStore, rows: np.ndarray) -> float:
    pairs = touching = 0
    for kind in range(len(fmt.KINDS)):
        offsets = rows["offset"][rows["kind"] == kind]
        pairs += max(0, len(offsets) - 1)
        touching += int((np.diff(offsets) == store.records.nbytes[kind]).sum())
    return touching / pairs if pairs else 1.0
