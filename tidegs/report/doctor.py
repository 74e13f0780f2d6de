"""What a machine means for training: one finding a line, each with what to do about it.

Invariant: a finding never fails the others; what cannot be found out is said to be unknown.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tidegs import __version__
from tidegs.device.native import library_path, supported_isas
from tidegs.errors import TidegsError
from tidegs.gaussians.layout import RecordLayout
from tidegs.machine import available_memory, cores, disk_free, human
from tidegs.report.gpu import gpu_findings
from tidegs.report.probe import copy_rate, disk_rates

State = Literal["good", "note", "problem"]

_BLOCK = RecordLayout(4096)
_SLOW_DISK, _SLOW_FSYNC = 500 << 20, 0.05
_REMOTE = {"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "lustre", "ceph", "virtiofs"}
_FEW_FILES = 256


@dataclass(frozen=True)
class Finding:
    """One line. `remedy`: what to do, or why nothing needs to be done."""

    name: str
    state: State
    found: str
    remedy: str


def examine(folder: Path, measure: bool = True) -> list[Finding]:
    """All findings. `folder`: where stores will lie; it must exist. `measure`: also write and read a short file."""
    checks: list[Callable[[], Iterator[Finding]]] = [
        _software,
        _cpu,
        _memory,
        lambda: _folder(folder),
        *([_copies, lambda: _disk(folder)] if measure else []),
        _limits,
        _pages,
        lambda: (Finding(*line) for line in gpu_findings(folder, measure)),
    ]
    out: list[Finding] = []
    for check in checks:
        try:
            out.extend(check())
        except (OSError, ValueError, TidegsError) as error:
            out.append(Finding(check.__name__.strip("_<>"), "problem", f"unknown: {error}", "see the message"))
    return out


def _software() -> Iterator[Finding]:
    names = ("torch", "gsplat", "numpy", "numba")
    found = ", ".join(f"{name} {_version(name) or 'missing'}" for name in names)
    missing = [name for name in names if _version(name) is None]
    remedy = f"pip install {' '.join(missing)}" if missing else "nothing to do"
    text = f"tidegs {__version__}, Python {platform.python_version()}, {found}"
    yield Finding("software", "problem" if missing else "good", text, remedy)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu() -> Iterator[Finding]:
    isas = supported_isas()
    built = [isa for isa in isas if library_path(isa)]
    text = f"{_cpu_name()}, {cores()} cores for this process, {isas[0]}"
    if not built:
        yield Finding("CPU", "problem", f"{text}; kernels not built", "pip install .  (needs a C++ compiler)")
    elif built[0] != isas[0]:
        yield Finding("CPU", "note", f"{text}; kernels for it not built", "build again on this machine: pip install .")
    elif isas[0] == "portable":
        yield Finding("CPU", "note", text, "kernels without SIMD are several times slower; a CPU with AVX2 helps")
    else:
        yield Finding("CPU", "good", text, "nothing to do; steps take time in proportion to 1 / cores")


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def _memory() -> Iterator[Finding]:
    free = available_memory()
    whole = int(free * 0.5) // _BLOCK.slot_nbytes * _BLOCK.capacity
    text = f"{human(free)} free of {human(os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE'))}"
    meaning = f"scenes up to about {_millions(whole)} Gaussians train in core on the CPU, larger ones out of core"
    few = free < 2 << 30
    remedy = "close other programs, or give small --host-memory and --image-memory" if few else meaning
    yield Finding("RAM", "note" if few else "good", text, remedy)


def _copies() -> Iterator[Finding]:
    yield Finding(
        "RAM copy", "good", f"{human(copy_rate())}/s with one thread", "the rate between host cache and arena"
    )


def _millions(count: int) -> str:
    return f"{count / 1e6:.3g} million" if count < 1e9 else f"{count / 1e9:.3g} billion"


def _folder(folder: Path) -> Iterator[Finding]:
    kind, free = _file_system(folder), disk_free(folder)
    most = free // _BLOCK.record_nbytes * _BLOCK.capacity
    text = f"{folder.resolve()}: {kind}, {human(free)} free"
    if kind in _REMOTE:
        yield Finding("store folder", "problem", text, "a network file system is slow and may lose writes; use --store")
    elif kind in ("tmpfs", "ramfs"):
        yield Finding("store folder", "problem", text, "this is RAM; give --store a folder on an SSD")
    elif free < 10 << 30:
        yield Finding("store folder", "note", text, f"room for {_millions(most)} trained Gaussians; free some space")
    else:
        yield Finding("store folder", "good", text, f"room for about {_millions(most)} trained Gaussians")


def _file_system(folder: Path) -> str:
    """Type of the file system that holds the folder; "unknown" where /proc does not say."""
    best, kind = "", "unknown"
    path = str(folder.resolve())
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return kind
    for line in mounts:
        _, mount, found, *_ = line.split(" ")
        inside = path == mount or path.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, found
    return kind


def _disk(folder: Path) -> Iterator[Finding]:
    rates = disk_rates(folder)
    block = _BLOCK.record_nbytes
    text = f"{human(rates.read_one)}/s one at a time, {human(rates.read_many)}/s with several in flight"
    fast = rates.read_many >= _SLOW_DISK
    meaning = f"{rates.read_many / block:,.0f} blocks of {_BLOCK.capacity} with moments a second"
    remedy = meaning if fast else f"{meaning}; use an NVMe SSD, or a larger --host-memory so that little is read"
    yield Finding("SSD read, random 1 MiB", "good" if fast else "note", text, remedy)
    fast = rates.write >= _SLOW_DISK
    remedy = "nothing to do" if fast else "snapshots and write-behind will be slow; use an NVMe SSD"
    yield Finding("SSD write", "good" if fast else "note", f"{human(rates.write)}/s", remedy)
    yield Finding(
        "direct I/O",
        "good" if rates.direct else "problem",
        "accepted" if rates.direct else "refused: reads and writes go through the page cache",
        "nothing to do" if rates.direct else "give --store a folder on ext4 or xfs",
    )
    slow = rates.fsync_seconds > _SLOW_FSYNC
    remedy = "each snapshot waits for a few; raise --snapshot-minutes" if slow else "nothing to do"
    yield Finding("fsync", "note" if slow else "good", f"{1000 * rates.fsync_seconds:.1f} ms", remedy)


def _limits() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = soft < _FEW_FILES
    remedy = (
        f"ulimit -n {min(hard, 4096) if hard > 0 else 4096}" if few else "nothing to do; tidegs keeps about 20 open"
    )
    yield Finding("open files", "problem" if few else "good", str(soft), remedy)
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    free = soft == resource.RLIM_INFINITY
    small = not free and soft < available_memory() // 4
    remedy = (
        "with a GPU the host cache is locked memory: `ulimit -l unlimited`, or memlock in /etc/security/limits.conf; "
        "the CPU device locks none"
    )
    found = "unlimited" if free else human(soft)
    yield Finding("memlock", "note" if small else "good", found, remedy if small else "nothing to do")


def _pages() -> Iterator[Finding]:
    try:
        text = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return
    now = text.partition("[")[2].partition("]")[0]
    off = now == "never"
    remedy = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (as root): arenas use fewer page tables"
    yield Finding("huge pages", "note" if off else "good", now, remedy if off else "nothing to do")
