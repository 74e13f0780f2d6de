"""Seed points: how a block that no step has touched is stored, and the rule that makes Gaussians of them.

The rule (expanded in csrc/store/record.cpp): means = xyz, quats = (1, 0, 0, 0), scales = the stored log scale on all
axes, opacities = the store's seed opacity, sh0 = (rgb / 255 - 0.5) / Y00, everything else zero.
"""

from __future__ import annotations

import math

import numpy as np

from tidegs.gaussians.layout import RecordLayout

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


def seed_planes(layout: RecordLayout, seeds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The stored form, an aligned uint8 array [seed_nbytes], as float32 [4, capacity] (xyz, log scale) and uint8
    [3, capacity] (rgb); rows that are not in use are zero."""
    capacity = layout.capacity
    return (
        seeds[: 16 * capacity].view(np.float32).reshape(4, capacity),
        seeds[16 * capacity : 19 * capacity].reshape(3, capacity),
    )
