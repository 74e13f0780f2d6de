"""Doubles of the store's file operations: one fails chosen calls, one records every write for images of a crash."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tidegs.store.files import Files
from tidegs.store.native import TransferFn

SECTOR = 512


class IoVec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("nbytes", ctypes.c_size_t)]


_libc = ctypes.CDLL(None, use_errno=True)
for _call in (_libc.preadv, _libc.pwritev):
    _call.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64]
    _call.restype = ctypes.c_ssize_t


def segments(iov: int, count: int) -> list[tuple[int, int]]:
    """(address, bytes) of each segment of a vectored call."""
    return [(v.base, v.nbytes) for v in (IoVec * count).from_address(iov)]


def system_call(name: str, fd: int, parts: list[tuple[int, int]], offset: int) -> int:
    """preadv or pwritev; errno is left where the caller of the callback finds it."""
    array = (IoVec * len(parts))(*parts)
    return getattr(_libc, name)(fd, array, len(parts), offset)


def shorten(parts: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """About half of the segments' bytes, at least one sector, whole sectors."""
    left = max(SECTOR, sum(n for _, n in parts) // 2 // SECTOR * SECTOR)
    out = []
    for base, n in parts:
        if left:
            out.append((base, min(n, left)))
            left -= out[-1][1]
    return out


@dataclass(frozen=True)
class Fault:
    """The k-th call (from 0) fails, and `more` calls after it. `kind`: "EIO", "ENOSPC", "EINTR" or "short"; the last
    two befall reads and writes alone."""

    kind: str
    k: int
    more: int = 0


class FailingFiles(Files):
    """Counts all calls and fails those of its fault. fsync is not passed on: no power is cut here."""

    def __init__(self, fault: Fault | None = None) -> None:
        self.fault = fault
        self.calls = 0
        self.injected = 0
        self.log: list[str] = []
        self.fail_only = ""  # the name of the one call that counts; empty: all do
        self._mutex = threading.Lock()
        self.read_call = TransferFn(lambda *args: self._vectored("preadv", *args))
        self.write_call = TransferFn(lambda *args: self._vectored("pwritev", *args))

    def _due(self, name: str, transfer: bool = False) -> bool:
        """Counts a call; True where it is to fail. Faults of transfers count transfers only."""
        with self._mutex:
            fault = self.fault
            self.log.append(name)
            if self.fail_only not in ("", name):
                return False
            if fault is None or (fault.kind in ("EINTR", "short") and not transfer):
                self.calls += fault is None
                return False
            k = self.calls
            self.calls += 1
            due = fault.k <= k <= fault.k + fault.more
            self.injected += due
            return due

    def _gate(self, name: str, transfer: bool = False) -> bool:
        """Raises where the call is to fail; True where it is to be short."""
        if not self._due(name, transfer):
            return False
        assert self.fault is not None
        if self.fault.kind == "short":
            return True
        code = getattr(errno, self.fault.kind)
        raise OSError(code, os.strerror(code))

    def _vectored(self, name: str, fd: int, iov: int, count: int, offset: int) -> int:
        parts = segments(iov, count)
        if self._due(name, transfer=True):
            assert self.fault is not None
            if self.fault.kind != "short":
                ctypes.set_errno(getattr(errno, self.fault.kind))
                return -1
            parts = shorten(parts)
        return system_call(name, fd, parts, offset)

    def open(self, path: Path, flags: int) -> int:
        self._gate("open")
        return super().open(path, flags)

    def close_once(self, fd: int) -> None:
        super().close_once(fd)
        self._gate("close")

    def size(self, fd: int) -> int:
        self._gate("size")
        return super().size(fd)

    def pread(self, fd: int, nbytes: int, offset: int) -> bytes:
        return super().pread(fd, max(1, nbytes // 2) if self._gate("pread", True) else nbytes, offset)

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        return super().pwrite(fd, data[: max(1, len(data) // 2)] if self._gate("pwrite", True) else data, offset)

    def fsync(self, fd: int) -> None:
        self._gate("fsync")

    def allocate(self, fd: int, size: int) -> None:
        self._gate("allocate")
        if size > self.size(fd):
            os.ftruncate(fd, size)

    def truncate(self, fd: int, size: int) -> None:
        self._gate("truncate")
        super().truncate(fd, size)

    def rename(self, old: Path, new: Path) -> None:
        self._gate("rename")
        super().rename(old, new)

    def unlink(self, path: Path) -> None:
        self._gate("unlink")
        super().unlink(path)

    def listdir(self, folder: Path) -> list[str]:
        self._gate("listdir")
        return super().listdir(folder)

    def mkdir(self, folder: Path) -> None:
        self._gate("mkdir")
        super().mkdir(folder)

    def lock(self, fd: int, exclusive: bool) -> bool:
        self._gate("lock")
        return super().lock(fd, exclusive)


@dataclass(frozen=True)
class Event:
    """Something that changes what is on the disk. `name`, `other`: paths relative to the store's parent folder."""

    what: str  # write, truncate, sync, create, rename, unlink, sync_folder, mark
    name: str
    offset: int = 0  # of a write; the size of a truncate; the number of a mark
    data: bytes = b""
    other: str = ""


class RecordingFiles(Files):
    """Passes everything on but fsync, and keeps a list of all changes in their order."""

    def __init__(self, base: Path) -> None:
        self.events: list[Event] = []
        self._base = base
        self._names: dict[int, str] = {}
        self._mutex = threading.Lock()
        self.write_call = TransferFn(self._pwritev)

    def mark(self, number: int) -> None:
        """Notes a moment."""
        self._add(Event("mark", "", number))

    def _add(self, event: Event) -> None:
        with self._mutex:
            self.events.append(event)

    def _relative(self, path: Path) -> str:
        return os.path.relpath(path, self._base)

    def _pwritev(self, fd: int, iov: int, count: int, offset: int) -> int:
        parts = segments(iov, count)
        self._add(Event("write", self._names[fd], offset, b"".join(ctypes.string_at(p, n) for p, n in parts)))
        return system_call("pwritev", fd, parts, offset)

    def open(self, path: Path, flags: int) -> int:
        new = flags & os.O_CREAT and not path.exists()
        fd = super().open(path, flags)
        self._names[fd] = self._relative(path)
        if new:
            self._add(Event("create", self._names[fd]))
        elif flags & os.O_TRUNC:
            self._add(Event("truncate", self._names[fd], 0))
        return fd

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        self._add(Event("write", self._names[fd], offset, bytes(data)))
        return super().pwrite(fd, data, offset)

    def fsync(self, fd: int) -> None:
        folder = (self._base / self._names[fd]).is_dir()
        self._add(Event("sync_folder" if folder else "sync", self._names[fd]))

    def allocate(self, fd: int, size: int) -> None:
        if size > self.size(fd):
            self.truncate(fd, size)

    def truncate(self, fd: int, size: int) -> None:
        self._add(Event("truncate", self._names[fd], size))
        super().truncate(fd, size)

    def rename(self, old: Path, new: Path) -> None:
        self._add(Event("rename", self._relative(old), other=self._relative(new)))
        super().rename(old, new)
        for fd, name in self._names.items():
            if name == self._relative(old):
                self._names[fd] = self._relative(new)

    def unlink(self, path: Path) -> None:
        self._add(Event("unlink", self._relative(path)))
        super().unlink(path)


def each_call(run: Callable[[FailingFiles], object], kinds: list[tuple[str, int]], step: int = 1) -> list[Fault]:
    """A fault for every step-th call that `run` makes, for each (kind, more)."""
    faults = []
    for kind, more in kinds:
        probe = FailingFiles(Fault(kind, 1 << 60))
        run(probe)
        faults += [Fault(kind, k, more) for k in range(0, probe.calls, step)]
    return faults
