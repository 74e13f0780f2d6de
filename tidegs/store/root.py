"""The root file and the two table files: the switch from one snapshot to the next.

Invariant: at every instant at least one root slot is sound, the newest sound one names a table that is whole and
synced, and once a commit returns both slots say the same, so that later damage to one of them loses nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from tidegs.errors import StoreError
from tidegs.store import format as fmt
from tidegs.store.files import Files
from tidegs.store.guard import Guard
from tidegs.store.native import crc32c


class RootFile:
    """Two slots of one page."""

    def __init__(self, folder: Path, files: Files, guard: Guard) -> None:
        self._folder, self._files, self._guard = folder, files, guard
        self._path = folder / fmt.ROOT
        self._fd = -1

    @staticmethod
    def read(folder: Path, files: Files) -> tuple[fmt.Root, bool]:
        """The newest sound root, and whether both slots hold it."""
        path = folder / fmt.ROOT
        try:
            data = _read_file(path, files)
        except (FileNotFoundError, NotADirectoryError) as e:
            raise StoreError(
                f"{folder} holds no store (there is no file {fmt.ROOT} in it): name the folder of a finished store"
            ) from e
        except OSError as e:
            raise StoreError(f"{path}: reading failed: {e.strerror or e}") from e
        return fmt.newest_root(data, path)

    def switch(self, root: fmt.Root) -> None:
        """Makes `root` the root: one slot, sync, the other slot, sync."""
        slot = fmt.pack_root(root)
        with self._guard.vital(self._path, "switching to the new snapshot"):
            if self._fd < 0:
                self._create(slot)
                return
            for at in (0, fmt.SLOT):
                self._files.write_all(self._fd, slot, at)
                self._files.fsync(self._fd)

    def resume(self, root: fmt.Root, mirrored: bool) -> None:
        """Opens the file for writing. What a writer that died had switched to is made durable before anything else."""
        with self._guard.vital(self._path, "opening for writing"):
            self._fd = self._files.open(self._path, os.O_RDWR)
            self._files.fsync(self._fd)
            self._sync_folders()
            if mirrored:
                return
            slot = fmt.pack_root(root)
            for at in (0, fmt.SLOT):
                if self._files.read_all(self._fd, fmt.SLOT, at) != slot:
                    self._files.write_all(self._fd, slot, at)
            self._files.fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1

    def _create(self, slot: bytes) -> None:
        temporary = self._folder / (fmt.ROOT + ".tmp")
        self._fd = self._files.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._files.write_all(self._fd, slot * 2, 0)
        self._files.fsync(self._fd)
        self._files.rename(temporary, self._path)
        self._sync_folders()

    def _sync_folders(self) -> None:
        self._files.fsync_folder(self._folder)
        self._files.fsync_folder(self._folder.absolute().parent)


class TableFiles:
    """Two files, of which the last snapshot uses one; a new table goes to the other."""

    def __init__(self, folder: Path, files: Files, guard: Guard) -> None:
        self._folder, self._files, self._guard = folder, files, guard
        self._fds = [-1, -1]
        self._current = 1

    def path(self, index: int) -> Path:
        return self._folder / fmt.TABLES[index]

    def read(self, root: fmt.Root) -> tuple[np.ndarray, bytes]:
        """Rows and meta of the snapshot."""
        self._current = root.table_file
        path = self.path(root.table_file)
        with self._guard.errors(path, "reading"):
            data = _read_file(path, self._files)
        return fmt.unpack_table(data, root, path)

    def write(self, data: bytes) -> tuple[int, int]:
        """Writes a table durably beside the current one; returns which file it is and its CRC32C."""
        index = 1 - self._current
        path = self.path(index)
        with self._guard.errors(path, "writing"):
            if self._fds[index] < 0:
                self._fds[index] = self._files.open(path, os.O_RDWR | os.O_CREAT)
            self._files.write_all(self._fds[index], data, 0)
            self._files.truncate(self._fds[index], len(data))
        with self._guard.vital(path, "fsync"):
            self._files.fsync(self._fds[index])
            self._files.fsync_folder(self._folder)
        return index, crc32c(data)

    def committed(self, index: int) -> None:
        """The snapshot uses this table from now on."""
        self._current = index

    def close(self) -> None:
        for fd in self._fds:
            if fd >= 0:
                self._files.close(fd)
        self._fds = [-1, -1]


def _read_file(path: Path, files: Files) -> bytes:
    fd = files.open(path, os.O_RDONLY)
    try:
        return files.read_all(fd, files.size(fd), 0)
    finally:
        files.close(fd)
