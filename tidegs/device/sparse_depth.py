"""Sparse depth: the mean absolute error of the disparities of known points (gsplat's examples, `depth_loss`).

The depth of a pixel is its accumulated depth over its alpha; that of a point is interpolated between the four pixels
around it. A point where nothing is rendered has disparity 0 and teaches nothing. Invariant: sums run over the points in
order, so no bit depends on the number of threads.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tidegs.errors import DeviceError

LEAST_ALPHA = 1e-10


def need_depth(depth: np.ndarray | None) -> np.ndarray:
    """A frame's depth. Raises DeviceError where it has none."""
    if depth is None:
        raise DeviceError("depths were to be compared in a frame without: ask new_frame for depth")
    return depth


@njit(cache=True, nogil=True)
def disparity_l1(
    depth: np.ndarray,
    alpha: np.ndarray,
    xy: np.ndarray,
    disparity: np.ndarray,
    factor: float,
    grad_depth: np.ndarray,
    grad_alpha: np.ndarray,
) -> float:
    """The mean over points, 0 where there are none; fills the gradients of `factor` times it. Planes are float32
    [height, width], `xy` [n, 2] in pixels (centres at +0.5), `disparity` [n]."""
    height, width = depth.shape
    grad_depth[:] = 0
    grad_alpha[:] = 0
    total = 0.0
    for i in range(len(xy)):
        x, y = xy[i, 0] - 0.5, xy[i, 1] - 0.5
        x0, y0 = min(max(int(x), 0), width - 1), min(max(int(y), 0), height - 1)
        x1, y1 = min(x0 + 1, width - 1), min(y0 + 1, height - 1)
        fx, fy = x - x0, y - y0
        corners = ((x0, y0, (1 - fx) * (1 - fy)), (x1, y0, fx * (1 - fy)), (x0, y1, (1 - fx) * fy), (x1, y1, fx * fy))
        found = 0.0
        for u, v, weight in corners:
            found += weight * depth[v, u] / max(alpha[v, u], LEAST_ALPHA)
        if found <= 0.0:
            total += disparity[i]
            continue
        error = 1.0 / found - disparity[i]
        total += abs(error)
        share = -factor / len(xy) * np.sign(error) / (found * found)
        for u, v, weight in corners:
            if alpha[v, u] > LEAST_ALPHA:
                by_depth = share * weight / alpha[v, u]
                grad_depth[v, u] += by_depth
                grad_alpha[v, u] -= by_depth * depth[v, u] / alpha[v, u]
    return total / max(len(xy), 1)
