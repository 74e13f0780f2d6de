"""Every file operation of the store goes through one object of this class, so that tests can fail any of them.

Invariant: nothing else in tidegs/store opens, reads, writes, syncs or names files of a store.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

_NOT_DIRECT = (errno.EINVAL, errno.EOPNOTSUPP)
_PUNCH_HOLE_KEEP_SIZE = 3  # <linux/falloc.h>
_fallocate = getattr(ctypes.CDLL(None), "fallocate64", None)
if _fallocate is not None:
    _fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class Files:
    """The system's file operations; errors are OSError. Short transfers and EINTR are dealt with here."""

    # Replacements of preadv and pwritev for the record engine (ctypes function pointers); None: the system's.
    read_call: Any | None = None
    write_call: Any | None = None

    def open(self, path: Path, flags: int) -> int:
        """Opens (and creates, with O_CREAT) a file; returns its descriptor."""
        return os.open(path, flags | os.O_CLOEXEC, 0o666)

    def open_direct(self, path: Path, flags: int) -> tuple[int, bool]:
        """Opens past the page cache where the file system allows; returns the descriptor and whether it did."""
        try:
            return self.open(path, flags | os.O_DIRECT), True
        except OSError as e:
            if e.errno not in _NOT_DIRECT:
                raise
            return self.open(path, flags), False

    def open_for_device(self, path: Path) -> Any:
        """Opens a file for transfers from and to device memory: a kvikio.CuFile (`pread`, `pwrite`, `close`). Where the
        file may only be read, it is opened for that."""
        import kvikio

        return kvikio.CuFile(path, "r+" if os.access(path, os.W_OK) else "r")

    def close(self, fd: int) -> None:
        """Closes a descriptor. What matters was synced before, so that its errors say nothing."""
        with suppress(OSError):
            self.close_once(fd)

    def close_once(self, fd: int) -> None:
        os.close(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def pread(self, fd: int, nbytes: int, offset: int) -> bytes:
        """One read call; may be short."""
        return os.pread(fd, nbytes, offset)

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        """One write call; may be short."""
        return os.pwrite(fd, data, offset)

    def read_all(self, fd: int, nbytes: int, offset: int) -> bytes:
        """Up to `nbytes`, less only where the file ends."""
        parts = []
        while nbytes:
            try:
                part = self.pread(fd, nbytes, offset)
            except InterruptedError:
                continue
            if not part:
                break
            parts.append(part)
            nbytes -= len(part)
            offset += len(part)
        return b"".join(parts)

    def write_all(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        """Writes all of `data`."""
        view = memoryview(data)
        while view:
            try:
                done = self.pwrite(fd, view, offset)
            except InterruptedError:
                continue
            if done == 0:
                raise OSError(errno.EIO, "a write made no progress")
            view = view[done:]
            offset += done

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def fsync_folder(self, folder: Path) -> None:
        """Makes names created, renamed and removed in the folder durable."""
        fd = self.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.fsync(fd)
        finally:
            self.close(fd)

    def allocate(self, fd: int, size: int) -> None:
        """Makes the file at least `size` long, with space behind it where the file system can promise that."""
        have = self.size(fd)
        if size <= have:
            return
        try:
            os.posix_fallocate(fd, have, size - have)
        except OSError as e:
            if e.errno not in _NOT_DIRECT:
                raise
            self.truncate(fd, size)

    def punch(self, fd: int, offset: int, nbytes: int) -> None:
        """Gives the space of a part of a file back, which then reads as zeros; advice, which may be refused."""
        if _fallocate is not None:
            _fallocate(fd, _PUNCH_HOLE_KEEP_SIZE, offset, nbytes)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def drop_cache(self, fd: int) -> None:
        """Lets go of cached pages of a file that could not be opened for direct I/O; advice, which may be refused."""
        with suppress(OSError):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def clear(self, folder: Path, names: Collection[str]) -> None:
        """Removes those of the named files that there are."""
        for name in self.listdir(folder):
            if name in names:
                self.unlink(folder / name)

    def listdir(self, folder: Path) -> list[str]:
        return sorted(os.listdir(folder))

    def mkdir(self, folder: Path) -> None:
        """Makes the folder and its parents; one that exists is fine."""
        os.makedirs(folder, exist_ok=True)

    def lock(self, fd: int, exclusive: bool) -> bool:
        """Takes an advisory lock without waiting; False where another process (or descriptor) holds it."""
        try:
            fcntl.flock(fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
