"""Densification out of core gives the bits of densification in core (I2), through refines, resets and relocations."""

from __future__ import annotations

import os
import signal

import pytest

from tests.training import assert_changed, assert_same, settings, train
from tidegs.cli.main import main
from tidegs.device.cpu import CpuDevice
from tidegs.store.block_store import BlockStore

EVENTS = {"refine_start_iter": 3, "refine_every": 8, "refine_stop_iter": 44, "max_steps": 48}
DEFAULT = {**EVENTS, "strategy": "default", "reset_every": 24, "grow_grad2d": 1e-4, "max_gaussians": 16_000}
MCMC = {**EVENTS, "strategy": "mcmc", "cap_max": 15_000}
DENSE = {"adam": "dense"}


def run_both(scene, tmp_path, changes):
    """Trains in core and out of core; returns both summaries after comparing the stores."""
    whole = {**changes, "max_pass_blocks": 0, "device_memory": "256MiB", "host_memory": "64MiB", "order": "shuffle"}
    in_core = train(scene, tmp_path / "in", settings(**whole))
    small = {"device_memory": "15%", "host_memory": "30%", "order": "shuffle", **changes}
    out = train(scene, tmp_path / "out", settings(**small))
    assert in_core.finished  # a SIGTERM ends a run early, and its store differs
    assert out.finished
    assert_same(tmp_path / "in" / "store", tmp_path / "out" / "store")
    assert in_core.summary["in_core"]
    assert not out.summary["in_core"]
    assert out.summary["dropped_blocks"] == 0
    assert in_core.summary["amplification"] == out.summary["amplification"] > 1
    return in_core.summary, out.summary


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("strategy", [DEFAULT, MCMC], ids=["default", "mcmc"])
def test_generated_city(city, tmp_path, strategy, batch):
    steps = 48 if batch == 1 else 27
    summary, _ = run_both(city, tmp_path, {**strategy, "batch_size": batch, "max_steps": steps})
    with BlockStore.open(tmp_path / "in" / "store", readonly=True) as store:
        table = store.table
        assert table["count"].max() <= 64
    assert 12_500 < summary["num_gaussians"] <= 16_000


@pytest.mark.parametrize(
    "changes",
    [{"strategy": "none", "batch_size": 3, "max_steps": 20}, DEFAULT, {**MCMC, "max_pass_blocks": 11, "max_steps": 27}],
    ids=["none", "default", "mcmc"],
)
def test_dense_adam(city, tmp_path, changes):
    """Blocks that no camera needs catch up with the steps that they missed."""
    run_both(city, tmp_path, {**changes, **DENSE})
    with BlockStore.open(tmp_path / "in" / "store", readonly=True) as store:
        taken = store.table["adam"][store.table["count"] > 0]
        assert set(taken.tolist()) <= {0, changes["max_steps"]}  # settled at the end
        assert (taken > 0).mean() > 0.5
    train(city, tmp_path / "selective", settings(**{**changes, "order": "shuffle"}))
    assert_changed(tmp_path / "in" / "store", tmp_path / "selective" / "store")


@pytest.mark.parametrize("strategy", [{**DEFAULT, "absgrad": True}, MCMC], ids=["absgrad", "mcmc"])
def test_cameras_in_parts(city, tmp_path, strategy):
    """Cameras, and the blocks to be settled, come in parts; ids of new blocks do not depend on how."""
    run_both(city, tmp_path, {**strategy, "max_pass_blocks": 11, "max_steps": 27})


@pytest.mark.slow
@pytest.mark.parametrize("adam", ["selective", "dense"])
@pytest.mark.parametrize("strategy", ["default", "mcmc", "none"])
def test_many_steps(tmp_path, strategy, adam):
    """Fifteen refines and, by `default`, two resets of opacities, with gsplat's thresholds; few rows, so that 1,500
    steps take minutes."""
    scene = tmp_path / "hamlet"
    sizes = ["--aerial", "10", "--street", "0", "--size", "64", "48", "--points", "4000", "--points-from", "all"]
    assert main(["synth", str(scene), "--preset", "tiny", "--extent", "200", *sizes]) == 0
    events = {"refine_start_iter": 50, "refine_every": 80, "refine_stop_iter": 1300, "max_steps": 1500}
    limits = {"reset_every": 480, "max_gaussians": 6_000, "cap_max": 6_000}
    summary, _ = run_both(scene, tmp_path, {**events, **limits, "strategy": strategy, "adam": adam})
    assert (summary["num_gaussians"] != 4_000) == (strategy != "none")


@pytest.mark.parametrize("strategy", [DEFAULT, {**MCMC, **DENSE}], ids=["default", "mcmc"])
def test_a_run_that_stopped_and_went_on_gives_the_same_bits(city, tmp_path, monkeypatch, strategy):
    """Stopped where some blocks are owed events, and resumed under other budgets."""
    run = {**strategy, "max_steps": 30, "order": "shuffle", "device_memory": "40%"}
    train(city, tmp_path / "whole", settings(**run))
    calls, real = iter(range(1 << 30)), CpuDevice.update

    def update(self, *args):
        if next(calls) == 20:
            os.kill(os.getpid(), signal.SIGINT)
        return real(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(CpuDevice, "update", update)
        assert not train(city, tmp_path / "run", settings(**run)).finished
    assert train(city, tmp_path / "run", settings(**{**run, "device_memory": "20%"}), resume=True).finished
    assert_same(tmp_path / "run" / "store", tmp_path / "whole" / "store")
