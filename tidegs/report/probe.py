"""Short measurements of a machine: its disk past the page cache, and its memory.

Invariant: a probe writes one file of bounded size in a folder that exists, and removes it whatever happens.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tidegs.errors import StoreError
from tidegs.store.files import Files
from tidegs.store.memory import aligned_empty

FILE_NBYTES = 256 << 20
CHUNK = 1 << 20
THREADS = 4
SECONDS = 4.0  # of each of writing and reading, at most


@dataclass(frozen=True)
class DiskRates:
    """Bytes a second past the page cache, in requests of 1 MiB; seconds of one fsync."""

    direct: bool  # the file system takes direct I/O
    write: float
    read_one: float  # random places, one request at a time
    read_many: float  # THREADS requests in flight
    fsync_seconds: float


def disk_rates(folder: Path, nbytes: int = FILE_NBYTES) -> DiskRates:
    """Measures the disk behind a folder with a file of `nbytes`, removed at the end. Raises StoreError."""
    files = Files()
    chunks = max(1, nbytes // CHUNK)
    try:
        handle, name = tempfile.mkstemp(prefix=".tidegs-doctor-", dir=folder)
        try:
            os.close(handle)
            fd, direct = files.open_direct(Path(name), os.O_RDWR)
            try:
                return _measure(files, fd, direct, chunks)
            finally:
                files.close(fd)
        finally:
            os.unlink(name)
    except OSError as error:
        raise StoreError(f"{folder}: the disk cannot be measured ({error}); name a folder you can write to") from error


@dataclass(frozen=True)
class DeviceRates:
    """Bytes a second between a file and device memory."""

    read: float
    write: float


def device_rates(folder: Path, buffer: Any, files: Files | None = None) -> DeviceRates:
    """Measures kvikio with a file as large as `buffer` (device memory, at least CHUNK), in requests of 1 MiB of which
    several are in flight; removed at the end. Raises StoreError."""
    files = files or Files()
    size = len(buffer) // CHUNK * CHUNK

    def move(call: Any) -> float:
        begun = time.perf_counter()
        futures = [call(buffer[at : at + CHUNK], CHUNK, at) for at in range(0, size, CHUNK)]
        if sum([future.get() for future in futures]) != size:
            raise OSError("a transfer was cut short")
        return size / (time.perf_counter() - begun)

    try:
        handle, name = tempfile.mkstemp(prefix=".tidegs-doctor-", dir=folder)
        try:
            files.allocate(handle, size)
            file = files.open_for_device(Path(name))
            try:
                write = move(file.pwrite)
                files.fsync(handle)
                files.drop_cache(handle)
                return DeviceRates(read=move(file.pread), write=write)
            finally:
                file.close()
        finally:
            os.close(handle)
            os.unlink(name)
    except (OSError, RuntimeError, ValueError) as error:
        why = str(error).splitlines()[0]
        raise StoreError(f"{folder}: kvikio's transfers to the GPU cannot be measured ({why})") from error


def _measure(files: Files, fd: int, direct: bool, chunks: int) -> DiskRates:
    data = aligned_empty(CHUNK)
    data[:] = np.random.default_rng(0).integers(0, 256, CHUNK, np.uint8)
    begun = time.perf_counter()
    written = 0
    while written < chunks and (written < THREADS or time.perf_counter() - begun < SECONDS):
        files.write_all(fd, data.data, written * CHUNK)
        written += 1
    files.fsync(fd)
    write = written * CHUNK / (time.perf_counter() - begun)
    files.write_all(fd, data[:4096].data, 0)
    begun = time.perf_counter()
    files.fsync(fd)
    fsync_seconds = time.perf_counter() - begun
    if not direct:
        files.drop_cache(fd)
    order = np.random.default_rng(1).permutation(written)
    half = written // 2 or 1
    return DiskRates(direct, write, _read(fd, order[:half], 1), _read(fd, order[half:], THREADS), fsync_seconds)


def _read(fd: int, places: np.ndarray, threads: int) -> float:
    """Bytes a second over the chunks at `places`."""
    if not len(places):
        return 0.0
    parts = np.array_split(places, threads)
    deadline = time.perf_counter() + SECONDS / 2

    def work(part: np.ndarray) -> int:
        buffer, done = aligned_empty(CHUNK), 0
        for place in part.tolist():
            if done and time.perf_counter() > deadline:
                break
            done += os.preadv(fd, [buffer.data], place * CHUNK)
        return done

    begun = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        done = sum(pool.map(work, parts))
    return done / (time.perf_counter() - begun)


def copy_rate() -> float:
    """Bytes a second that one thread copies within RAM, best of several."""
    source, target = np.ones(64 << 20, np.uint8), np.empty(64 << 20, np.uint8)
    return source.nbytes / _best(lambda: np.copyto(target, source), 4)


def _best(work: Callable[[], object], times: int) -> float:
    work()  # the first touch of fresh memory is slow
    least = float("inf")
    for _ in range(times):
        begun = time.perf_counter()
        work()
        least = min(least, time.perf_counter() - begun)
    return least
