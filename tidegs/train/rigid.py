"""A rigid motion of six numbers, and the gradient of a loss by them; float64.

The rotation is exp([w]) of a rotation vector w (Rodrigues), and its derivative the left Jacobian of SO(3): moving w by
dw turns the result by J dw (Sola et al. 2018, "A micro Lie theory", eq. 145).
"""

from __future__ import annotations

import math

import numpy as np


def motion(w: np.ndarray, d: np.ndarray) -> np.ndarray:
    """[4, 4]: x -> exp([w]) x + d; the exact identity where both are zero."""
    first, second, _ = _series(float(w @ w))
    cross = np.array([[0.0, -w[2], w[1]], [w[2], 0.0, -w[0]], [-w[1], w[0], 0.0]])
    out = np.eye(4)
    out[:3, :3] += first * cross + second * (cross @ cross)
    out[:3, 3] = d
    return out


def motion_gradient(w: np.ndarray, d: np.ndarray, grad: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The gradients by w and d [3] of `motion`, from that by [A | b] [3, 4], at the identity, where the motion becomes
    [A | b] times itself."""
    _, second, third = _series(float(w @ w))
    by_matrix, by_d = grad[:, :3], grad[:, 3]
    turn = np.array([
        by_matrix[2, 1] - by_matrix[1, 2],
        by_matrix[0, 2] - by_matrix[2, 0],
        by_matrix[1, 0] - by_matrix[0, 1],
    ])  # fmt: skip
    turn = turn - np.cross(d, by_d)  # d itself is not turned
    return turn - second * np.cross(w, turn) + third * np.cross(w, np.cross(w, turn)), by_d


def _series(square: float) -> tuple[float, float, float]:
    """sin(t) / t, (1 - cos(t)) / t^2 and (t - sin(t)) / t^3 for t^2."""
    if square < 1e-6:
        return 1 - square / 6, 0.5 - square / 24, 1 / 6 - square / 120
    t = math.sqrt(square)
    return math.sin(t) / t, (1 - math.cos(t)) / square, (t - math.sin(t)) / (square * t)
