"""The seam between residency and the block store."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from tidegs.gaussians.layout import RecordLayout

# One row of metadata for each block, kept in RAM and in every snapshot: at most 128 bytes.
TABLE_DTYPE = np.dtype(
    [
        ("lo", np.float32, 3),  # least mean of the rows in use, scene frame
        ("hi", np.float32, 3),  # greatest mean
        ("extent", np.float32),  # greatest exp(scale) of any row and axis: one sigma
        ("count", np.int32),  # rows in use; 0 marks a free block id
        ("offset", np.int64),  # where the record lies in its file
        ("generation", np.uint32),  # counts the writes of this block
        ("crc", np.uint32),  # CRC32C of the stored bytes
        ("planes", np.uint16),  # bit i: plane i of RECORD_PLANES + SCRATCH_PLANES is stored
        ("kind", np.uint8),  # which file (size class) holds the record: format.KINDS; 255: none, all planes are zero
        ("flags", np.uint8),  # bit 0: written in the middle of a step, with scratch planes
        ("event", np.int32),  # last deferred event that was settled
        ("opacity_mass", np.float32),  # sum of sigmoid(opacity), as last settled
        ("dead", np.int32),  # rows under the opacity threshold, as last settled
        ("doomed", np.int32),  # of them, rows that relocation has replaced elsewhere: they go when the block settles
        ("relocated", np.int32),  # children that relocation has given to the block: drawn when it settles
        ("added", np.int32),  # children that growth has given to the block: drawn when it settles
        ("adam", np.int32),  # steps of dense Adam that its rows have taken; 0: none yet, so their moments are zero
    ]
)


Piece = tuple[int, int, int]  # arena slot, first byte in it, bytes: whole pages


class ArenaLink(Protocol):
    """The arena as the store sees it; slots are numbers. `filling` is used by one thread, `leaving` by another."""

    def filling(self, slots: Sequence[int]) -> AbstractContextManager[None]:
        """Inside, the caller's files may write the slots: earlier uses are over, later ones come after."""

    def leaving(self, slots: Sequence[int]) -> AbstractContextManager[None]:
        """Inside, the caller's files may read the slots, likewise."""

    def window(self, piece: Piece) -> Any:
        """The bytes, as kvikio takes them."""

    def zero(self, pieces: Sequence[Piece]) -> None:
        """Fills them with zeros; inside `filling` alone, after what files have written."""

    def fold(self, pieces: Sequence[Piece], leaving: bool) -> tuple[np.ndarray, np.ndarray]:
        """Of each piece the remainder (tidegs.crc), uint32 [n], and whether any byte is not zero, bool [n]. `leaving`:
        inside which of the two it is called."""


class Store(Protocol):
    """A block store. Thread-safe for calls on different blocks; `commit` runs alone.

    Slots are uint8 arrays of at least layout.record_nbytes (layout.slot_nbytes where scratch planes are stored),
    aligned to 4 KiB.
    """

    layout: RecordLayout

    @property
    def table(self) -> np.ndarray:
        """TABLE_DTYPE [blocks]; bounds are written by residency, places by the store."""

    def read(self, blocks: list[int], slots: list[np.ndarray]) -> None:
        """Reads the newest record of each block and verifies it; planes that are not stored are filled by their rule
        (zero, or expanded from seed points)."""

    def write(self, blocks: list[int], slots: list[np.ndarray], scratch: bool = False) -> None:
        """Writes records to free extents, leaving out planes that are all zero; with `scratch`, the scratch planes
        too (such a record never becomes part of a snapshot)."""

    def connect(self, link: ArenaLink) -> None:
        """Makes `fetch` and `stow` possible: transfers between the files and arena slots, past host memory."""

    def can_fetch(self, blocks: Sequence[int] | np.ndarray) -> np.ndarray:
        """bool [n]: the record needs nothing of the host to become a slot. Once true, it stays so."""

    def fetch(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """`read` into arena slots, by their numbers; of blocks that `can_fetch`."""

    def stow(self, blocks: Sequence[int], slots: Sequence[int], scratch: bool = False) -> None:
        """`write` of arena slots, by their numbers."""

    def allocate(self, n: int) -> np.ndarray:
        """`n` free block ids (int64, ascending), lowest first, with count 1; `table` may be another array then."""

    def commit(self, meta: bytes) -> int:
        """Makes all that was written, and the table, the newest snapshot, with `meta` (the trainer's state) in it;
        returns its generation."""

    @property
    def meta(self) -> bytes:
        """The `meta` of the snapshot that was opened or last committed."""

    def close(self) -> None: ...
