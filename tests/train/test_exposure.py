"""Exposure compensation: right gradients, the same bits in core and out of core, and it finds what was changed."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from tests.training import assert_changed, assert_same, settings, train
from tidegs.cli.main import main
from tidegs.device.exposure import exposed, pull_back
from tidegs.errors import StoreError
from tidegs.eval.metrics import colour_matched
from tidegs.store.block_store import BlockStore
from tidegs.train.exposure import Exposures
from tidegs.train.state import restore

SMALL = {"data_factor": 4, "order": "shuffle", "exposure": True}


def exposures_of(store_path, cameras: int) -> np.ndarray:
    out = Exposures(cameras, 0.01, 100)
    with BlockStore.open(store_path, readonly=True) as store:
        restore(store, out)
    return out.values


def test_gradients_are_autograds():
    rng = np.random.default_rng(3)
    image, weights = rng.random((2, 3, 20, 30), np.float32)
    transform = (np.eye(3, 4) + rng.normal(0, 0.2, (3, 4))).astype(np.float32)
    x, t = torch.tensor(image, requires_grad=True), torch.tensor(transform, requires_grad=True)
    out = torch.einsum("ck,khw->chw", t[:, :3], x) + t[:, 3][:, None, None]
    (out * torch.tensor(weights)).sum().backward()
    np.testing.assert_allclose(exposed(image, transform), out.detach(), rtol=1e-5, atol=1e-6)
    grad = weights.copy()
    np.testing.assert_allclose(pull_back(image, grad, transform), t.grad, rtol=1e-4)
    np.testing.assert_allclose(grad, x.grad, rtol=1e-4, atol=1e-6)


def test_out_of_core_and_resumed_runs_are_the_run_in_core(city, tmp_path):
    train(city, tmp_path / "in", settings(max_steps=40, device_memory="100%", **SMALL))
    out = {"device_memory": "15%", "host_memory": "30%", **SMALL}
    train(city, tmp_path / "out", settings(max_steps=40, save_steps=[25], **out))
    assert_same(tmp_path / "in" / "store", tmp_path / "out" / "store")
    first, other = (exposures_of(tmp_path / name / "store", 16) for name in ("in", "out"))
    assert (first == other).all()
    assert (first != np.eye(3, 4)).any()
    train(city, tmp_path / "without", settings(max_steps=40, **{**SMALL, "exposure": False}))
    assert_changed(tmp_path / "in" / "store", tmp_path / "without" / "store")


def test_a_resume_goes_on_with_its_exposures(city, tmp_path):
    config = {"device_memory": "100%", **SMALL}
    train(city, tmp_path / "whole", settings(max_steps=30, **config))
    train(city, tmp_path / "parts", settings(max_steps=30, save_steps=[20], **config))
    shutil.copytree(tmp_path / "parts", tmp_path / "again")
    assert_same(tmp_path / "whole" / "store", tmp_path / "parts" / "store")
    longer = settings(max_steps=45, **config)
    for name in ("whole", "again"):
        train(city, tmp_path / name, longer, resume=True)
    assert (exposures_of(tmp_path / "whole" / "store", 16) == exposures_of(tmp_path / "again" / "store", 16)).all()


def test_dark_images_get_a_transform_of_their_own(city, tmp_path):
    shutil.copytree(city, tmp_path / "scene")
    names = sorted((tmp_path / "scene" / "images").rglob("*.*"))
    dark = [i for i in range(len(names)) if i % 8 and i % 2]
    for i in dark:
        pixels = np.asarray(Image.open(names[i]).convert("RGB"))
        Image.fromarray((pixels * 0.5).astype(np.uint8)).save(names[i], quality=95)
    argv = ["train", str(tmp_path / "scene"), "--max-steps", "150", "--data-factor", "4", "--quiet"]
    scores = []
    for flags in ([], ["--exposure"]):
        out = tmp_path / f"out{len(flags)}"
        assert main([*argv, "--out", str(out), *flags]) == 0
        scores.append(json.loads((out / "stats" / "val_step0150.json").read_text()))
    assert "cc_psnr" not in scores[0]
    assert scores[1]["cc_psnr"] > scores[1]["psnr"]
    gains = np.trace(exposures_of(tmp_path / "out1" / "store", len(names))[:, :, :3], axis1=1, axis2=2)
    bright = [i for i in range(len(names)) if i % 8 and not i % 2]
    assert gains[dark].max() < gains[bright].min()


def test_matched_colours_undo_an_affine_transform():
    rng = np.random.default_rng(5)
    truth = rng.uniform(0.3, 0.6, (20, 30, 3)).astype(np.float32)
    np.testing.assert_allclose(colour_matched(truth * np.float32(0.7) + np.float32(0.1), truth), truth, atol=1e-4)


def test_exposures_of_another_scene_are_refused(city, tmp_path):
    train(city, tmp_path / "r", settings(max_steps=3, **SMALL))
    with pytest.raises(StoreError, match="exposures are not those of 5 cameras"):
        exposures_of(tmp_path / "r" / "store", 5)
