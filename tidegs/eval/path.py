"""Smooth camera paths through given cameras, for flying through a result."""

from __future__ import annotations

import numpy as np

from tidegs.data.scene import Camera
from tidegs.device.base import View


def rotation_to_quat(rotation: np.ndarray) -> np.ndarray:
    """Rotation matrices [n, 3, 3] to unit quaternions [n, 4] wxyz, by the largest component (Shepperd 1978)."""
    r = np.asarray(rotation, np.float64)
    d = np.stack([r[:, 0, 0], r[:, 1, 1], r[:, 2, 2]], 1)
    trace = d.sum(1)
    squares = np.concatenate([trace[:, None], 2 * d - trace[:, None]], 1)  # 4 q_i^2 - 1
    best = squares.argmax(1)
    k = np.empty((len(r), 4, 4))  # k[i, j] = 4 q_i q_j
    k[:, range(4), range(4)] = 1 + squares
    pairs = {
        (0, 1): (2, 1, -1),
        (0, 2): (0, 2, -1),
        (0, 3): (1, 0, -1),
        (1, 2): (1, 0, 1),
        (1, 3): (0, 2, 1),
        (2, 3): (2, 1, 1),
    }
    for (i, j), (a, b, sign) in pairs.items():
        k[:, i, j] = k[:, j, i] = r[:, a, b] + sign * r[:, b, a]
    q = k[np.arange(len(r)), best]
    return q / np.linalg.norm(q, axis=1, keepdims=True)


def quat_to_rotation(quats: np.ndarray) -> np.ndarray:
    """Unit quaternions [n, 4] wxyz to rotation matrices [n, 3, 3]."""
    w, x, y, z = np.moveaxis(quats, -1, 0)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.moveaxis(np.array(rows), -1, 0)


def visiting_order(positions: np.ndarray) -> np.ndarray:
    """A short tour over positions [n, 3]: nearest neighbour from the first, so that the path does not jump about."""
    left = list(range(1, len(positions)))
    order = [0]
    while left:
        at = positions[order[-1]]
        order.append(left.pop(int(np.argmin([np.sum((positions[i] - at) ** 2) for i in left]))))
    return np.array(order)


def camera_path(cameras: list[Camera], frames: int, keys: int = 12) -> list[View]:
    """`frames` views along a closed-ended spline through up to `keys` of the cameras, each of the first one's size.

    Positions follow a Catmull-Rom spline, rotations are interpolated linearly between quaternions and normalised.
    """
    order = visiting_order(np.array([camera_position(c.viewmat) for c in cameras]))
    order = order[np.linspace(0, len(order) - 1, min(keys, len(order))).round().astype(int)]
    positions = np.array([camera_position(cameras[i].viewmat) for i in order])
    quats = rotation_to_quat(np.array([cameras[i].viewmat[:3, :3] for i in order]))
    for i in range(1, len(quats)):
        if quats[i] @ quats[i - 1] < 0:
            quats[i] = -quats[i]
    first = cameras[order[0]]
    views = []
    for t in np.linspace(0, len(order) - 1, frames):
        q = _linear(quats, t)
        rotation = quat_to_rotation((q / np.linalg.norm(q))[None])[0]
        viewmat = np.eye(4)
        viewmat[:3, :3] = rotation
        viewmat[:3, 3] = -rotation @ _catmull_rom(positions, t)
        views.append(View(viewmat.astype(np.float32), first.K.astype(np.float32), first.width, first.height))
    return views


def camera_position(viewmat: np.ndarray) -> np.ndarray:
    """The camera's centre, in the frame that the viewmat maps from."""
    return -viewmat[:3, :3].T @ viewmat[:3, 3]


def _linear(points: np.ndarray, t: float) -> np.ndarray:
    i = min(int(t), max(0, len(points) - 2))
    j = min(i + 1, len(points) - 1)
    return points[i] + (t - i) * (points[j] - points[i])


def _catmull_rom(points: np.ndarray, t: float) -> np.ndarray:
    n = len(points)
    i = min(int(t), max(0, n - 2))
    a, b, c, d = (points[min(max(i + k, 0), n - 1)] for k in (-1, 0, 1, 2))
    u = t - i
    return 0.5 * (2 * b + (c - a) * u + (2 * a - 5 * b + 4 * c - d) * u**2 + (3 * b - a - 3 * c + d) * u**3)
