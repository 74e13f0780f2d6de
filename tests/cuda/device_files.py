"""Stands in for kvikio.CuFile where there is no GPU: moves bytes between files and CPU tensors, with faults at will."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tidegs.store.files import Files

PAGE = 4096
_POOL = ThreadPoolExecutor(4)

# Given the call ("pread" or "pwrite") and its number from 0: raises, or returns the bytes to move instead of `size`.
Fault = Callable[[str, int, int], int]


class IOFuture:
    """What pread and pwrite return: as of kvikio, with its kind of error."""

    def __init__(self, future: Future[int]) -> None:
        self._future = future

    def get(self) -> int:
        return self._future.result()


class TensorFile:
    """`pread` and `pwrite` of kvikio.CuFile (26.10), strict about what GPUDirect Storage needs: whole pages."""

    def __init__(self, files: DeviceFiles, path: Path, writable: bool) -> None:
        self._files = files
        self._fd = os.open(path, os.O_RDWR if writable else os.O_RDONLY)

    def pread(self, buf: torch.Tensor, size: int, file_offset: int) -> IOFuture:
        return self._start("pread", buf, size, file_offset)

    def pwrite(self, buf: torch.Tensor, size: int, file_offset: int) -> IOFuture:
        return self._start("pwrite", buf, size, file_offset)

    def close(self) -> None:
        os.close(self._fd)

    def _start(self, call: str, buf: torch.Tensor, size: int, file_offset: int) -> IOFuture:
        assert isinstance(buf, torch.Tensor), "kvikio is given device memory"
        assert buf.is_contiguous()
        assert buf.nbytes == size
        assert file_offset % PAGE == size % PAGE == 0, "GPUDirect Storage moves whole pages"
        number, moved = self._files.count(call), self._files.moved

        def work() -> int:
            count = self._files.fault(call, number, size)
            bytes_ = memoryview(buf.numpy())[:count]
            done = (os.preadv if call == "pread" else os.pwritev)(self._fd, [bytes_], file_offset)
            moved[call] += done
            return done

        return IOFuture(_POOL.submit(work))


class DeviceFiles(Files):
    """The system's files, and TensorFiles for device memory."""

    def __init__(self, fault: Fault = lambda call, number, size: size) -> None:
        self.fault = fault
        self.moved = {"pread": 0, "pwrite": 0}  # bytes
        self.opened: list[Path] = []
        self._calls = {"pread": 0, "pwrite": 0}
        self._mutex = threading.Lock()

    def count(self, call: str) -> int:
        """The number of this call."""
        with self._mutex:
            self._calls[call] += 1
            return self._calls[call] - 1

    def open_for_device(self, path: Path) -> Any:
        self.opened.append(path)
        return TensorFile(self, path, os.access(path, os.W_OK))


class OneFault:
    """The k-th call of a kind meets a fault: "short" (half the bytes, whole pages), "end" (none), "words" (as kvikio
    says it) or "EIO"; `sticky`: so do all calls after it."""

    def __init__(self, call: str, k: int, kind: str, sticky: bool = False) -> None:
        self.call, self.k, self.kind, self.sticky = call, k, kind, sticky
        self.met = 0

    def __call__(self, call: str, number: int, size: int) -> int:
        if call != self.call or number < self.k or (number > self.k and not self.sticky):
            return size
        self.met += 1
        if self.kind == "words":
            raise RuntimeError("Linux system/library function call error at: file_io.cpp:100: Input/output error")
        if self.kind == "EIO":
            raise OSError(5, "Input/output error")
        return 0 if self.kind == "end" else max(PAGE, size // 2 // PAGE * PAGE)


def random_bytes(seed: int, nbytes: int) -> np.ndarray:
    """uint8 [nbytes]."""
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)
