"""Exposure compensation: an affine colour transform of the rendered image before it is compared.

c' = A c + b for each pixel, with [A | b] float32 [3, 4] of the camera (Kerbl et al. 2024, "A Hierarchical 3D Gaussian
Representation", section 6.1). Invariant: sums run over rows in order, so no bit depends on the number of threads.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def exposed(image: np.ndarray, transform: np.ndarray) -> np.ndarray:
    """The transformed image; float32 [3, height, width]."""
    out = np.empty_like(image)
    for c in range(3):
        a0, a1, a2, b = transform[c]
        for y in range(image.shape[1]):
            for x in range(image.shape[2]):
                out[c, y, x] = a0 * image[0, y, x] + a1 * image[1, y, x] + a2 * image[2, y, x] + b
    return out


@njit(cache=True, nogil=True)
def pull_back(image: np.ndarray, grad: np.ndarray, transform: np.ndarray) -> np.ndarray:
    """The gradient of the transform, float64 [3, 4]; `grad` (float32 [3, height, width], of the transformed image)
    becomes that of the image."""
    out = np.zeros((3, 4))
    for y in range(image.shape[1]):
        row = np.zeros((3, 4), np.float32)
        for x in range(image.shape[2]):
            g0, g1, g2 = grad[0, y, x], grad[1, y, x], grad[2, y, x]
            i0, i1, i2 = image[0, y, x], image[1, y, x], image[2, y, x]
            for c, g in ((0, g0), (1, g1), (2, g2)):
                row[c, 0] += g * i0
                row[c, 1] += g * i1
                row[c, 2] += g * i2
                row[c, 3] += g
            for c in range(3):
                grad[c, y, x] = transform[0, c] * g0 + transform[1, c] * g1 + transform[2, c] * g2
        out += row
    return out
