"""`--host-memory 0`: no host cache. With kvikio blocks go straight between SSD and GPU; without it they pass through a
few host slots, and the log says so."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tidegs.train.session
from tests.cuda.device_files import DeviceFiles, OneFault
from tests.cuda.harness import cuda_on_cpu
from tests.training import assert_changed, assert_same, contents, settings, train
from tidegs.device.cuda import gds
from tidegs.device.cuda.gds import Gds
from tidegs.errors import StoreError
from tidegs.store.block_store import BlockStore
from tidegs.store.files import Files
from tidegs.train.run import RunOutcome, RunRequest, run_training

WARM_UP, STEPS = 6, 12
SIZES = {"device": "cuda", "device_memory": "55%", "order": "shuffle"}


@pytest.fixture(autouse=True)
def _device(monkeypatch) -> Iterator[None]:
    """The CUDA device on CPU tensors, whatever opens one, and what it has room for. On one thread, since torch adds in
    any order on several, and the bits are compared here."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(tidegs.train.session, "open_device", lambda config: cuda_on_cpu())
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def kvikio(monkeypatch) -> DeviceFiles:
    """A machine with kvikio, or so it seems."""
    files = DeviceFiles()
    monkeypatch.setattr(gds, "look", lambda: Gds(True, True, "kvikio 26.10 with GPUDirect Storage"))
    monkeypatch.setattr(gds, "prepare", lambda: None)
    monkeypatch.setattr(Files, "open_for_device", lambda self, path: files.open_for_device(path))
    return files


@pytest.fixture
def begun(village, tmp_path_factory, monkeypatch) -> Path:
    """A run of some steps, so that not all blocks are seeds."""
    out = tmp_path_factory.mktemp("begun") / "run"
    train(village, out, settings(max_steps=WARM_UP, host_memory="30%", **SIZES))
    return out


def go_on(scene: Path, start: Path, out: Path, **changes) -> RunOutcome:
    shutil.copytree(start, out)
    return train(scene, out, settings(**{"max_steps": WARM_UP + STEPS, **SIZES, **changes}), resume=True)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_run_past_host_memory_is_the_ordinary_run(village, begun, tmp_path, kvikio, batch):
    """To the last bit; with more cameras a step, blocks leave the arena with their sums of gradients, too."""
    ordinary = go_on(village, begun, tmp_path / "ordinary", host_memory="30%", batch_size=batch)
    assert kvikio.moved == {"pread": 0, "pwrite": 0}
    straight = go_on(village, begun, tmp_path / "straight", host_memory="0", batch_size=batch)
    assert_same(tmp_path / "ordinary" / "store", tmp_path / "straight" / "store")
    assert_changed(begun / "store", tmp_path / "straight" / "store")
    assert straight.finished
    moved = straight.summary["moved_bytes"]
    assert kvikio.moved["pread"] > 0
    assert kvikio.moved["pwrite"] > 0
    assert moved["read"] >= kvikio.moved["pread"]
    assert moved["write"] == kvikio.moved["pwrite"]  # all that was written
    assert moved["write"] == moved["download"]  # nothing came down to the host
    assert not straight.summary["in_core"]
    assert straight.summary["route"].startswith("blocks go straight between SSD and GPU: kvikio 26.10 with GPUDirect")
    assert ordinary.summary["route"] == "through the host cache"
    assert straight.summary["peak_bytes"]["host"] <= straight.summary["budget_bytes"]["host"]


def test_a_run_from_seeds(village, tmp_path, kvikio):
    """Seeds are expanded on the host, and from then on their blocks go straight."""
    config = settings(max_steps=STEPS, **SIZES)
    train(village, tmp_path / "ordinary", config)
    train(village, tmp_path / "straight", settings(max_steps=STEPS, host_memory="0", **SIZES))
    assert_same(tmp_path / "ordinary" / "store", tmp_path / "straight" / "store")
    assert kvikio.moved["pwrite"] > 0


@pytest.mark.parametrize(("call", "k"), [("pread", 5), ("pwrite", 5)])
def test_a_failure_ends_the_run_and_the_last_snapshot_is_whole(village, begun, tmp_path, kvikio, call, k):
    """It never reports success, and the run can go on afterwards as if nothing had been."""
    kvikio.fault = OneFault(call, k, "words")
    with pytest.raises(StoreError, match="kvikio: Linux system/library function call error"):
        go_on(village, begun, tmp_path / "failed", host_memory="0")
    assert not (tmp_path / "failed" / "stats" / "summary.json").exists() or _step(tmp_path / "failed") == WARM_UP
    assert_same(begun / "store", tmp_path / "failed" / "store")
    kvikio.fault = lambda call, number, size: size
    config = settings(max_steps=WARM_UP + STEPS, host_memory="0", **SIZES)
    train(village, tmp_path / "failed", config, resume=True)
    go_on(village, begun, tmp_path / "whole", host_memory="30%")
    assert_same(tmp_path / "whole" / "store", tmp_path / "failed" / "store")


def _step(result: Path) -> int:
    return json.loads((result / "stats" / "summary.json").read_text())["step"]


def test_damage_on_the_way_to_the_gpu_ends_the_run(village, begun, tmp_path, kvikio):
    """A byte of a record that is not a seed, changed on the SSD."""
    shutil.copytree(begun, tmp_path / "run")
    with BlockStore.open(tmp_path / "run" / "store", readonly=True) as store:
        blocks = [b for b in range(len(store.table)) if store.can_fetch([b])[0] and store.table["kind"][b] != 255]
        places = [(store.records.path(int(store.table["kind"][b])), int(store.table["offset"][b])) for b in blocks]
    for path, offset in places:
        with path.open("r+b") as f:
            f.seek(offset + 4096 + 100)
            f.write(b"\xff\xfe\xfd\xfc")
    with pytest.raises(StoreError, match=r"block \d+ at byte \d+ is damaged: its bytes fail their checksum"):
        train(village, tmp_path / "run", settings(max_steps=99, host_memory="0", **SIZES), resume=True)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_without_kvikio_blocks_pass_through_host_slots(village, begun, tmp_path, monkeypatch, capsys, device):
    """The same run; the log says which way it went, and why."""
    if device == "cpu":
        monkeypatch.undo()
    monkeypatch.setattr(gds, "look", lambda: Gds(False, False, "kvikio is not installed"))
    shutil.copytree(begun, tmp_path / "zero")
    config = settings(max_steps=WARM_UP + 4, **{**SIZES, "device": device}, host_memory="0")
    outcome = run_training(RunRequest(village, tmp_path / "zero", None, config, True, evaluate=False, quiet=False))
    said = capsys.readouterr()
    text = " ".join((said.out + said.err).split())
    reason = {"cuda": "as kvikio is not installed", "cpu": "the CPU device's arena is host memory"}[device]
    assert reason in text
    assert "no host cache but for passing through 16 blocks" in text
    assert reason in outcome.summary["route"]
    go_on(village, begun, tmp_path / "usual", max_steps=WARM_UP + 4, host_memory="30%", device=device)
    assert_same(tmp_path / "usual" / "store", tmp_path / "zero" / "store")
    assert contents(tmp_path / "zero" / "store")[0].any()
