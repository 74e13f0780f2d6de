"""Densification out of core gives the bits of densification in core (I2), through refines, resets and relocations."""

from __future__ import annotations

import os
import signal

import pytest

from tests.training import assert_same, settings, train
from tidegs.device.cpu import CpuDevice
from tidegs.store.block_store import BlockStore

EVENTS = {"refine_start_iter": 5, "refine_every": 12, "refine_stop_iter": 70, "max_steps": 80}
DEFAULT = {**EVENTS, "strategy": "default", "reset_every": 40, "grow_grad2d": 1e-4, "max_gaussians": 16_000}
MCMC = {**EVENTS, "strategy": "mcmc", "cap_max": 15_000}


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
    return in_core.summary, out.summary


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("strategy", [DEFAULT, MCMC], ids=["default", "mcmc"])
def test_generated_city(city, tmp_path, strategy, batch):
    steps = 80 if batch == 1 else 40
    summary, _ = run_both(city, tmp_path, {**strategy, "batch_size": batch, "max_steps": steps})
    with BlockStore.open(tmp_path / "in" / "store", readonly=True) as store:
        table = store.table
        assert table["count"].max() <= 64
    assert 12_500 < summary["num_gaussians"] <= 16_000


@pytest.mark.parametrize("strategy", [DEFAULT, MCMC], ids=["default", "mcmc"])
def test_cameras_in_parts(city, tmp_path, strategy):
    """Cameras, and the blocks to be settled, come in parts; ids of new blocks do not depend on how."""
    run_both(city, tmp_path, {**strategy, "max_pass_blocks": 11, "max_steps": 40})


@pytest.mark.parametrize("strategy", [DEFAULT, MCMC], ids=["default", "mcmc"])
def test_a_run_that_stopped_and_went_on_gives_the_same_bits(city, tmp_path, monkeypatch, strategy):
    """Stopped where some blocks are owed events, and resumed under other budgets."""
    run = {**strategy, "max_steps": 40, "order": "shuffle", "device_memory": "40%"}
    train(city, tmp_path / "whole", settings(**run))
    calls, real = iter(range(1 << 30)), CpuDevice.update

    def update(self, *args):
        if next(calls) == 25:
            os.kill(os.getpid(), signal.SIGINT)
        return real(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(CpuDevice, "update", update)
        assert not train(city, tmp_path / "run", settings(**run)).finished
    assert train(city, tmp_path / "run", settings(**{**run, "device_memory": "20%"}), resume=True).finished
    assert_same(tmp_path / "run" / "store", tmp_path / "whole" / "store")
