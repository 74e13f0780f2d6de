"""The checks of scripts/gpu_check.sh, once everything is installed: one JSON line at the end, whatever happened.

Invariant: a check that fails is reported and makes the exit status 1; the others still run, as far as time allows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BUDGET_SECONDS = 8 * 60
CAP_NBYTES = 24 << 30  # of device memory, as on the card that most users have
ROOT = Path(__file__).resolve().parents[1]


def facts() -> dict[str, Any]:
    """What is here."""
    import torch

    from tidegs.device.cuda import versions

    found = vars(versions.gather_facts())
    properties = torch.cuda.get_device_properties(0)
    return {**found, "name": properties.name, "memory": properties.total_memory, "cores": os.cpu_count()}


def kernels() -> dict[str, Any]:
    """gsplat's kernels, compiled where they were not."""
    from tidegs.device.cuda import versions

    began = time.monotonic()
    versions.require()
    return {"seconds": round(time.monotonic() - began, 1)}


def tests(seconds: float) -> dict[str, Any]:
    """tests/gpu: Triton kernels against their twins, the CUDA device against the CPU device, real streams."""
    command = [sys.executable, "-m", "pytest", "tests/gpu", "-q", "-x", "--no-header", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds)
    last = (done.stdout.strip().splitlines() or [""])[-1]
    if done.returncode != 0:
        raise RuntimeError(f"{last}\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    return {"pytest": last}


def measure_links(device: Any, slot_count: int = 64, capacity: int = 4096, rounds: int = 4) -> dict[str, float]:
    """Bytes a second through the copy engine: up, down, and both at once; pinned host memory, slots of one record."""
    from tidegs.gaussians.layout import RecordLayout

    layout = RecordLayout(capacity)
    device.open_arena(layout, 2 * slot_count)
    region = device.host_region(2 * slot_count * layout.slot_nbytes)
    region[:] = 1  # touched before it is timed
    host = list(region.reshape(2 * slot_count, layout.slot_nbytes))
    up_slots, down_slots = list(range(slot_count)), list(range(slot_count, 2 * slot_count))

    def up() -> None:
        device.upload(host[:slot_count], up_slots)

    def down() -> None:
        device.download(down_slots, host[slot_count:])

    def both() -> None:
        thread = threading.Thread(target=up)
        thread.start()
        down()
        thread.join()

    rates = {}
    for name, work, share in (("up", up, 1), ("down", down, 1), ("both", both, 2)):
        work()
        least = min(_timed(work) for _ in range(rounds))
        rates[name] = share * slot_count * layout.slot_nbytes / least
    return rates


def _timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def links(out: Path) -> dict[str, Any]:
    """Rates of the links in GB/s, and what kvikio says of GPUDirect Storage."""
    from tidegs.device.cuda import gds, open_cuda

    device = open_cuda()
    try:
        rates: dict[str, Any] = {k: round(v / 1e9, 2) for k, v in measure_links(device).items()}
    finally:
        device.close()
    found = gds.look()
    return {**rates, "gds": found.says, **(_ssd_rates(out) if found.usable else {})}


def _ssd_rates(out: Path) -> dict[str, float]:
    """Between a file and device memory, by kvikio."""
    import torch

    from tidegs.device.cuda import gds
    from tidegs.report.probe import FILE_NBYTES, device_rates

    gds.prepare()
    rates = device_rates(out, torch.zeros(FILE_NBYTES, dtype=torch.uint8, device="cuda"))
    return {"ssd_to_device": round(rates.read / 1e9, 2), "device_to_ssd": round(rates.write / 1e9, 2)}


def training(out: Path, steps: int) -> dict[str, Any]:
    """A generated city under the cap: in core, out of core, and briefly without a host cache."""
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, CAP_NBYTES / total))
    scene = out / "city"
    if not scene.is_dir():
        sizes = ["--extent", "400", "--aerial", "60", "--street", "0", "--size", "960", "640", "--points", "1000000"]
        tidegs("synth", str(scene), *sizes, "--points-from", "all")
    memory = ["--device-memory", "25%", "--host-memory", "40%"]
    return {
        "in_core": _train(scene, out / "in-core", steps, []),
        "out_of_core": _train(scene, out / "out-of-core", steps, memory),
        "no_host_cache": _train(scene, out / "no-host-cache", max(1, steps // 4), [*memory[:2], "--host-memory", "0"]),
        "peak_device_bytes": torch.cuda.max_memory_reserved(),
        "cap_bytes": CAP_NBYTES,
    }


def _train(scene: Path, out: Path, steps: int, extra: list[str]) -> dict[str, Any]:
    schedule = ["--max-steps", str(steps), "--eval-steps", str(steps), "--save-steps", "--ply-steps"]
    tidegs("train", str(scene), "--out", str(out), "--device", "cuda", "--quiet", *schedule, *extra)
    summary = json.loads((out / "stats" / "summary.json").read_text())
    keys = (
        "psnr",
        "ssim",
        "num_gaussians",
        "dropped_blocks",
        "overlap",
        "seconds",
        "moved_bytes",
        "in_core",
        "stalls",
        "memory_splits",
        "route",
    )
    made = {k: summary.get(k) for k in keys}
    made["steps_a_second"] = round(steps / summary["seconds"], 2)
    if summary.get("dropped_blocks"):
        raise RuntimeError(f"blocks were dropped: {made}")
    return made


def tidegs(*arguments: str) -> None:
    """Runs a command of tidegs in this process, so that the cap on device memory holds for it."""
    from tidegs.cli.main import main

    status = main(list(arguments))
    if status != 0:
        raise RuntimeError(f"tidegs {' '.join(arguments)} ended with {status}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--began", type=float, default=time.time())
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()

    def left() -> float:
        return BUDGET_SECONDS - (time.time() - args.began)

    checks: list[tuple[str, Callable[[], dict[str, Any]]]] = [
        ("facts", facts),
        ("kernels", kernels),
        ("links", lambda: links(args.out)),
        ("tests", lambda: tests(max(30.0, left() / 2))),
        ("training", lambda: training(args.out, args.steps)),
    ]
    report: dict[str, Any] = {"ok": True}
    for name, check in checks:
        began = time.monotonic()
        try:
            if left() < 20:
                raise TimeoutError("no time was left for this check")
            report[name] = check()
        except Exception as error:  # the report must come, whatever failed
            report["ok"] = False
            report[name] = {"error": f"{type(error).__name__}: {error}"}
        report.setdefault("check_seconds", {})[name] = round(time.monotonic() - began, 1)
    report["seconds"] = round(time.time() - args.began, 1)
    line = json.dumps(report)
    (args.out / "gpu-check.json").write_text(line + "\n")
    print(line)
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
