"""What this machine has: memory that is really available (cgroup limits included), cores, disk space, peak RSS."""

from __future__ import annotations

import os
import resource
import shutil
import sys
from pathlib import Path


def available_memory() -> int:
    """Bytes that a new process may take: MemAvailable, or less where a cgroup limits it."""
    available = _meminfo("MemAvailable")
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            left = int(Path(limit).read_text()) - int(Path(used).read_text())
            available = min(available, max(left, 0))
        except (OSError, ValueError):
            continue  # no such cgroup, or "max"
    return available


def _meminfo(key: str) -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def peak_rss() -> int:
    """Greatest resident set of this process so far, bytes. (getrusage's counts what forked it, too.)"""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def rss() -> int:
    """Resident set of this process now, bytes; the peak where /proc is missing."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return peak_rss()


def disk_free(path: Path) -> int:
    """Free bytes of the file system that holds `path` or its nearest existing parent."""
    path = path.resolve()
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def short_of_space(folder: Path, nbytes: int) -> str:
    """What is missing to write `nbytes` below a folder, for the user; empty where nothing is."""
    free = disk_free(folder)
    return "" if nbytes <= free else f"it needs {human(nbytes)} and {human(free)} of disk are free"


def cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def human(nbytes: float) -> str:
    """1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(nbytes) < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.2f} TiB"
