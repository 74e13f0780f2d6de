"""Host memory that the device copies from and to without a detour: whole regions, registered with CUDA.

Invariant: exactly the bytes that were asked for (rounded up to pages) are locked. torch.Tensor.pin_memory would round a
large region up to a power of two.
"""

from __future__ import annotations

import mmap
import os

import numpy as np
import torch

from tidegs.errors import DeviceError

PAGE = mmap.PAGESIZE


class PinnedRegions:
    """Regions of page-aligned memory; pinned where `register` is set."""

    def __init__(self, register: bool) -> None:
        self._register = register
        self._regions: list[tuple[mmap.mmap, int]] = []  # with the address, 0 where it is not registered

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(len(memory) for memory, _ in self._regions)

    def allocate(self, nbytes: int) -> np.ndarray:
        """uint8 [nbytes], zeroed. Raises DeviceError where so much cannot be had, or locked."""
        size = max(-(-nbytes // PAGE) * PAGE, PAGE)
        try:
            memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise DeviceError(
                f"the system has no {nbytes / 2**30:.2f} GiB for the host cache ({error.strerror}): lower --host-memory"
            ) from error
        array = np.frombuffer(memory, np.uint8)
        address = array.__array_interface__["data"][0]
        if self._register:
            _lock(address, size)
        self._regions.append((memory, address if self._register else 0))
        return array[:nbytes]

    def close(self) -> None:
        """Unlocks everything; the memory itself lives as long as an array over it does."""
        for _, address in self._regions:
            if address:
                torch.cuda.cudart().cudaHostUnregister(address)
        self._regions.clear()


def _lock(address: int, nbytes: int) -> None:
    code = int(torch.cuda.cudart().cudaHostRegister(address, nbytes, 0))
    if code != 0:
        free = _available() / 2**30
        raise DeviceError(
            f"CUDA could not pin {nbytes / 2**30:.2f} GiB of host memory (error {code}; {free:.1f} GiB are available): "
            "lower --host-memory; in a container or WSL2 the limit on pinned memory can be below the machine's memory"
        )


def _available() -> int:
    """Bytes of memory that are free now."""
    return os.sysconf("SC_AVPHYS_PAGES") * PAGE
