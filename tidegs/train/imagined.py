"""A city survey that exists only as a table of blocks and a list of cameras, for planning ahead of any data.

Square blocks with houses on them cover the ground evenly; every 67 m, 200 m up, stand a nadir view of 430 m and four
oblique ones that see the ground 60 to 640 m ahead, as in the aerial part of MatrixCity.
"""

from __future__ import annotations

import math

import numpy as np

from tidegs.device.base import View
from tidegs.store.base import TABLE_DTYPE

DENSITY = 272_000 * 4096 / (5900.0 * 7900.0)  # Gaussians of a square metre
STEP, ALTITUDE = 67.0, 200.0  # metres
_PIXELS = 1000


def ground_for(gaussians: int) -> tuple[float, float]:
    """Sides in metres, as 5.9 to 7.9, of the ground that so many Gaussians cover."""
    width = math.sqrt(gaussians / DENSITY * 5.9 / 7.9)
    return width, width * 7.9 / 5.9


def city_table(width: float, height: float, capacity: int = 4096) -> np.ndarray:
    """TABLE_DTYPE [blocks], in Morton order, each full."""
    side = math.sqrt(capacity / DENSITY)
    across, down = max(1, round(width / side)), max(1, round(height / side))
    y, x = np.divmod(np.arange(across * down, dtype=np.uint64), np.uint64(across))
    code = np.zeros(len(x), np.uint64)
    for bit in range(16):
        b = np.uint64(bit)
        code |= ((x >> b & np.uint64(1)) << (b + b)) | ((y >> b & np.uint64(1)) << (b + b + np.uint64(1)))
    order = np.argsort(code)
    low = np.stack([x[order] * side, y[order] * side, np.zeros(len(x))], 1)
    table = np.zeros(len(x), TABLE_DTYPE)
    tall = np.random.default_rng(0).uniform(0, 40, len(x))
    table["lo"] = low
    table["hi"] = low + np.stack([np.full(len(x), side), np.full(len(x), side), tall], 1)
    table["extent"], table["count"] = 0.1, capacity
    return table


def city_views(width: float, height: float) -> list[View]:
    """Row by row, to and fro; five views at each place."""
    out = []
    for row, y in enumerate(np.arange(STEP / 2, max(height, STEP), STEP)):
        xs = np.arange(STEP / 2, max(width, STEP), STEP)
        for x in xs[:: -1 if row % 2 else 1]:
            centre = np.array([x, y, ALTITUDE])
            out.append(_view(centre, np.array([0.0, 0, -1]), np.array([0.0, 1, 0]), 430.0))
            for ahead in ((1.0, 0), (0, 1.0), (-1.0, 0), (0, -1.0)):
                near, far = math.atan2(60.0, ALTITUDE), math.atan2(640.0, ALTITUDE)
                pitch, half = (near + far) / 2, (far - near) / 2
                d = np.array([*ahead, 0.0])
                forward = math.sin(pitch) * d - np.array([0, 0, math.cos(pitch)])
                out.append(_view(centre, forward, d, 2 * ALTITUDE * math.tan(half)))
    return out


def _view(centre: np.ndarray, forward: np.ndarray, up: np.ndarray, footprint: float) -> View:
    """A square image; `footprint`: metres across at a distance of ALTITUDE along the axis."""
    right = np.cross(forward, up)
    right /= np.linalg.norm(right)
    viewmat = np.eye(4)
    viewmat[:3, :3] = np.stack([right, np.cross(forward, right), forward])
    viewmat[:3, 3] = -viewmat[:3, :3] @ centre
    focal, middle = _PIXELS * ALTITUDE / footprint, _PIXELS / 2
    K = np.array([[focal, 0, middle], [0, focal, middle], [0, 0, 1]])
    return View(viewmat.astype(np.float32), K.astype(np.float32), _PIXELS, _PIXELS)
