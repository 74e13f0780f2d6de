"""Seed points: how a block that no step has touched is stored, and the rule that makes Gaussians of them.

The rule (expanded in csrc/store/record.cpp): means = xyz, quats = (1, 0, 0, 0), scales = the stored log scale on all
axes, opacities = the store's seed opacity, sh0 = (rgb / 255 - 0.5) / Y00, everything else zero.
"""

from __future__ import annotations

import math

import numpy as np

from tidegs.gaussians.layout import RecordLayout
from tidegs.store.format import seed_nbytes
from tidegs.store.memory import aligned_empty

INIT_OPACITY_LOGIT = math.log(0.1 / (1.0 - 0.1))  # opacity 0.1, as gsplat and INRIA's 3DGS begin
MIN_DISTANCE = math.sqrt(1e-7)  # of points that coincide, as in INRIA's 3DGS
SH_Y00 = 0.28209479177387814  # 1 / (2 sqrt(pi))
SH0_OF_COLOR = ((np.arange(256) / 255.0 - 0.5) / SH_Y00).astype(np.float32)


def log_scales(squared: np.ndarray, init_scale: float) -> np.ndarray:
    """float32 [n]: the first log scales, bit for bit those of tidegs.gaussians.init.from_points.

    `squared`: float64 [n, 3], ascending squared distances to the three nearest points, inf where there is no such
    point: those do not count, and a lone point has distance 1."""
    known = np.isfinite(squared)
    near = np.where(known, squared, 0.0)
    count = known.sum(axis=1)
    distance = np.sqrt((near[:, 0] + near[:, 1] + near[:, 2]) / np.maximum(count, 1))
    distance[count == 0] = 1.0
    distance = distance.astype(np.float32).astype(np.float64)
    return np.log(np.maximum(distance, MIN_DISTANCE) * init_scale).astype(np.float32)


def pack_seeds(
    layout: RecordLayout, xyz: np.ndarray, log_scale: np.ndarray, rgb: np.ndarray, out: np.ndarray | None = None
) -> np.ndarray:
    """The stored form of n <= capacity points: xyz float32 [n, 3], log_scale float32 [n], rgb uint8 [n, 3]; an aligned
    uint8 array [seed_nbytes] (`out` where given): xyz [3][C], log scale [C], rgb [3][C], rows from n on zero."""
    n, capacity = len(xyz), layout.capacity
    out = aligned_empty(seed_nbytes(layout)) if out is None else out
    out[:] = 0
    floats = out[: 16 * capacity].view(np.float32).reshape(4, capacity)
    floats[:3, :n] = xyz.T
    floats[3, :n] = log_scale
    out[16 * capacity : 19 * capacity].reshape(3, capacity)[:, :n] = rgb.T
    return out
