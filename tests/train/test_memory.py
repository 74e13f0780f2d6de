"""Peak memory (I5): within the budgets and a stated constant, and the same for twice as many cameras."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tidegs.cli.main import main
from tidegs.machine import human

CONSTANT = 512 << 20  # interpreter, libraries, compiled kernels, frames and lists of a pass: README states it


def peak(tmp_path: Path, cameras: int) -> dict:
    """The summary of a short run in a process of its own."""
    scene, out = tmp_path / f"city{cameras}", tmp_path / f"run{cameras}"
    sizes = ["--aerial", str(cameras), "--street", "0", "--size", "320", "240", "--samples", "1", "--points", "30000"]
    assert main(["synth", str(scene), "--preset", "tiny", "--points-from", "all", *sizes]) == 0
    budgets = ["--device-memory", "20%", "--host-memory", "20%", "--image-memory", "4MiB"]
    run = ["--max-steps", "60", "--block-capacity", "256", "--no-eval", "--quiet"]
    subprocess.run([sys.executable, "-m", "tidegs", "train", str(scene), "--out", str(out), *budgets, *run], check=True)
    return json.loads((out / "stats" / "summary.json").read_text())


def test_memory_stays_within_budgets_and_does_not_grow_with_cameras(tmp_path):
    few, many = peak(tmp_path, 30), peak(tmp_path, 60)
    for summary in (few, many):
        budget = sum(summary["budget_bytes"][tier] for tier in ("arena", "host", "images"))
        assert summary["peak_bytes"]["rss"] <= budget + CONSTANT, human(summary["peak_bytes"]["rss"])
        for tier in ("arena", "host", "images"):
            assert summary["peak_bytes"][tier] <= summary["budget_bytes"][tier]
    assert abs(many["peak_bytes"]["rss"] - few["peak_bytes"]["rss"]) < 24 << 20
