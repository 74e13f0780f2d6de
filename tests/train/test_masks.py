"""Masked pixels teach nothing and count in no figure: what is under a mask cannot be told from the result."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.training import assert_changed, assert_same, settings, train
from tidegs.cli.main import main
from tidegs.device.masking import masked_target
from tidegs.errors import DeviceError
from tidegs.eval.metrics import psnr, ssim
from tidegs.train.passes import mean_squared_error

SIZE = (96, 64)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory) -> tuple[Path, Path, np.ndarray]:
    """Two scenes that differ in pixels under the masks alone, and the mask of all images."""
    root = tmp_path_factory.mktemp("scenes")
    sizes = ["--aerial", "12", "--street", "0", "--size", *map(str, SIZE), "--points", "3000", "--points-from", "all"]
    assert (
        main(["synth", str(root / "one"), "--preset", "tiny", "--extent", "200", "--image-format", "png", *sizes]) == 0
    )
    mask = np.full(SIZE[::-1], 255, np.uint8)
    mask[20:45, 30:80] = 0
    (root / "one" / "masks").mkdir()
    for path in (root / "one" / "images").iterdir():
        Image.fromarray(mask).save(root / "one" / "masks" / f"{path.name}.png")
    shutil.copytree(root / "one", root / "two")
    for path in (root / "two" / "images").iterdir():
        pixels = np.array(Image.open(path))
        pixels[mask == 0] = (255, 0, 128)
        Image.fromarray(pixels).save(path)
    return root / "one", root / "two", mask


def test_what_is_under_masks_changes_no_bit_and_no_figure(scenes, tmp_path):
    one, two, _ = scenes
    figures = []
    for scene in (one, two):
        out = tmp_path / scene.name
        argv = ["train", str(scene), "--out", str(out), "--max-steps", "12", "--block-capacity", "64", "--quiet"]
        assert main([*argv, "--eval-steps", "12"]) == 0
        figures.append(json.loads((out / "stats" / "val_step0012.json").read_text()))
    assert_same(tmp_path / "one" / "store", tmp_path / "two" / "store")
    assert figures[0]["per_view"] == figures[1]["per_view"]
    assert "pixels masked out of 2 images do not count" in figures[0]["protocol"]["psnr"]


def test_without_masks_it_does(scenes, tmp_path):
    for scene in scenes[:2]:
        bare = tmp_path / "scenes" / scene.name
        shutil.copytree(scene, bare, ignore=shutil.ignore_patterns("masks"))
        train(bare, tmp_path / scene.name, settings(max_steps=4))
    assert_changed(tmp_path / "one" / "store", tmp_path / "two" / "store")


def test_masks_of_another_folder_and_inverted_ones_are_the_same_masks(scenes, tmp_path):
    other = tmp_path / "scene"
    shutil.copytree(scenes[0], other)
    (other / "masks").rename(other / "matte")
    for path in (other / "matte").iterdir():
        Image.fromarray(~np.array(Image.open(path))).save(path)
    train(scenes[0], tmp_path / "one", settings(max_steps=4))
    argv = ["train", str(other), "--out", str(tmp_path / "two"), "--max-steps", "4", "--strategy", "none"]
    sizes = ["--block-capacity", "64", "--sh-degree-interval", "10", "--no-eval", "--quiet"]
    assert main([*argv, *sizes, "--masks", "matte", "--invert-masks"]) == 0
    assert_same(tmp_path / "one" / "store", tmp_path / "two" / "store")


def test_masks_of_a_shared_scene_are_used(shared, tmp_path):
    argv = ["train", str(shared / "odd" / "masks"), "--out", str(tmp_path / "o"), "--max-steps", "2", "--quiet"]
    assert main([*argv, "--eval-steps", "2"]) == 0
    protocol = json.loads((tmp_path / "o" / "stats" / "val_step0002.json").read_text())["protocol"]
    assert "pixels masked out of 2 images do not count" in protocol["ssim"]


def test_a_target_under_a_mask_is_the_render():
    r = np.random.default_rng(0)
    image = r.uniform(-0.2, 1.2, (3, 20, 30)).astype(np.float32)
    target = r.integers(0, 256, (20, 30, 3), dtype=np.uint8)
    mask = (r.random((20, 30)) < 0.5).astype(np.uint8) * 255
    out = masked_target(image, target, mask)
    assert np.array_equal(out[mask != 0], target[mask != 0])
    shown = np.clip(image.transpose(1, 2, 0), 0, 1)[mask == 0]
    assert np.abs(out[mask == 0] / 255 - shown).max() <= 0.5001 / 255
    with pytest.raises(DeviceError, match=r"the mask is uint8 \[30, 20\]: give uint8 \[20, 30\]"):
        masked_target(image, target, mask.T)


def test_figures_over_the_pixels_that_count():
    r = np.random.default_rng(1)
    reference = r.random((24, 30, 3)).astype(np.float32)
    image = np.clip(reference + r.normal(0, 0.1, reference.shape), 0, 1).astype(np.float32)
    mask = np.zeros((24, 30), np.uint8)
    mask[:, :12] = 255
    assert psnr(image, reference, mask) == pytest.approx(psnr(image[:, :12], reference[:, :12]))
    full = np.full_like(mask, 1)
    assert (psnr(image, reference, full), ssim(image, reference, full)) == (
        psnr(image, reference),
        ssim(image, reference),
    )
    # Windows of the pixels left of column 6 end before column 12, where the mask does: there the values are the same.
    mask[:, 6:] = 0
    other = reference.copy()
    other[:, :12] = image[:, :12]
    assert ssim(image, reference, mask) == pytest.approx(ssim(other, reference, mask))
    assert ssim(image, reference, mask) < ssim(other, reference)
    target = (reference * 255).astype(np.uint8)
    seen = mask != 0
    squares = (image - target / np.float32(255))[seen] ** 2
    assert mean_squared_error(image.transpose(2, 0, 1), target, mask) == pytest.approx(squares.mean(), rel=1e-5)
    assert mean_squared_error(image.transpose(2, 0, 1), target, mask * 0) == 0
