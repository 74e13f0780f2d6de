"""What an ingest had done when it was stopped: a file beside its work files, from which the same call goes on.

Invariant: what the file refers to was durable before it was written, and stays as it is until the next one is.
"""

from __future__ import annotations

import io
import os
import struct
from contextlib import suppress
from pathlib import Path

import numpy as np

from tidegs.errors import StoreError
from tidegs.store.files import Files
from tidegs.store.native import crc32c

KEEP_NBYTES = 1 << 30  # of rows: an ingest of fewer is soon done again
PARTS = 32  # written anew after at most so small a part of the rows, which lie on the disk twice until then
NAME = "ingest.state"  # format.WORK_FILES has it too
_HEAD = struct.Struct("<8sI")  # magic, CRC32C of the rest: the key and the state
_MAGIC = b"TIDEGSIN"


class Unfinished:
    """The file of one ingest. `key`: 32 bytes that stand for its input and options."""

    def __init__(self, folder: Path, key: bytes, files: Files) -> None:
        self._path, self._key, self._files = folder / NAME, key, files

    def save(self, state: dict[str, np.ndarray]) -> None:
        """Replaces what the file says, durably. Raises StoreError."""
        body = io.BytesIO()
        np.savez(body, **state)  # type: ignore[arg-type]
        told = self._key + body.getvalue()
        data = _HEAD.pack(_MAGIC, crc32c(told)) + told
        temporary = self._path.with_suffix(".tmp")
        try:
            fd = self._files.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                self._files.write_all(fd, data, 0)
                self._files.fsync(fd)
            finally:
                self._files.close(fd)
            self._files.rename(temporary, self._path)
            self._files.fsync_folder(self._path.parent)
        except OSError as e:
            raise StoreError(f"{self._path}: noting how far the ingest is failed: {e.strerror or e}") from e

    def load(self) -> dict[str, np.ndarray] | None:
        """What an ingest of the same key saved; None where there is nothing of the kind, or it is damaged."""
        try:
            fd = self._files.open(self._path, os.O_RDONLY)
            try:
                data = self._files.read_all(fd, self._files.size(fd), 0)
            finally:
                self._files.close(fd)
        except OSError:
            return None
        head, told = data[: _HEAD.size], data[_HEAD.size :]
        if head != _HEAD.pack(_MAGIC, crc32c(told)) or not told.startswith(self._key):
            return None
        with np.load(io.BytesIO(told[len(self._key) :]), allow_pickle=False) as state:
            return dict(state)

    def remove(self) -> None:
        """The next ingest begins anew."""
        with suppress(OSError):
            self._files.unlink(self._path)
