"""Image quality: PSNR, SSIM and, where its weights are at hand, LPIPS. Nothing is ever downloaded.

Invariant: the numbers are those of torchmetrics with data_range=1, which gsplat's trainer reports. Images are
[height, width, 3], float in [0, 1] or uint8 (then divided by 255): an 8-bit render is scored by passing its bytes.
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit, prange

from tidegs.errors import ImageError

PSNR_TEXT = "10 log10(1 / MSE) over all pixels and channels, values in [0, 1]"
SSIM_TEXT = "11x11 Gaussian window, sigma 1.5, edges reflected, mean of all pixels and channels (torchmetrics 1.9)"

HALF, SIGMA = 5, 1.5  # the window has 2 x 5 + 1 taps
C1, C2 = 0.01**2, 0.03**2


def psnr(image: np.ndarray, reference: np.ndarray, mask: np.ndarray | None = None) -> float:
    """Peak signal-to-noise ratio in dB, over the pixels where `mask` (uint8 [height, width]) is not 0; infinite for
    equal images. Raises ImageError where sizes differ."""
    _check(image, reference)
    difference = _unit(image).astype(np.float64) - _unit(reference)
    if mask is not None:
        difference = difference[mask != 0]
    error = float(np.mean(np.square(difference)))
    return 10 * math.log10(1 / error) if error > 0 else math.inf


def colour_matched(image: np.ndarray, reference: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    """`image` after the affine colour transform that brings it nearest to `reference` (least squares over the pixels
    where `mask` is not 0), clamped to [0, 1]; float32 [height, width, 3]. For renders of cameras whose exposure nobody
    knows."""
    _check(image, reference)
    colours = _unit(image).reshape(-1, 3)
    here = slice(None) if mask is None else mask.reshape(-1) != 0
    known = np.concatenate([colours, np.ones_like(colours[:, :1])], axis=1)
    # By the normal equations, since a table of all pixels would be as large as the image once more.
    a = known[here].astype(np.float64)
    transform = np.linalg.lstsq(a.T @ a, a.T @ _unit(reference).reshape(-1, 3)[here], rcond=None)[0]
    return np.clip(known @ transform.astype(np.float32), 0, 1).reshape(image.shape)


def ssim(image: np.ndarray, reference: np.ndarray, mask: np.ndarray | None = None) -> float:
    """Structural similarity (Wang et al. 2004, eq. 13) in float64: a window around every pixel, the image reflected at
    its edges; the mean over the pixels where `mask` (uint8 [height, width]) is not 0, whose windows may reach over the
    others. Raises ImageError where sizes differ or a side has too few pixels to reflect (under 6).

    So does torchmetrics 1.9; its older versions leave out the windows that reach over an edge, as the loss does.
    """
    _check(image, reference)
    height, width = image.shape[:2]
    if min(height, width) <= HALF:
        raise ImageError(f"SSIM needs images of at least {HALF + 1} pixels a side, not {width}x{height}")
    k = np.arange(-HALF, HALF + 1)
    taps = np.exp(-(k**2) / (2 * SIGMA**2))
    planes = [np.ascontiguousarray(_unit(x).transpose(2, 0, 1)) for x in (image, reference)]
    rows = np.empty((3, height))
    weights = np.ones((height, width)) if mask is None else (mask != 0).astype(np.float64)
    _ssim_rows(planes[0], planes[1], taps / taps.sum(), weights, rows)
    return float(rows.sum() / (3 * weights.sum()))


class Lpips:
    """LPIPS (Zhang et al. 2018, version 0.1) by the `lpips` package, where it and its backbone's weights are on disk.

    `text` names the network for the protocol, or says in one sentence why there is none; then calls return None.
    """

    _CHECKPOINTS = {"alex": "alexnet-owt-*.pth", "vgg": "vgg16-*.pth"}  # noqa: RUF012

    def __init__(self, network: str = "alex") -> None:
        self._model: Any = None
        reason = self._missing(network)
        if reason:
            self.text = f"none: {reason}"
            return
        import lpips

        self._model = lpips.LPIPS(net=network, verbose=False).eval()
        self.text = f"{network}, version 0.1, images in [-1, 1]"

    def __call__(self, image: np.ndarray, reference: np.ndarray) -> float | None:
        """The distance of two images, or None where LPIPS is not at hand."""
        if self._model is None:
            return None
        import torch

        _check(image, reference)
        pair = [torch.from_numpy(_unit(x)).permute(2, 0, 1)[None] * 2 - 1 for x in (image, reference)]
        with torch.no_grad():
            return float(self._model(*pair))

    def _missing(self, network: str) -> str | None:
        """Why LPIPS cannot run, None where it can."""
        for package in ("lpips", "torchvision"):
            if find_spec(package) is None:
                return f"the package {package} is not installed"
        import torch

        folder = Path(torch.hub.get_dir()) / "checkpoints"
        if not any(folder.glob(self._CHECKPOINTS[network])):
            return f"the weights {self._CHECKPOINTS[network]} are not in {folder}"
        return None


def _check(image: np.ndarray, reference: np.ndarray) -> None:
    if image.shape != reference.shape or image.ndim != 3 or image.shape[2] != 3:
        raise ImageError(f"images to compare are of shapes {image.shape} and {reference.shape}, not both [H, W, 3]")


def _unit(image: np.ndarray) -> np.ndarray:
    """float32 in [0, 1], contiguous."""
    if image.dtype == np.uint8:
        return image.astype(np.float32) / np.float32(255)
    return np.ascontiguousarray(image, np.float32)


@njit(cache=True)
def _reflect(i: int, n: int) -> int:
    """-1 -> 1, n -> n - 2: the edge itself is not repeated."""
    return n - 1 - abs(n - 1 - abs(i))


@njit(cache=True, parallel=True)
def _ssim_rows(x: np.ndarray, y: np.ndarray, taps: np.ndarray, weights: np.ndarray, rows: np.ndarray) -> None:
    """Weighted sum of SSIM over the pixels of each row of x and y [3, height, width]: rows [3, height]. The window goes
    down first, then across; innermost loops run along a row, so that they are vectorised."""
    height, width = x.shape[1], x.shape[2]
    for item in prange(3 * height):
        channel, row = item // height, item % height
        down = np.zeros((5, width + 2 * HALF))
        for t in range(len(taps)):
            r = _reflect(row + t - HALF, height)
            for i in range(width):
                a, b = np.float64(x[channel, r, i]), np.float64(y[channel, r, i])
                down[0, HALF + i] += taps[t] * a
                down[1, HALF + i] += taps[t] * b
                down[2, HALF + i] += taps[t] * a * a
                down[3, HALF + i] += taps[t] * b * b
                down[4, HALF + i] += taps[t] * a * b
        across = np.zeros((5, width))
        for q in range(5):
            for i in range(HALF):
                down[q, i] = down[q, 2 * HALF - i]
                down[q, HALF + width + i] = down[q, HALF + width - 2 - i]
            for t in range(len(taps)):
                for i in range(width):
                    across[q, i] += taps[t] * down[q, i + t]
        total = 0.0
        for i in range(width):
            mean_x, mean_y, xx, yy, xy = across[:, i]
            variances = max(xx - mean_x * mean_x, 0.0) + max(yy - mean_y * mean_y, 0.0)
            mean_term = (2 * mean_x * mean_y + C1) / (mean_x * mean_x + mean_y * mean_y + C1)
            total += weights[row, i] * mean_term * (2 * (xy - mean_x * mean_y) + C2) / (variances + C2)
        rows[channel, row] = total
