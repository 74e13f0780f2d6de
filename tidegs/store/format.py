"""The store's files byte by byte: root, table and size classes; records are in csrc/store. Prose: docs/formats.md.

Invariant: what is packed here is unpacked here, and a version that is not known is refused by name.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tidegs.errors import CorruptError, StoreError
from tidegs.gaussians.layout import ALIGN, RECORD_PLANES, SCRATCH_PLANES, STORE_DTYPES, RecordLayout
from tidegs.store.base import TABLE_DTYPE
from tidegs.store.native import crc32c

VERSION = 3
NARROWED_VERSION = 4  # the same, with planes in 16 bits: what knows version 3 alone must not read it
ROOT, LOCK, TABLES = "root", "lock", ("table.0", "table.1")
PLANES = RECORD_PLANES + SCRATCH_PLANES
ALL_BITS = (1 << len(PLANES)) - 1
PARAM_BITS = sum(1 << PLANES.index(p) for p in ("base", "rest"))
SCRATCH_BITS = sum(1 << PLANES.index(p) for p in SCRATCH_PLANES)

PLAIN_KINDS = (1, 2, 3, 4)
SEEDS, SCRATCH, NOTHING = 0, 5, 255  # kinds with a meaning of their own; NOTHING: no record, all planes are zero
KINDS = ("seeds", "base", "base-adam", "params", "params-adam", "scratch")
RECORD_FILES = tuple(f"records.{kind}" for kind in KINDS)
_WORK = ("rows", "parts", "query", "answer", "asked", "scale", "better", "state", "tmp")
WORK_FILES = tuple(f"ingest.{name}" for name in _WORK)
OUR_FILES = frozenset({ROOT, ROOT + ".tmp", LOCK, *TABLES, *RECORD_FILES, *WORK_FILES})
CLASS_PLANES: dict[int, tuple[str, ...]] = {
    1: ("base",),
    2: ("base", "m_base", "v_base", "stats"),
    3: ("base", "rest"),
    4: RECORD_PLANES,
    5: PLANES,
}

FLAG_MID_STEP = 1  # table flag: written with scratch planes; never in a snapshot

ROOT_MAGIC, TABLE_MAGIC = b"TIDEGSRT", b"TIDEGSTB"
SLOT = ALIGN  # bytes of each of the two root slots
# magic, version, table file, snapshot, capacity, sh_degree, stat_components, seed_opacity, table crc,
# dtype of narrowed planes, rows, meta bytes, bytes written since creation
_ROOT = struct.Struct("<8sIIQIIIfIIQQQ")
# magic, version, row bytes, snapshot, rows, meta bytes
_TABLE = struct.Struct("<8sIIQQQ")


@dataclass(frozen=True)
class Root:
    """What a root slot says of the newest snapshot."""

    snapshot: int
    table_file: int
    table_crc: int
    rows: int
    meta_nbytes: int
    capacity: int
    sh_degree: int
    stat_components: int
    seed_opacity: float
    bytes_written: int
    store_dtype: str = "float32"


def seed_nbytes(layout: RecordLayout) -> int:
    """Bytes of a block's packed seeds: xyz and log scale float32, rgb uint8; padded to 4 KiB."""
    return -(-19 * layout.capacity // ALIGN) * ALIGN


def extent_nbytes(layout: RecordLayout) -> np.ndarray:
    """int64 [kinds]: bytes of an extent of each class, the record's header page included."""
    sizes = [seed_nbytes(layout)]
    sizes += [sum(layout.stored_nbytes(p) for p in CLASS_PLANES[k]) for k in range(1, len(KINDS))]
    return np.array(sizes, np.int64) + ALIGN


def planes_nbytes(layout: RecordLayout, planes: np.ndarray) -> np.ndarray:
    """int64 [n]: payload bytes of records that hold the planes of each bit set [n]."""
    sizes = np.array([layout.stored_nbytes(p) for p in PLANES], np.int64)
    bits = (np.asarray(planes)[:, None] >> np.arange(len(PLANES))) & 1
    return bits.astype(np.int64) @ sizes


def pack_root(root: Root) -> bytes:
    """One root slot, 4096 bytes; the last four are the CRC32C of those before."""
    body = _ROOT.pack(
        ROOT_MAGIC,
        VERSION if root.store_dtype == "float32" else NARROWED_VERSION,
        root.table_file,
        root.snapshot,
        root.capacity,
        root.sh_degree,
        root.stat_components,
        root.seed_opacity,
        root.table_crc,
        STORE_DTYPES.index(root.store_dtype),
        root.rows,
        root.meta_nbytes,
        root.bytes_written,
    ).ljust(SLOT - 4, b"\0")
    return body + struct.pack("<I", crc32c(body))


def unpack_root(slot: bytes, path: Path) -> Root | None:
    """The root of a slot; None where it is damaged; StoreError where it is of another version."""
    if len(slot) != SLOT or slot[:8] != ROOT_MAGIC or crc32c(slot[:-4]) != struct.unpack("<I", slot[-4:])[0]:
        return None
    head = _ROOT.unpack_from(slot)
    _, version, table, snapshot, capacity, degree, stats, opacity, crc, dtype, rows, meta, written = head
    if version not in (VERSION, NARROWED_VERSION) or dtype >= len(STORE_DTYPES):
        raise StoreError(
            f"{path}: the store has format version {version}, and this tidegs reads versions {VERSION} and "
            f"{NARROWED_VERSION}: open it with the release that wrote it"
        )
    narrowed = STORE_DTYPES[dtype]
    return Root(snapshot, table, crc, rows, meta, capacity, degree, stats, opacity, written, narrowed)


def newest_root(data: bytes, path: Path) -> tuple[Root, bool]:
    """The newest sound root of the file's bytes, and whether both slots say the same. CorruptError where none is."""
    slots = [unpack_root(data[i * SLOT : (i + 1) * SLOT], path) for i in range(2)]
    sound = [s for s in slots if s is not None]
    if not sound:
        raise CorruptError(f"{path}: both root slots fail their checksum: restore the folder from a copy of the store")
    return max(sound, key=lambda r: r.snapshot), slots[0] == slots[1]


def pack_table(rows: np.ndarray, meta: bytes, snapshot: int) -> bytes:
    """A table file: header page, rows, meta. Its CRC32C is in the root."""
    header = _TABLE.pack(TABLE_MAGIC, VERSION, TABLE_DTYPE.itemsize, snapshot, len(rows), len(meta))
    return header.ljust(ALIGN, b"\0") + rows.tobytes() + meta


def table_nbytes(root: Root) -> int:
    return ALIGN + root.rows * TABLE_DTYPE.itemsize + root.meta_nbytes


def unpack_table(data: bytes, root: Root, path: Path) -> tuple[np.ndarray, bytes]:
    """Rows and meta of a table file, checked against the root."""
    if len(data) != table_nbytes(root):
        raise CorruptError(
            f"{path}: the block table has {len(data)} bytes where the root says {table_nbytes(root)}: "
            "restore the folder from a copy of the store"
        )
    if crc32c(data) != root.table_crc:
        raise CorruptError(f"{path}: the block table fails its checksum: restore the folder from a copy of the store")
    end = ALIGN + root.rows * TABLE_DTYPE.itemsize
    return np.frombuffer(data[ALIGN:end], TABLE_DTYPE).copy(), data[end:]
