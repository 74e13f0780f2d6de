"""Fifty steps of training, out of core, by the CUDA device on CPU tensors and by the CPU device: the same scene."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import tidegs.train.session
from tests.cuda.harness import cuda_on_cpu
from tests.training import contents, settings, train
from tidegs.config import TrainConfig
from tidegs.device.cuda.device import CudaDevice
from tidegs.train.run import RunOutcome

STEPS, WARM_UP = 50, 10


def train_on_cuda(monkeypatch, scene: Path, out: Path, config: TrainConfig) -> tuple[RunOutcome, CudaDevice]:
    devices: list[CudaDevice] = []

    def open_device(config: TrainConfig) -> CudaDevice:
        devices.append(cuda_on_cpu())
        return devices[-1]

    monkeypatch.setattr(tidegs.train.session, "open_device", open_device)
    return train(scene, out, config, resume=True), devices[0]


def rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values.astype(np.float64)))))


def assert_same_scene(one: Path, other: Path, start: Path) -> None:
    """Parameters and moments agree to 1e-4: their root mean square, by kind; and training did take them somewhere."""
    a, b, c = (np.concatenate(list(contents(p / "store")[0].view(np.float32)), 1) for p in (one, other, start))
    for rows in (slice(0, 3), slice(3, 7), slice(7, 10), slice(10, 11), slice(11, 14), slice(14, 59)):
        assert rms(a[rows] - b[rows]) < 1e-4
        assert rms(b[rows] - c[rows]) > 10 * rms(a[rows] - b[rows])
    assert rms(a[59:] - b[59:]) < 1e-4 * rms(b[59:])


@pytest.mark.parametrize(("batch", "steps"), [(1, STEPS), (3, 4)])
def test_a_run_is_the_cpu_devices(monkeypatch, village, tmp_path, batch, steps):
    """Both go on from a snapshot that the CPU device made. (Seeds are round: the first gradients of their quats are
    rounding alone, of which Adam makes full steps, other ones on each device.)"""
    sizes = {"device_memory": "70%", "host_memory": "30%", "order": "shuffle", "batch_size": batch}
    start, cpu, cuda = (tmp_path / name for name in ("start", "cpu", "cuda"))
    train(village, start, settings(max_steps=WARM_UP, **sizes))
    for result in (cpu, cuda):
        shutil.copytree(start, result)
    config = settings(max_steps=WARM_UP + steps, **sizes)
    train(village, cpu, config, resume=True)
    outcome, device = train_on_cuda(monkeypatch, village, cuda, config)
    assert not outcome.summary["in_core"]
    assert outcome.summary["moved_bytes"]["upload"] > outcome.summary["budget_bytes"]["scene"]
    assert outcome.summary["memory_splits"] == device.splits == 0
    assert device.streams.checked > 10 * steps
    assert_same_scene(cuda, cpu, start)
