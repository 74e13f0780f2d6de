"""PSNR and SSIM against torchmetrics' own numbers, and LPIPS where its weights are and where they are not."""

from __future__ import annotations

import math
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import numba
import numpy as np
import pytest
import torch

from tidegs.errors import ImageError
from tidegs.eval import metrics
from tidegs.eval.metrics import Lpips, psnr, ssim


def pair(height: int, width: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Two images without a random generator: waves on a checkerboard, and the same with hashed noise."""
    y, x = np.mgrid[:height, :width].astype(np.float64)
    board = ((x // 8 + y // 6) % 2) * 0.8 + 0.2
    image = np.stack([0.5 + 0.45 * np.sin(0.13 * (k + 1) * x + 0.05 * y * (k + 2)) * board for k in range(3)], axis=-1)
    hashed = np.sin(12.9898 * x + 78.233 * y) * 43758.5453
    hashed -= np.floor(hashed) + 0.5
    return image.astype(np.float32), np.clip(image + noise * hashed[..., None], 0, 1).astype(np.float32)


# (height, width, noise), then PSNR and SSIM of floats, and of the same rounded to bytes, as torchmetrics 1.9.0 gives
# them: PeakSignalNoiseRatio(data_range=1.0), StructuralSimilarityIndexMeasure(data_range=1.0).
GOLDEN = [
    ((6, 9, 0.1), (30.62015, 0.807261), (30.56782, 0.807101)),
    ((11, 11, 0.1), (30.41998, 0.938580), (30.35168, 0.937869)),
    ((37, 53, 0.02), (44.79321, 0.998558), (44.45420, 0.998443)),
    ((64, 48, 0.3), (21.47699, 0.794645), (21.47371, 0.794539)),
    ((90, 120, 1.0), (11.58287, 0.299920), (11.58252, 0.299901)),
]


@pytest.mark.parametrize(("shape", "of_floats", "of_bytes"), GOLDEN)
def test_values_are_those_of_torchmetrics(shape, of_floats, of_bytes):
    image, reference = pair(*shape)
    assert psnr(image, reference) == pytest.approx(of_floats[0], abs=1e-4)
    assert ssim(image, reference) == pytest.approx(of_floats[1], abs=1e-5)
    image, reference = (np.round(x * 255).astype(np.uint8) for x in (image, reference))
    assert psnr(image, reference) == pytest.approx(of_bytes[0], abs=1e-4)
    assert ssim(image, reference) == pytest.approx(of_bytes[1], abs=1e-5)


def test_a_float_render_can_be_scored_against_bytes():
    image, reference = pair(30, 40, 0.1)
    stored = np.round(reference * 255).astype(np.uint8)
    assert psnr(image, stored) == psnr(image, stored.astype(np.float32) / np.float32(255))
    assert ssim(image, stored) == ssim(image, stored.astype(np.float32) / np.float32(255))


def test_equal_images():
    image, _ = pair(20, 30, 0.1)
    assert psnr(image, image) == math.inf
    assert ssim(image, image) == pytest.approx(1, abs=1e-12)


def test_views_that_are_not_contiguous_score_alike():
    image, reference = pair(30, 40, 0.1)
    turned = [x.transpose(1, 0, 2) for x in (image, reference)]
    assert ssim(*turned) == pytest.approx(ssim(image, reference), abs=1e-12)


def test_threads_change_no_bit():
    image, reference = pair(90, 70, 0.2)
    both = ssim(image, reference)
    threads = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        assert ssim(image, reference) == both
    finally:
        numba.set_num_threads(threads)


def test_what_cannot_be_compared_is_said():
    with pytest.raises(ImageError, match=r"shapes \(4, 5, 3\) and \(5, 4, 3\)"):
        psnr(np.zeros((4, 5, 3)), np.zeros((5, 4, 3)))
    with pytest.raises(ImageError, match="at least 6 pixels a side, not 30x5"):
        ssim(np.zeros((5, 30, 3)), np.zeros((5, 30, 3)))


def pretend_packages(monkeypatch, *names):
    monkeypatch.setattr(metrics, "find_spec", lambda name: ModuleSpec(name, None) if name in names else None)


@pytest.mark.parametrize(("installed", "missing"), [((), "lpips"), (("lpips",), "torchvision")])
def test_lpips_says_which_package_is_missing(monkeypatch, installed, missing):
    pretend_packages(monkeypatch, *installed)
    lpips = Lpips()
    assert lpips.text == f"none: the package {missing} is not installed"
    assert lpips(*pair(8, 8, 0.1)) is None


def test_lpips_downloads_nothing(monkeypatch, tmp_path):
    """Packages are there, the backbone's weights are not: the model must not be built, which would fetch them."""
    pretend_packages(monkeypatch, "lpips", "torchvision")
    monkeypatch.setitem(sys.modules, "lpips", ModuleType("lpips"))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    lpips = Lpips("vgg")
    assert lpips.text == f"none: the weights vgg16-*.pth are not in {tmp_path / 'checkpoints'}"
    assert lpips(*pair(8, 8, 0.1)) is None


def test_lpips_gets_images_from_minus_one_to_one(monkeypatch, tmp_path):
    class Model(torch.nn.Module):
        def __init__(self, net: str, verbose: bool) -> None:
            super().__init__()
            assert net == "alex"
            assert not verbose

        def forward(self, a, b):
            assert a.shape == b.shape == (1, 3, 8, 10)
            return torch.stack([a.min(), a.max(), b.mean()]).sum()

    pretend_packages(monkeypatch, "lpips", "torchvision")
    package = ModuleType("lpips")
    package.LPIPS = Model
    monkeypatch.setitem(sys.modules, "lpips", package)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "alexnet-owt-0000.pth").touch()
    lpips = Lpips()
    assert lpips.text.startswith("alex, version 0.1")
    image = np.linspace(0, 1, 240, dtype=np.float32).reshape(8, 10, 3)
    assert lpips(image, np.full((8, 10, 3), 255, np.uint8)) == pytest.approx(-1 + 1 + 1)
