"""Stopping and going on: the bits of a run that never stopped, whether it was asked to stop, failed, or was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.training import assert_changed, assert_same, settings, train
from tidegs.cli.main import main
from tidegs.config import dump_config
from tidegs.device.cpu import CpuDevice
from tidegs.errors import ConfigError, SceneError

STEPS = 40
RUN = {"max_steps": STEPS, "device_memory": "30%", "host_memory": "30%", "order": "shuffle"}


@pytest.fixture(scope="module")
def uninterrupted(city, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    train(city, out, settings(**RUN))
    return out / "store"


def at_update(monkeypatch, number, action):
    """Runs `action` at the n-th update of the CPU device."""
    calls = iter(range(1 << 30))
    real = CpuDevice.update

    def update(self, *args):
        if next(calls) == number:
            action()
        return real(self, *args)

    monkeypatch.setattr(CpuDevice, "update", update)


def test_ctrl_c_commits_and_resume_goes_on_exactly(city, tmp_path, monkeypatch, uninterrupted):
    out = tmp_path / "run"
    at_update(monkeypatch, 30, lambda: os.kill(os.getpid(), signal.SIGINT))
    stopped = train(city, out, settings(**RUN))
    assert not stopped.finished
    assert 0 < stopped.step < STEPS
    assert json.loads((out / "ckpts" / "latest.json").read_text())["step"] == stopped.step
    assert_changed(out / "store", uninterrupted)
    monkeypatch.undo()
    finished = train(city, out, settings(**RUN), resume=True)
    assert finished.finished
    assert_same(out / "store", uninterrupted)


def test_a_failure_goes_back_to_the_last_snapshot(city, tmp_path, monkeypatch, uninterrupted):
    out = tmp_path / "run"

    def fail():
        raise RuntimeError("as if the device had failed")

    at_update(monkeypatch, 60, fail)
    with pytest.raises(RuntimeError, match="as if"):
        train(city, out, settings(**RUN, save_steps=[10]))
    monkeypatch.undo()
    assert json.loads((out / "ckpts" / "latest.json").read_text())["step"] == 10
    train(city, out, settings(**RUN), resume=True)
    assert_same(out / "store", uninterrupted)
    steps = [json.loads(line)["step"] for line in (out / "stats" / "train.jsonl").read_text().splitlines()]
    assert steps == list(range(10, STEPS + 1, 10))


def test_resume_under_other_budgets(city, tmp_path, monkeypatch, uninterrupted):
    out = tmp_path / "run"
    at_update(monkeypatch, 30, lambda: os.kill(os.getpid(), signal.SIGTERM))
    train(city, out, settings(**RUN))
    monkeypatch.undo()
    train(city, out, settings(**{**RUN, "device_memory": "100%", "host_memory": "10%"}), resume=True)
    assert_same(out / "store", uninterrupted)


def kill_and_resume(city: Path, out: Path, kills: int, seed: int) -> None:
    """Kills a training process `kills` times at random moments after its store exists, then lets it finish."""
    rng = np.random.default_rng(seed)
    config = settings(**RUN, save_steps=list(range(2, STEPS, 2)))
    (out.parent / "cfg.yml").write_text(dump_config(config))
    begin = ["train", str(city), "--out", str(out), "--config", str(out.parent / "cfg.yml"), "--no-eval", "--quiet"]
    again = ["train", "--resume", str(out), "--no-eval", "--quiet"]
    done = 0
    while True:
        argv = again if (out / "run.json").exists() else begin
        process = subprocess.Popen([sys.executable, "-m", "tidegs", *argv], stdout=subprocess.DEVNULL)
        try:
            status = process.wait(timeout=rng.uniform(1, 8) if done < kills else 300)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            done += 1
            continue
        assert status == 0
        return


@pytest.mark.slow
def test_ten_kills_lose_nothing_that_was_committed(city, tmp_path, uninterrupted):
    kill_and_resume(city, tmp_path / "run", kills=10, seed=7)
    assert_same(tmp_path / "run" / "store", uninterrupted)


def test_a_kill_loses_nothing_that_was_committed(city, tmp_path, uninterrupted):
    kill_and_resume(city, tmp_path / "run", kills=2, seed=3)
    assert_same(tmp_path / "run" / "store", uninterrupted)


def test_a_result_is_not_overwritten(city, tmp_path):
    train(city, tmp_path / "run", settings(max_steps=1))
    with pytest.raises(ConfigError, match="--resume"):
        train(city, tmp_path / "run", settings(max_steps=1))


def test_resuming_what_is_no_result_is_refused(city, tmp_path, capsys):
    with pytest.raises(SceneError, match=r"run\.json"):
        train(city, tmp_path, settings(), resume=True)
    assert main(["train", "--resume", str(tmp_path)]) == 2
    assert "cfg.yml" in capsys.readouterr().err
