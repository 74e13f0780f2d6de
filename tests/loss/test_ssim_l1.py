"""The fused L1 + D-SSIM kernel against its torch twin in float64, and its independence of threads."""

from __future__ import annotations

import ctypes
import platform

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reference.loss import ssim_l1 as twin
from tidegs.device import native

ISAS = [isa for isa in native.supported_isas() if native.library_path(isa)]


def ssim_l1(image, target, ssim_lambda, scale=1.0, isa=ISAS[0] if ISAS else "portable", threads=2):
    """Runs the kernel: image float32 [3, H, W], target uint8 [H, W, 3] -> (gradient, [l1, ssim, total])."""
    library = native.load(isa)
    function = library.tidegs_ssim_l1
    function.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int] * 2 + [ctypes.c_float] * 2 + [ctypes.c_void_p] * 2
    function.restype = None
    library.tidegs_set_threads(threads)
    try:
        # A frame of NaN around the gradient would show a write outside of it.
        guarded = np.full(image.size + 128, np.nan, np.float32)
        grad = guarded[64:-64].reshape(image.shape)
        out = np.zeros(3)
        function(
            image.ctypes.data,
            target.ctypes.data,
            image.shape[2],
            image.shape[1],
            ssim_lambda,
            scale,
            grad.ctypes.data,
            out.ctypes.data,
        )
    finally:
        library.tidegs_set_threads(native.thread_count())
    assert np.isnan(guarded[:64]).all()
    assert np.isnan(guarded[-64:]).all()
    return grad, out


def pair(height: int, width: int, seed: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """A smooth image with edges, and a target that differs by noise; no value of one equals that of the other."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    image = np.stack([0.5 + 0.4 * np.sin(0.11 * (k + 1) * x + 0.07 * y) * ((x // 9 + y // 7) % 2) for k in range(3)])
    target = np.clip(np.moveaxis(image, 0, 2) * 255 + rng.normal(0, noise, (height, width, 3)), 0, 255)
    image = image + 1e-4 + 0.001 * rng.random(image.shape)
    return image.astype(np.float32), np.ascontiguousarray(target.astype(np.uint8))


def check(image, target, ssim_lambda, tolerance=1e-5, **options):
    grad, out = ssim_l1(image, target, ssim_lambda, scale=2.0, **options)
    x = torch.tensor(image, dtype=torch.float64, requires_grad=True)
    values = twin(x, torch.tensor(target), ssim_lambda)
    (2.0 * values[2]).backward()
    np.testing.assert_allclose(out, [v.item() for v in values], rtol=1e-6, atol=1e-6)
    expected = x.grad.numpy()
    np.testing.assert_allclose(grad, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("height", "width"), [(11, 11), (12, 300), (37, 53), (145, 257), (311, 530)])
def test_value_and_gradient_agree_with_torch(isa, height, width):
    check(*pair(height, width, seed=1, noise=20), 0.2, isa=isa)


@settings(max_examples=40, deadline=None)
@given(
    height=st.integers(1, 60),
    width=st.integers(1, 80),
    seed=st.integers(0, 100),
    noise=st.sampled_from([1.0, 10.0, 100.0]),
    ssim_lambda=st.sampled_from([0.0, 0.2, 1.0]),
)
def test_any_size(height, width, seed, noise, ssim_lambda):
    check(*pair(height, width, seed, noise), ssim_lambda)


@pytest.mark.parametrize("level", [0.0, 0.02, 0.98])
def test_flat_images_lose_little_precision(level):
    """In E[x^2] - E[x]^2 everything cancels here; the plain formulas in float32 are off by 6e-4."""
    rng = np.random.default_rng(0)
    byte = round(level * 255)
    image = (byte / 255 + 1e-3 * (0.5 + rng.random((3, 40, 50)))).astype(np.float32)
    check(image, np.full((40, 50, 3), byte, np.uint8), 0.5, tolerance=4e-5)


def test_equal_images_are_a_minimum():
    target = np.random.default_rng(3).integers(0, 256, (30, 41, 3), dtype=np.uint8)
    image = np.ascontiguousarray(np.moveaxis(target.astype(np.float32) / np.float32(255), 2, 0))
    grad, out = ssim_l1(image, target, 0.2)
    assert out.tolist() == [0.0, 1.0, 0.0]
    assert np.abs(grad).max() == 0


@pytest.mark.parametrize(("height", "width"), [(10, 40), (40, 10), (1, 1)])
def test_images_without_a_window_are_scored_by_l1_alone(height, width):
    image, target = pair(height, width, seed=2, noise=5)
    grad, out = ssim_l1(image, target, 0.2)
    difference = image - np.moveaxis(target, 2, 0) / 255
    np.testing.assert_allclose(out, [np.abs(difference).mean(), 1.0, 0.8 * np.abs(difference).mean()], rtol=1e-5)
    np.testing.assert_allclose(grad, 0.8 * np.sign(difference) / difference.size, rtol=1e-6)


@pytest.mark.parametrize("isa", ISAS)
def test_threads_change_no_bit(isa):
    image, target = pair(300, 530, seed=4, noise=20)
    runs = [ssim_l1(image, target, 0.2, isa=isa, threads=n) for n in (1, 2, 3, 7)]
    for grad, out in runs[1:]:
        assert grad.tobytes() == runs[0][0].tobytes()
        assert out.tobytes() == runs[0][1].tobytes()


def test_a_kernel_of_this_machine_was_tested():
    assert ISAS, f"no kernels are built for {platform.machine()}"
