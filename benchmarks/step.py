"""Milliseconds of a full training step on the CPU (decoding of the image to Adam) and of its parts, at the sizes that
OpenSplat 1.1.5 was measured at. Prints one JSON line.

"ms_step" is projection to Adam; "ms_full_step" adds the decoding of a JPEG, which training does ahead on another
thread. "ratio_to_opensplat" is ms_full_step over OpenSplat's `--cpu` on two Sapphire Rapids cores, where an aerial
scene of 18 photos was trained.

    python benchmarks/step.py [--threads N] [--repeats N] [--sizes 3400x500x281,...]
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict

import cv2
import numpy as np
import simplejpeg

from benchmarks import aerial
from tidegs.device import native, trace
from tidegs.device.base import AdamSettings, RenderSettings, View
from tidegs.device.cpu import CpuDevice

SIZES = [(n, w, h) for n in (3_400, 100_000, 1_000_000) for w, h in ((500, 281), (1000, 562))]
OPENSPLAT_MS = dict(zip(SIZES, (97, 374, 291, 737, 1970, 2620), strict=True))
STAGES = ("project", "count", "bin", "blend", "loss", "differentiate", "update")


def step(device: CpuDevice, arena: aerial.Arena, view: View, target: np.ndarray, number: int) -> dict[str, float]:
    """One step; milliseconds of the whole and of each stage (from its first thread's start to its last one's end), and
    as "cpu_..." the processor time of all threads."""
    library = native.load(device.isa)
    frame = device.new_frame(view)
    frame.image[:] = 0  # touches its pages
    frame.grad = np.zeros_like(frame.image)
    trace.start(library)
    begin = time.perf_counter()
    device.begin(view, RenderSettings(), frame)
    device.add(arena.blocks)
    device.finish(frame)
    device.loss(frame, target, 0.2)
    device.differentiate(frame)
    device.update(0, arena.blocks, AdamSettings((1e-9,) * 6, number))
    out = {"step": 1e3 * (time.perf_counter() - begin)}
    spans: dict[str, list[int]] = defaultdict(list)
    cpu: dict[str, int] = defaultdict(int)
    for event in trace.take(library):
        stage = "loss" if event.stage == "kernel" else event.stage
        spans[stage] += [event.begin_ns, event.end_ns]
        cpu[stage] += event.cpu_ns
    trace.stop(library)
    for stage in STAGES:
        out[stage] = 1e-6 * (max(spans[stage]) - min(spans[stage])) if spans[stage] else 0.0
        out[f"cpu_{stage}"] = 1e-6 * cpu[stage]
    out["other"] = out["step"] - sum(out[stage] for stage in STAGES)
    out["cpu_step"] = sum(out[f"cpu_{stage}"] for stage in STAGES)
    return out


def smooth(noise: np.ndarray) -> np.ndarray:
    """Noise with the detail of a photo, which a JPEG of plain noise has not."""
    return cv2.GaussianBlur(noise, (0, 0), 2)


def decode_ms(image: np.ndarray, repeats: int) -> float:
    """The least milliseconds that decoding an image takes; uint8 [height, width, 3]."""
    jpeg = simplejpeg.encode_jpeg(image, quality=90)
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        simplejpeg.decode_jpeg(jpeg)
        times.append(1e3 * (time.perf_counter() - begin))
    return min(times)


def measure(n: int, width: int, height: int, repeats: int, threads: int) -> dict[str, float | int]:
    """The least of each figure over `repeats` steps."""
    device = CpuDevice()
    device.set_threads(threads)
    arena = aerial.open_arena(n, device)
    views = aerial.views(width, height)
    target = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    steps = [step(device, arena, views[i % len(views)], target, i + 1) for i in range(repeats)]
    counts = device.counts()
    device.close()
    best = {name: min(one[name] for one in steps) for name in steps[0]}
    best["decode"] = decode_ms(np.ascontiguousarray(smooth(target)), repeats)
    best["full_step"] = best["step"] + best["decode"]
    reference = OPENSPLAT_MS.get((n, width, height))
    return {
        "gaussians": n,
        "width": width,
        "height": height,
        "visible": counts.splats,
        "visits": counts.visits,
        **{f"ms_{name}": round(ms, 2) for name, ms in best.items()},
        "share_of_loss": round(best["cpu_loss"] / best["cpu_step"], 3),
        **({"ratio_to_opensplat": round(best["full_step"] / reference, 4)} if reference else {}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=native.thread_count())
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--sizes", default=",".join("x".join(map(str, size)) for size in SIZES))
    args = parser.parse_args()
    sizes = [tuple(map(int, text.split("x"))) for text in args.sizes.split(",")]
    rows = [measure(n, w, h, args.repeats, args.threads) for n, w, h in sizes]
    isa = native.kernels().tidegs_isa().decode()
    print(json.dumps({"benchmark": "step", "isa": isa, "threads": args.threads, "rows": rows}))


if __name__ == "__main__":
    main()
