"""scripts/gpu_check: what of it can run without a GPU."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.cuda.harness import cuda_on_cpu

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def gpu_check():
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPTS / "gpu_check.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_shell_script_parses():
    subprocess.run(["bash", "-n", str(SCRIPTS / "gpu_check.sh")], check=True)


def test_links_are_measured_through_the_copy_engine(gpu_check):
    device = cuda_on_cpu()
    rates = gpu_check.measure_links(device, slot_count=3, capacity=64, rounds=2)
    assert set(rates) == {"up", "down", "both"}
    assert all(rate > 0 for rate in rates.values())
    assert device.copies.up.blocks == device.copies.down.blocks == 18
    assert device.copies.up.copies == 6  # adjacent slots go in one copy


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: the whole script can run")
def test_one_json_comes_whatever_failed(gpu_check, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--out", str(tmp_path), "--steps", "1"])
    monkeypatch.setattr(gpu_check, "tests", lambda seconds: {"pytest": "none"})
    assert gpu_check.main() == 1
    report = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert report["ok"] is False
    assert "CPU build" in report["kernels"]["error"]
    assert set(report) >= {"facts", "kernels", "links", "tests", "training", "seconds", "check_seconds"}
    assert json.loads((tmp_path / "gpu-check.json").read_text()) == report
