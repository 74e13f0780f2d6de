"""Noise on means, row by row: what the devices' kernels are held to."""

from __future__ import annotations

import numba
import numpy as np

from tidegs.device.base import AdamSettings, MeanNoise, NoisedBlocks
from tidegs.train.strategies.chance import ROW_DRAWS, normal
from tidegs.train.strategies.relocate import opacity_mass
from tidegs.train.strategies.rows import MEANS, OPACITY, SCALES, Planes, rotate, sigmoid


def noised(blocks: list[Planes], counts: list[int], noise: MeanNoise, adam: AdamSettings) -> NoisedBlocks:
    """As Device.add_noise, on the planes of each block."""
    n, floor = len(blocks), np.float32(noise.min_opacity)
    out = NoisedBlocks(*(np.empty(s, np.float32) for s in ((n, 3), (n, 3), n)), np.empty(n), np.empty(n, np.int32))
    for i, (planes, count) in enumerate(zip(blocks, counts, strict=True)):
        add_noise(planes.base, count, noise.scales[i], noise.keys[i])
        out.mass[i], out.dead[i] = opacity_mass(planes.base, count, floor)
        ways = -planes.m_base[:, :count] / (np.sqrt(planes.v_base[:, :count]) + np.float32(adam.eps))
        means, scales = (planes.base[k : k + 3, :count] for k in (MEANS, SCALES))
        there, swollen = means + adam.reach[0] * ways[:3], scales + adam.reach[1] * ways[SCALES : SCALES + 3]
        out.lo[i], out.hi[i] = np.minimum(means, there).min(1), np.maximum(means, there).max(1)
        out.extent[i] = np.exp(max(scales.max(), swollen.max())) * 1.000002
    return out


@numba.njit(nogil=True, cache=True)
def add_noise(base: np.ndarray, count: int, scaler: np.float32, key: np.uint64) -> None:
    """Moves means by noise (gsplat/strategy/ops.py inject_noise_to_position), in place: normal numbers times `scaler`,
    more for faint rows, through the covariance."""
    one = np.float32(1)
    for i in range(count):
        faint = one / (one + np.exp(np.float32(-100) * ((one - sigmoid(base[OPACITY, i])) - np.float32(0.995))))
        k = faint * scaler
        at = i * ROW_DRAWS
        x, y, z = k * normal(key, at), k * normal(key, at + 1), k * normal(key, at + 2)
        x, y, z = _covariance(base, i, x, y, z)
        base[MEANS, i] += x
        base[MEANS + 1, i] += y
        base[MEANS + 2, i] += z


@numba.njit(nogil=True, cache=True, inline="always")
def _covariance(base: np.ndarray, i: int, x: np.float32, y: np.float32, z: np.float32) -> tuple:
    """R S^2 R^T applied to a vector."""
    ex, ey, ez = (one_axis(base, i, x, y, z, 0), one_axis(base, i, x, y, z, 1), one_axis(base, i, x, y, z, 2))
    s0, s1, s2 = np.exp(base[SCALES, i]), np.exp(base[SCALES + 1, i]), np.exp(base[SCALES + 2, i])
    return rotate(base, i, s0 * s0 * ex, s1 * s1 * ey, s2 * s2 * ez)


@numba.njit(nogil=True, cache=True, inline="always")
def one_axis(base: np.ndarray, i: int, x: np.float32, y: np.float32, z: np.float32, axis: int) -> np.float32:
    """The part of a vector along one axis of the row."""
    zero, one = np.float32(0), np.float32(1)
    ax, ay, az = rotate(base, i, one if axis == 0 else zero, one if axis == 1 else zero, one if axis == 2 else zero)
    return ax * x + ay * y + az * z
