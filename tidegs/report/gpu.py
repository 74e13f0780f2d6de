"""What `tidegs doctor` finds out about the GPU: driver, memory, gsplat's kernels, kvikio and GPUDirect, rates of links.

Invariant: works without a GPU, a driver or CUDA packages, and says which of them is missing.
"""

from __future__ import annotations

import importlib.util
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tidegs.device.cuda import gds
from tidegs.device.cuda.gds import Gds
from tidegs.machine import human
from tidegs.report.probe import FILE_NBYTES, device_rates

Line = tuple[str, Any, str, str]  # name, state, found, remedy
_COPY_NBYTES = 256 << 20


def gpu_findings(folder: Path, measure: bool) -> Iterator[Line]:
    """Findings as (name, state, found, remedy); `folder`: where stores will lie."""
    driver = _driver()
    torch = _torch() if driver else None
    if torch is None or not torch.cuda.is_available():
        yield _no_gpu(driver, torch)
        return
    for i in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(i)
        free, total = torch.cuda.mem_get_info(i)
        text = f"{card.name}, compute {card.major}.{card.minor}, {human(free)} free of {human(total)}"
        busy = free < 0.7 * total
        remedy = "other programs hold much of it: close them, or lower --device-memory" if busy else "use --device cuda"
        yield f"GPU {i}", "note" if busy else "good", text, remedy
    yield "CUDA driver", "good", f"{driver or 'version unknown'}, torch for CUDA {torch.version.cuda}", "nothing to do"
    yield _compiler()
    found = gds.look()
    yield _kvikio(found)
    if measure:
        yield _pcie(torch)
    if measure and found.usable:
        yield _ssd_to_device(torch, folder, found)


def _driver() -> str | None:
    try:
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0].partition("Module")[2].split()[0]
    except (OSError, IndexError):
        return None


def _torch() -> Any | None:
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    return torch


def _no_gpu(driver: str | None, torch: Any | None) -> Line:
    if driver is None:
        return "GPU", "note", "none (no NVIDIA driver)", "training runs on the CPU; a CUDA GPU is many times faster"
    if torch is None or torch.version.cuda is None:
        found = f"NVIDIA driver {driver}, but torch is {'missing' if torch is None else 'a CPU build'}"
        return "GPU", "problem", found, "install a CUDA build of torch that fits the driver"
    return (
        "GPU",
        "problem",
        f"NVIDIA driver {driver}, but torch sees no device",
        "check nvidia-smi and CUDA_VISIBLE_DEVICES",
    )


def _compiler() -> Line:
    nvcc, ninja = shutil.which("nvcc"), shutil.which("ninja")
    if nvcc and ninja:
        return "gsplat kernels", "good", f"nvcc at {nvcc}, ninja", "compiled at the first use, some minutes, once"
    missing = " and ".join(n for n, p in (("nvcc", nvcc), ("ninja", ninja)) if not p)
    return (
        "gsplat kernels",
        "problem",
        f"{missing} not found",
        "install the CUDA toolkit that fits torch, and `pip install ninja`",
    )


def _kvikio(found: Gds) -> Line:
    if found.direct:
        return "GPUDirect Storage", "good", found.says, "--host-memory 0 spares the CPU and its memory all traffic"
    if found.usable:
        return (
            "GPUDirect Storage",
            "note",
            found.says,
            "needs nvidia-fs and a local NVMe; --host-memory 0 works without",
        )
    return "GPUDirect Storage", "note", found.says, "without it blocks pass through host memory"


def _ssd_to_device(torch: Any, folder: Path, found: Gds) -> Line:
    """Rates of kvikio between a file and the GPU's memory."""
    gds.prepare()
    buffer = torch.empty(FILE_NBYTES, dtype=torch.uint8, device="cuda")
    rates = device_rates(folder, buffer)
    how = "GPUDirect Storage" if found.direct else "kvikio's own buffer in host memory"
    text = f"{human(rates.read)}/s up, {human(rates.write)}/s down, by {how}"
    return "SSD to GPU", "good", text, "the rate of loads with --host-memory 0; compare with SSD read above"


def _pcie(torch: Any) -> Line:
    """Rate of pinned copies in both directions."""
    host = torch.empty(_COPY_NBYTES, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(_COPY_NBYTES, dtype=torch.uint8, device="cuda")
    rates = []
    for target, source in ((there, host), (host, there)):
        least = float("inf")
        for _ in range(4):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            least = min(least, time.perf_counter() - begun)
        rates.append(_COPY_NBYTES / least)
    slow = min(rates) < 6 << 30
    remedy = "put the card into a x16 slot of PCIe 4 or newer" if slow else "nothing to do"
    return "PCIe", "note" if slow else "good", f"{human(rates[0])}/s up, {human(rates[1])}/s down", remedy
