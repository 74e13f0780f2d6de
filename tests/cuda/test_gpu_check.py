"""scripts/gpu_check: what of it can run without a GPU."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.cuda.device_files import DeviceFiles
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


def test_a_machine_without_a_driver_is_told_so_in_one_line(tmp_path):
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("bash", "date", "mkdir", "dirname"):
        (tools / tool).symlink_to(shutil.which(tool))
    environment = {"PATH": str(tools), "OUT": str(tmp_path / "out")}
    done = subprocess.run(["bash", str(SCRIPTS / "gpu_check.sh")], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == ""
    said = json.loads(done.stdout)
    assert said["ok"] is False
    assert said["error"] == "no nvidia-smi: this machine has no NVIDIA driver"


def test_ssd_rates_come_from_kvikio(gpu_check, tmp_path, monkeypatch):
    files, empty = DeviceFiles(), torch.zeros(2 << 20, dtype=torch.uint8)
    monkeypatch.setattr("tidegs.store.files.Files.open_for_device", lambda self, path: files.open_for_device(path))
    monkeypatch.setattr("tidegs.device.cuda.gds.prepare", lambda: None)
    monkeypatch.setattr(torch, "zeros", lambda *args, **kwargs: empty)
    rates = gpu_check._ssd_rates(tmp_path)
    assert set(rates) == {"ssd_to_device", "device_to_ssd"}
    assert files.moved == {"pread": 2 << 20, "pwrite": 2 << 20}


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
