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

INIT_OPACITY_LOGIT = math.log(0.1 / 0.9)  # opacity 0.1, as gsplat and INRIA's 3DGS begin
SH_Y00 = 0.28209479177387814  # 1 / (2 sqrt(pi))
SH0_OF_COLOR = ((np.arange(256) / 255.0 - 0.5) / SH_Y00).astype(np.float32)


def log_scales(squared: np.ndarray, init_scale: float) -> np.ndarray:
    """float32 [n]: log of init_scale times the root mean square distance to the three nearest points, as gsplat begins.
    `squared`: float64 [n, 3] squared distances, inf where there is no such point (those do not count; with none at all
    the scale is init_scale). The mean square is at least 1e-7, as in INRIA's 3DGS, for points that coincide."""
    known = np.isfinite(squared)
    mean = np.where(known, squared, 0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    mean[~known.any(axis=1)] = 1.0
    return (0.5 * np.log(np.maximum(mean, 1e-7)) + math.log(init_scale)).astype(np.float32)


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
