"""The same training loop on cities of growing size: what a step costs must follow what is visible, not the scene.

For each size a generated city (density constant, so a larger one covers more ground) is streamed through the external
sort into a store, and trained with the same absolute budgets by the same flight of nadir cameras over the same square
in its middle: 640 m, 70 m above ground, images of 512x512. So every size sees equally many Gaussians in each view; from
1e7 on the square lies inside the city. States time and space before it starts, and stops where the disk is short.

Prints one JSON line for each size, then one with ratio_1e9_to_1e7 (of ms_a_step) and its like for each pair of sizes
and for the processor's time. ms_a_step is the median over windows of ten steps of the second half of the run, in which
nothing is compiled any more; seconds are of the wall unless they say cpu; setup_seconds: from the command to the first
step; planning_seconds: the part of it that chooses the order of the cameras; disk_peak_vs_store: of
the ingest, sampled.

    python benchmarks/scale.py [--gaussians 1e6 1e7 1e8 1e9] [--steps 200] [--out FOLDER] [--end-to-end]

--end-to-end also evaluates and writes the report, into FOLDER/SIZE/result; without it stores are removed when done.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from tidegs.gaussians.layout import RecordLayout
from tidegs.machine import human, short_of_space

CAMERAS, SIDE, ALTITUDE, SIZE = 128, 640, 70, 512
SURVEY = ("--aerial", str(CAMERAS), "--street", "0", "--oblique", "0", "--district", str(SIDE), "--samples", "1",
          "--altitude", str(ALTITUDE), "--size", str(SIZE), str(SIZE))  # fmt: skip
BUDGETS = ("--device-memory", "1GiB", "--host-memory", "512MiB", "--image-memory", "256MiB")
TRAIN = (*BUDGETS, "--order", "cache", "--snapshot-minutes", "0")
SEED_NBYTES, INGEST_PEAK = 19, 1.25  # a Gaussian of an untouched block; of the store
TOUCHED = 3000  # blocks that the flight sees: they grow to full records
RATES = {"points": 0.5e6, "steps": 0.5}  # a second on two cores, for the estimate of time


def space(n: int) -> int:
    """Bytes of disk that a size needs."""
    touched = min(TOUCHED, -(-n // 4096)) * RecordLayout(4096).record_nbytes
    return int(n * SEED_NBYTES * INGEST_PEAK) + touched


def run(command: list[str]) -> dict[str, float]:
    """Runs tidegs in a process of its own; wall and processor seconds, and peak RSS in bytes."""
    begun = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "tidegs", *command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"scale: tidegs {' '.join(command)} ended with status {process.returncode}")
    return {
        "seconds": time.monotonic() - begun,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_rss": usage.ru_maxrss * 1024,
    }


class DiskWatch:
    """The greatest space that a folder takes while a block of code runs, sampled every second."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.most, self._done = folder, 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._done.wait(1.0):
            self.most = max(self.most, disk_bytes(self.folder))

    def __enter__(self) -> DiskWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def disk_bytes(folder: Path) -> int:
    """Space that the files of a folder take; those that vanish meanwhile take none."""
    total = 0
    for name in os.listdir(folder) if folder.is_dir() else ():
        try:
            total += (folder / name).stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def measure(n: int, steps: int, out: Path, end_to_end: bool) -> dict[str, Any]:
    """One size, from the first point to the last step (and report)."""
    scene, store, result = out / "scene", out / "store", out / "result"
    with DiskWatch(store) as watch:
        made = run(["synth", str(scene), "--points", str(n), "--store", str(store), *SURVEY])
    stored = disk_bytes(store)
    command = ["train", str(scene), "--store", str(store), "--out", str(result), "--max-steps", str(steps), *TRAIN]
    trained = run(command if end_to_end else [*command, "--no-eval"])
    summary = json.loads((result / "stats" / "summary.json").read_text())
    lines = [json.loads(line) for line in (result / "stats" / "train.jsonl").read_text().splitlines()]
    row = {
        "gaussians": n,
        "psnr": summary["psnr"],
        "ms_a_step": step_ms(lines),
        "visible_blocks_a_step": (summary["hits"] + summary["misses"]) / max(1, summary["passes"]),
        "bytes_a_step": {link: moved / steps for link, moved in summary["moved_bytes"].items()},
        "stall_share": summary["stall_seconds"] / summary["seconds"],
        "peak_rss": trained["peak_rss"],
        "setup_seconds": trained["seconds"] - summary["seconds"],
        "planning_seconds": summary["planning_seconds"],
        "train_cpu_seconds": trained["cpu_seconds"],
        "ingest_points_a_second": n / made["seconds"],
        "ingest_cpu_us_a_point": 1e6 * made["cpu_seconds"] / n,
        "ingest_peak_rss": made["peak_rss"],
        "disk_ingested": stored,
        "disk_peak_vs_store": watch.most / stored,
        "disk_trained": disk_bytes(store),
    }
    if end_to_end:
        row["report_seconds"] = run(["report", str(result), "--quiet"])["seconds"]
    return row


def step_ms(lines: list[dict[str, Any]]) -> float:
    """Median over the windows between log lines of the second half."""
    late = lines[len(lines) // 2 - 1 :] if len(lines) > 2 else lines
    windows = [(b["seconds"] - a["seconds"]) / (b["step"] - a["step"]) for a, b in pairwise(late)]
    return 1000 * statistics.median(windows) if windows else 1000 * lines[-1]["seconds"] / lines[-1]["step"]


def ratios(rows: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Each size against 1e7 (or the smallest) in the cost of a step."""
    base = "1e7" if "1e7" in rows else next(iter(rows))
    out = {}
    for name, row in rows.items():
        if name != base:
            out[f"ratio_{name}_to_{base}"] = round(row["ms_a_step"] / rows[base]["ms_a_step"], 4)
            out[f"cpu_ratio_{name}_to_{base}"] = round(row["train_cpu_seconds"] / rows[base]["train_cpu_seconds"], 4)
    return out


def label(n: int) -> str:
    """10000000 -> "1e7"."""
    return f"{n:.0e}".replace("e+0", "e").replace("e+", "e")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gaussians", type=float, nargs="+", default=[1e6, 1e7, 1e8, 1e9])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path, help="folder for scenes, stores and results (a temporary one)")
    parser.add_argument("--end-to-end", action="store_true", help="evaluate, report, and keep the store")
    args = parser.parse_args()
    out = args.out or Path(tempfile.mkdtemp(prefix="tidegs-scale-"))
    sizes = [int(n) for n in args.gaussians]
    need = sum(map(space, sizes)) if args.end_to_end else max(map(space, sizes))
    minutes = sum(n / RATES["points"] + args.steps / RATES["steps"] + CAMERAS for n in sizes) / 60
    print(
        f"scale: about {minutes:.0f} minutes on two cores, and {human(need)} below {out}", file=sys.stderr, flush=True
    )
    if short := short_of_space(out, need):
        sys.exit(f"scale: the disk is short: {short}; name a folder on another one with --out, or fewer --gaussians")
    rows = {}
    for n in sizes:
        folder = out / label(n)
        if folder.exists():
            sys.exit(f"scale: {folder} exists already: remove it, or name another folder with --out")
        folder.mkdir(parents=True)
        rows[label(n)] = measure(n, args.steps, folder, args.end_to_end)
        print(json.dumps(rows[label(n)]), flush=True)
        if not args.end_to_end:
            shutil.rmtree(folder)
    print(json.dumps({**ratios(rows), "sizes": rows}))


if __name__ == "__main__":
    main()
