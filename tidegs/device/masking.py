"""Masked images: pixels that do not count take the render's place in the target, and their gradient is zero.

Invariant: a pixel that does not count changes no parameter. SSIM windows of pixels that count may reach over it; there
render and target are alike (to a byte's rounding), so nothing pulls them apart or together.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tidegs.errors import DeviceError


def masked_target(image: np.ndarray, target: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """`target` (uint8 [height, width, 3]) where `mask` (uint8 [height, width]) is not 0, `image` (float32 [3, height,
    width], clamped and rounded) elsewhere. Raises DeviceError where the mask is of another size or type."""
    check_mask(mask, target.shape[:2])
    out = np.empty_like(target)
    _fill(image, target, mask, out)
    return out


def check_mask(mask: np.ndarray, shape: tuple[int, ...]) -> None:
    """Raises DeviceError where a mask is not uint8 of an image's height and width."""
    if mask.shape != shape or mask.dtype != np.uint8:
        raise DeviceError(f"the mask is {mask.dtype} {list(mask.shape)}: give uint8 {list(shape)}")


@njit(cache=True, nogil=True)
def _fill(image: np.ndarray, target: np.ndarray, mask: np.ndarray, out: np.ndarray) -> None:
    for y in range(mask.shape[0]):
        for x in range(mask.shape[1]):
            for c in range(3):
                if mask[y, x] != 0:
                    out[y, x, c] = target[y, x, c]
                else:
                    out[y, x, c] = np.uint8(min(max(image[c, y, x], 0.0), 1.0) * 255.0 + 0.5)


@njit(cache=True, nogil=True)
def clear_masked(grad: np.ndarray, mask: np.ndarray) -> None:
    """grad (float32 [3, height, width]) = 0 where the mask is 0."""
    for c in range(3):
        for y in range(mask.shape[0]):
            for x in range(mask.shape[1]):
                if mask[y, x] == 0:
                    grad[c, y, x] = 0.0
