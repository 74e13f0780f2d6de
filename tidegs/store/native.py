"""The C++ I/O engine (csrc/store), loaded through ctypes. Calls release the GIL.

Invariant: the dtypes here equal the structs of csrc/store/record.hpp.
"""

from __future__ import annotations

import ctypes
import errno
import importlib.util
import os
from functools import cache
from typing import Any

import numpy as np

from tidegs.errors import StoreError
from tidegs.gaussians.layout import RECORD_PLANES, SCRATCH_PLANES, STORE_DTYPES, RecordLayout

REQUEST_DTYPE = np.dtype(
    [
        ("slot", np.uint64),  # address of the slot, or of packed seeds; number of an arena slot (direct.py)
        ("offset", np.int64),
        ("fd", np.int32),
        ("status", np.int32),  # 0, an errno, or a key of STATUS
        ("block", np.uint32),
        ("generation", np.uint32),
        ("count", np.int32),
        ("crc", np.uint32),
        ("planes", np.uint16),
        ("kind", np.uint8),
        ("scratch", np.uint8),
        ("part", np.uint32),  # WHOLE, PACKED or HEADER
    ]
)
WHOLE, PACKED, HEADER = 0, 1, 2  # PACKED: seeds as they are stored; HEADER: not the payload, whose crc is known
END_OF_FILE, BAD_PAYLOAD = -1, -5  # the two of STATUS that are found outside the engine, too
LAYOUT_DTYPE = np.dtype(
    [
        ("offset", np.int64, 9),
        ("nbytes", np.int64, 9),
        ("stored", np.int64, 9),
        ("components", np.int64, 9),
        ("capacity", np.int64),
        ("seed_opacity", np.float32),
        ("seed_sh0", np.float32, 256),
        ("dtype", np.uint16),
        ("narrowed", np.uint16),
    ]
)
STATUS = {
    END_OF_FILE: "the file ends inside it",
    -2: "no record begins there",
    -3: "its header fails its checksum",
    -4: "another record lies there (block, generation, planes or checksum differ)",
    BAD_PAYLOAD: "its bytes fail their checksum",
}

# ssize_t (*)(int fd, const struct iovec*, int count, off_t)
TransferFn = ctypes.CFUNCTYPE(
    ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, use_errno=True
)


@cache
def library() -> ctypes.CDLL:
    """The shared library; StoreError where it was not built."""
    spec = importlib.util.find_spec("tidegs._store")
    if spec is None or spec.origin is None:
        raise StoreError(
            "the native part of the store (tidegs._store) is not built: run `pip install .` or `python setup.py "
            "build_ext --inplace`"
        )
    lib = ctypes.CDLL(spec.origin)
    p, i64, u32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint32
    lib.tidegs_store_engine_new.restype = p
    lib.tidegs_store_engine_new.argtypes = [p, ctypes.c_int, p, p]
    lib.tidegs_store_engine_free.restype = None
    lib.tidegs_store_engine_free.argtypes = [p]
    for name in ("read", "write"):
        getattr(lib, f"tidegs_store_{name}").restype = i64
        getattr(lib, f"tidegs_store_{name}").argtypes = [p, p, i64]
    lib.tidegs_store_scan.restype = None
    lib.tidegs_store_scan.argtypes = [p, p, i64]
    for name in ("crc32c", "crc32c_software"):
        getattr(lib, f"tidegs_store_{name}").restype = u32
        getattr(lib, f"tidegs_store_{name}").argtypes = [u32, p, i64]
    lib.tidegs_store_crc32c_name.restype = ctypes.c_char_p
    return lib


def crc32c(data: bytes | np.ndarray, crc: int = 0) -> int:
    """CRC32C of the bytes (of an array: C-contiguous), continuing from `crc`."""
    array = np.frombuffer(data, np.uint8) if isinstance(data, (bytes, bytearray)) else data
    return library().tidegs_store_crc32c(crc, array.ctypes.data, array.nbytes)


def crc32c_name() -> str:
    """The implementation in use: "sse4.2", "arm-crc" or "software"."""
    return library().tidegs_store_crc32c_name().decode()


class Engine:
    """Batches of record transfers with `threads` requests in flight (and the caller's own).

    `read_call` and `write_call` replace preadv and pwritev (tests inject faults there); None means the system's.
    """

    def __init__(
        self,
        layout: RecordLayout,
        seed_opacity: float,
        seed_sh0: np.ndarray,
        threads: int,
        read_call: Any | None = None,
        write_call: Any | None = None,
    ) -> None:
        self._lib = library()
        native = np.zeros(1, LAYOUT_DTYPE)
        for i, plane in enumerate(RECORD_PLANES + SCRATCH_PLANES):
            native["offset"][0, i] = layout.offsets[plane]
            native["nbytes"][0, i] = layout.plane_nbytes(plane)
            native["stored"][0, i] = layout.stored_nbytes(plane)
            native["components"][0, i] = layout.components(plane)
            native["narrowed"] |= layout.narrows(plane) << i
        native["dtype"] = STORE_DTYPES.index(layout.store_dtype)
        native["capacity"] = layout.capacity
        native["seed_opacity"] = seed_opacity
        native["seed_sh0"] = seed_sh0
        self._calls = (read_call, write_call)  # kept alive
        pointers = [None if call is None else ctypes.cast(call, ctypes.c_void_p) for call in self._calls]
        self._handle = self._lib.tidegs_store_engine_new(native.ctypes.data, threads, *pointers)
        if not self._handle:
            raise StoreError(f"the store's {threads} I/O threads could not be started: {os.strerror(errno.EAGAIN)}")

    def read(self, requests: np.ndarray) -> int:
        """Reads REQUEST_DTYPE [n]; sets `status`; returns how many failed."""
        return self._lib.tidegs_store_read(self._handle, requests.ctypes.data, len(requests))

    def write(self, requests: np.ndarray) -> int:
        """Writes REQUEST_DTYPE [n]; sets `status` and `crc`; returns how many failed."""
        return self._lib.tidegs_store_write(self._handle, requests.ctypes.data, len(requests))

    def scan(self, requests: np.ndarray) -> None:
        """Leaves in `planes` the planes that are not all zero."""
        self._lib.tidegs_store_scan(self._handle, requests.ctypes.data, len(requests))

    def close(self) -> None:
        """Ends the threads."""
        if self._handle:
            self._lib.tidegs_store_engine_free(self._handle)
            self._handle = None
