"""Trains real scenes in core and out of core and compares: PSNR, SSIM, seconds of the wall and of the processor.

    python benchmarks/scenes.py SCENES_FOLDER [--scenes banana,plush] [--steps N] [--out FOLDER] [-- train options]

Prints one JSON line for each run, then one with the ratios. Scenes where each view sees nearly everything get an arena
of half the scene; the others a fifth, with a host cache of 30 %. Runs that --out already holds are not repeated.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SMALL = ("--device-memory", "20%", "--host-memory", "30%")
HALF = ("--device-memory", "50%", "--host-memory", "30%")
BUDGETS = {"southbuilding": SMALL, "caliterra": SMALL}
IN_CORE = ("--device-memory", "100%", "--host-memory", "30%")
KEYS = ("psnr", "ssim", "num_gaussians", "dropped_blocks", "overlap")


def run(scene: Path, out: Path, budgets: tuple[str, ...], options: list[str]) -> dict[str, Any]:
    """One training run in a process of its own, with the figures of its summary."""
    kept = out / "benchmark.json"
    if kept.exists():
        return json.loads(kept.read_text())
    command = [sys.executable, "-m", "tidegs", "train", str(scene), "--out", str(out), "--quiet", *budgets, *options]
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    summary = json.loads((out / "stats" / "summary.json").read_text())
    row = {key: summary[key] for key in KEYS}
    row["train_seconds"], row["wall_seconds"] = summary["seconds"], round(wall, 1)
    row["cpu_seconds"] = round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1)
    kept.write_text(json.dumps(row))
    return row


def compare(root: Path, name: str, out: Path, options: list[str]) -> dict[str, float]:
    """A scene in core and out of core; prints both and returns how they differ."""
    rows = {}
    for mode, budgets in (("out", BUDGETS.get(name, HALF)), ("in", IN_CORE)):
        rows[mode] = run(root / name, out / f"{name}-{mode}", budgets, options)
        print(json.dumps({"scene": name, "core": mode, **rows[mode]}), flush=True)
    return {
        "psnr_out_minus_in": round(rows["out"]["psnr"] - rows["in"]["psnr"], 4),
        "cpu_out_vs_in": round(rows["out"]["cpu_seconds"] / rows["in"]["cpu_seconds"], 3),
        "wall_out_vs_in": round(rows["out"]["wall_seconds"] / rows["in"]["wall_seconds"], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("--scenes", default="banana,plush,room,southbuilding,caliterra")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--out", type=Path)
    arguments = sys.argv[1:]
    at = arguments.index("--") if "--" in arguments else len(arguments)
    args, options = parser.parse_args(arguments[:at]), arguments[at + 1 :]
    out = args.out or Path(tempfile.mkdtemp(prefix="tidegs-scenes-"))
    options = [
        "--max-steps",
        str(args.steps),
        "--block-capacity",
        "64",
        "--order",
        "shuffle",
        "--strategy",
        "none",
        *options,
    ]
    print(json.dumps({name: compare(args.root, name, out, options) for name in args.scenes.split(",")}))


if __name__ == "__main__":
    main()
