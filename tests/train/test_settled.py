"""Evaluation, rendering and export of an interrupted run show what its strategy owes, and leave the run as it is."""

from __future__ import annotations

import os
import signal

import pytest

from tests.training import assert_same, settings, train
from tidegs.cli.main import main
from tidegs.device.cpu import CpuDevice
from tidegs.gaussians.open import open_gaussians
from tidegs.store.block_store import BlockStore
from tidegs.train.growth import owes
from tidegs.train.result import ResultFolder
from tidegs.train.state import steps_done

RUN = {
    "strategy": "default", "refine_start_iter": 3, "refine_every": 8, "refine_stop_iter": 44, "max_steps": 30,
    "grow_grad2d": 1e-4, "order": "shuffle", "device_memory": "40%",
}  # fmt: skip


@pytest.fixture
def interrupted(city, tmp_path, monkeypatch):
    """A run that stopped just after an event."""
    real, told = CpuDevice.update, []

    def update(self, part, blocks, adam):
        if adam.step == 18 and not told:
            told.append(os.kill(os.getpid(), signal.SIGINT))
        return real(self, part, blocks, adam)

    with monkeypatch.context() as patch:
        patch.setattr(CpuDevice, "update", update)
        assert not train(city, tmp_path / "run", settings(**RUN)).finished
    return tmp_path / "run"


def owed_of(result) -> tuple[int, int]:
    """Blocks that are owed something, and Gaussians, in the snapshot."""
    with BlockStore.open(result / "store", readonly=True) as store:
        return owes(ResultFolder(result).config(), store.table, steps_done(store)), int(store.table["count"].sum())


def test_export_and_eval_settle_what_is_owed(city, interrupted, tmp_path, capsys):
    blocks, rows = owed_of(interrupted)
    assert blocks > 10
    assert main(["export", str(interrupted), "--out", str(tmp_path / "out.ply"), "--quiet"]) == 0
    exported = open_gaussians(tmp_path / "out.ply").count
    assert exported > rows
    assert main(["eval", str(interrupted), "--no-images", "--quiet"]) == 0
    assert f"{exported:,}" in capsys.readouterr().out
    assert owed_of(interrupted) == (blocks, rows)
    assert train(city, interrupted, settings(**RUN), resume=True).finished
    train(city, tmp_path / "whole", settings(**RUN))
    assert_same(interrupted / "store", tmp_path / "whole" / "store")


@pytest.mark.parametrize("lacks", ["permission", "scene"])
def test_where_nothing_can_be_settled_the_user_is_told(interrupted, tmp_path, capsys, monkeypatch, lacks):
    blocks, rows = owed_of(interrupted)
    if lacks == "permission":
        monkeypatch.setattr("tidegs.train.settled.os.access", lambda *_: False)
    else:
        run = interrupted / "run.json"
        run.write_text(run.read_text().replace("/city", "/moved"))
    assert main(["export", str(interrupted), "--out", str(tmp_path / "out.ply")]) == 0
    assert f"warning: {blocks:,} blocks are shown without what the strategy owes them" in capsys.readouterr().err
    assert open_gaussians(tmp_path / "out.ply").count == rows
