"""The CPU rasterizer against a plain scalar twin in C++, against the machine's multiply-add peak, and from one thread
to all. Prints one JSON line. Times on one thread are processor time, which other work on the machine disturbs less.

    python benchmarks/rasterizer.py [--gaussians N] [--width W] [--height H] [--repeats N] [--isas avx2,portable]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import time

import numpy as np

from benchmarks import aerial
from benchmarks.step import step
from tidegs.device import native
from tidegs.device.base import RenderSettings
from tidegs.device.cpu import CpuDevice

# Multiply-adds and like operations of one pixel and one splat, forward and backward (csrc/raster/tile_*.hpp).
FLOPS_FORWARD, FLOPS_BACKWARD = 20, 42


def twin_ms(device: CpuDevice, arena: aerial.Arena, width: int, height: int) -> tuple[float, int]:
    """Milliseconds of the scalar pixel stage, forward and backward, on one thread; and its contributions: pairs of a
    pixel and a splat with alpha of 1/255 or more, before the pixel had enough."""
    view = aerial.views(width, height)[0]
    frame = device.new_frame(view)
    device.begin(view, RenderSettings(), frame)
    device.add(arena.blocks)
    device.finish(frame)
    image, grad = np.zeros((3, height, width), np.float32), np.ones((3, height, width), np.float32)
    sums = np.zeros((device.counts().splats, 10), np.float32)
    begin = time.thread_time()
    contributions = device.twin(image, grad, sums)
    elapsed = 1e3 * (time.thread_time() - begin)
    worst = float(np.abs(image - frame.image).max())
    if worst > 1e-3:
        raise SystemExit(f"the twin's image differs by {worst}: the comparison is void")
    return elapsed, contributions


def fma_peak(isa: str, threads: int) -> float:
    """Multiply-adds a second."""
    library = native.load(isa)
    library.tidegs_fma_peak.restype = ctypes.c_double
    library.tidegs_set_threads(threads)
    return float(library.tidegs_fma_peak(20))


def measure(isa: str, n: int, width: int, height: int, repeats: int) -> dict[str, object]:
    device = CpuDevice(isa=isa)
    arena = aerial.open_arena(n, device)
    view = aerial.views(width, height)[0]
    target = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    by_threads: dict[int, dict[str, float]] = {}
    for threads in sorted({1, native.thread_count()}):
        device.set_threads(threads)
        steps = [step(device, arena, view, target, i + 1) for i in range(repeats)]
        by_threads[threads] = {name: min(s[name] for s in steps) for name in steps[0]}
    scalar, contributions = twin_ms(device, arena, width, height)
    most = max(by_threads)
    one = {name[4:]: ms for name, ms in by_threads[1].items() if name.startswith("cpu_")}
    pixel_ms = one["blend"] + one["differentiate"]
    done = contributions * (FLOPS_FORWARD + FLOPS_BACKWARD) / (1e-3 * pixel_ms)
    row = {
        "isa": isa,
        "ms_forward": round(sum(one[s] for s in ("project", "count", "bin", "blend")), 2),
        "ms_loss": round(one["loss"], 2),
        "ms_backward": round(one["differentiate"], 2),
        "ms_adam": round(one["update"], 2),
        "ms_pixel_stage": round(pixel_ms, 2),
        "ms_pixel_stage_scalar": round(scalar, 2),
        "speedup_over_scalar": round(scalar / pixel_ms, 1),
        "contributions_per_pixel": round(contributions / (width * height), 1),
        "lanes_that_count": round(contributions / device.counts().evaluations, 2),
        "contributions_per_second": round(2 * contributions / (1e-3 * pixel_ms)),
        "share_of_fma_peak": round(done / fma_peak(isa, 1), 3),
        "threads": most,
        "speedup_of_threads": round(by_threads[1]["step"] / by_threads[most]["step"], 2),
    }
    device.close()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gaussians", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=1000)
    parser.add_argument("--height", type=int, default=562)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--isas", default=",".join(isa for isa in native.supported_isas() if native.library_path(isa)))
    args = parser.parse_args()
    size = {"gaussians": args.gaussians, "width": args.width, "height": args.height}
    rows = [measure(isa, *size.values(), args.repeats) for isa in args.isas.split(",")]
    print(json.dumps({"benchmark": "rasterizer", **size, "rows": rows}))


if __name__ == "__main__":
    main()
