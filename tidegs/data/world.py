"""The transform from the input's world to the scene frame, taken from camera positions, robust to stray cameras."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tidegs.data.scene import WorldTransform

_STRAY = 10.0  # a camera this many times the median distance away does not shape the scene frame


def positions_of(viewmats: np.ndarray) -> np.ndarray:
    """Camera centres float64 [n, 3] of world-to-camera matrices [n, 4, 4]: -R^T t."""
    return -np.einsum("nji,nj->ni", viewmats[:, :3, :3], viewmats[:, :3, 3])


def rotation_of(qvec: tuple[float, float, float, float]) -> np.ndarray:
    """The rotation float64 [3, 3] of a quaternion wxyz of any length but zero."""
    w, x, y, z = np.asarray(qvec, np.float64) / np.linalg.norm(qvec)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def fit_transform(positions: np.ndarray, depth: Callable[[np.ndarray], float]) -> tuple[WorldTransform, np.ndarray]:
    """(transform, stray bool [n]): centre = mean of the camera positions [n, 3] that are not stray, scale such that the
    farthest of them lies at distance 1. Stray are at most 5 % (and at least one may be): those beyond ten times the
    median distance from the median position. Where all cameras share one position p, depth(p) lies at distance 1."""
    middle = np.median(positions, axis=0)
    distance = np.linalg.norm(positions - middle, axis=1)
    median = float(np.median(distance))
    stray = distance > _STRAY * median if median > 0 else np.zeros(len(positions), bool)
    if np.count_nonzero(stray) > max(1, len(positions) // 20):
        stray[:] = False
    center = positions[~stray].mean(axis=0)
    radius = float(np.linalg.norm(positions[~stray] - center, axis=1).max())
    if radius <= 1e-9 * max(1.0, float(np.abs(center).max())):
        radius = depth(center)
    return WorldTransform(center, 1.0 / radius), stray


def to_scene_frame(viewmat: np.ndarray, transform: WorldTransform) -> np.ndarray:
    """A world-to-camera matrix [4, 4] as one from the scene frame: same rotation, position moved and scaled."""
    rotation = viewmat[:3, :3]
    position = transform.to_scene(-rotation.T @ viewmat[:3, 3])
    out = np.eye(4)
    out[:3, :3], out[:3, 3] = rotation, -rotation @ position
    return out
