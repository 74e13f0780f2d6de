"""Loads the C++ kernels: the library of the best instruction set that this CPU has, once for a process.

Invariant: a library is loaded only where the CPU can run it; what is missing is said in one sentence, never hidden.
"""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from tidegs.errors import DeviceError

# Best first, each with the CPU flags (as Linux names them) that its library was compiled for.
_ISAS: dict[str, frozenset[str]] = {
    "avx512": frozenset({"avx512f", "avx512vl", "avx512bw", "avx512dq", "avx2", "fma", "bmi2"}),
    "avx2": frozenset({"avx2", "fma", "bmi2"}),
    "portable": frozenset(),
}


@cache
def _cpu_flags() -> frozenset[str]:
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return frozenset()
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return frozenset(line.partition(":")[2].split())


def supported_isas() -> list[str]:
    """Instruction sets that this CPU has, best first; always ends with "portable"."""
    return [isa for isa, needed in _ISAS.items() if needed <= _cpu_flags()]


def thread_count() -> int:
    """Threads to use: TIDEGS_THREADS where set, else the cores this process may run on."""
    text = os.environ.get("TIDEGS_THREADS")
    if text is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not text.isdigit() or not 1 <= int(text) <= 1024:
        raise DeviceError(f"TIDEGS_THREADS is {text!r}: set it to a number from 1 to 1024, or leave it unset")
    return int(text)


def library_path(isa: str) -> Path | None:
    """Where the library of an instruction set was built; None where it was not."""
    folder = Path(__file__).resolve().parents[1]
    paths = (folder / f"_kernels_{isa}{suffix}" for suffix in EXTENSION_SUFFIXES)
    return next((path for path in paths if path.is_file()), None)


@cache
def load(isa: str) -> ctypes.CDLL:
    """The library of one instruction set, loaded once, its threads set. Raises DeviceError where it cannot run here."""
    if isa not in _ISAS:
        raise DeviceError(f"TIDEGS_ISA is {isa!r}: set it to one of {', '.join(_ISAS)}, or leave it unset")
    if isa not in supported_isas():
        raise DeviceError(f"TIDEGS_ISA is {isa!r}, which this CPU lacks: it has {', '.join(supported_isas())}")
    path = library_path(isa)
    if path is None:
        raise DeviceError(
            f"the kernels for {isa} are not built: run `pip install .`, or `python setup.py build_ext --inplace`"
        )
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise DeviceError(f"{path} cannot be loaded ({error}): build tidegs again on this machine") from error
    library.tidegs_isa.restype = ctypes.c_char_p
    library.tidegs_copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    library.tidegs_copy.restype = None
    library.tidegs_set_threads.argtypes = [ctypes.c_int]
    library.tidegs_set_threads.restype = None
    library.tidegs_set_threads(thread_count())
    return library


def kernels() -> ctypes.CDLL:
    """The library to use: the one that TIDEGS_ISA names, else the best that the CPU has."""
    return load(os.environ.get("TIDEGS_ISA") or supported_isas()[0])
