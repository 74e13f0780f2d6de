"""Where cameras stand in a generated city. All paths give viewmats: float64 [n, 4, 4], city to OpenCV camera frame."""

from __future__ import annotations

import math

import numpy as np

from tidegs.data.synth_city import City
from tidegs.data.synth_hash import seed_key, uniforms

AERIAL_FOCAL, STREET_FOCAL = 0.8, 0.65  # in image widths
_STREET_SPACING = 7.0  # greatest distance between street cameras, metres


def look_at(eye: np.ndarray, target: np.ndarray) -> np.ndarray:
    """viewmat [4, 4] of a camera at `eye` that looks at `target`, z up in the image (north up when looking down)."""
    forward = (target - eye) / np.linalg.norm(target - eye)
    up = np.array([0.0, 1.0, 0.0]) if abs(forward[2]) > 0.999 else np.array([0.0, 0.0, 1.0])
    right = np.cross(forward, up)
    right /= np.linalg.norm(right)
    rot = np.stack([right, np.cross(forward, right), forward])
    viewmat = np.eye(4)
    viewmat[:3, :3], viewmat[:3, 3] = rot, -rot @ eye
    return viewmat


def intrinsics(width: int, height: int, focal: float) -> np.ndarray:
    """K [3, 3] with the principal point in the middle; focal in image widths."""
    return np.array([[focal * width, 0.0, width / 2], [0.0, focal * width, height / 2], [0.0, 0.0, 1.0]])


def _grid(count: int, extent: tuple[float, float]) -> np.ndarray:
    """`count` positions [count, 2] in rows over the extent, rows of near-equal length, serpentine."""
    if not count:
        return np.empty((0, 2))
    rows = max(1, min(count, round(math.sqrt(count * extent[1] / extent[0]))))
    out = []
    for r in range(rows):
        n = (count * (r + 1)) // rows - (count * r) // rows
        x = (np.arange(n) + 0.5) / n - 0.5
        y = np.full(n, (r + 0.5) / rows - 0.5)
        out.append(np.stack([x if r % 2 == 0 else -x, y], 1))
    return np.concatenate(out) * np.asarray(extent)


def aerial_grid(
    city: City, count: int, altitude: float = 90.0, oblique: float = 0.5, district: float = 0.0
) -> np.ndarray:
    """A survey flight: a grid of nadir views and one of views 45 degrees down, these a share `oblique` of `count`.

    Oblique views turn north, east, south, west in turn, and never look out of the city. altitude: metres over ground.
    district: metres, the side of a square in the middle of the city that is flown over; 0: all of it.
    """
    nadir = count - math.floor(count * oblique)
    area = (min(district, city.extent[0]), min(district, city.extent[1])) if district else city.extent
    places = np.concatenate([_grid(nadir, area), _grid(count - nadir, area)])
    jitter = uniforms(seed_key(city.seed, 4), np.arange(count), 3) - 0.5
    views = []
    for i, (x, y) in enumerate(places):
        eye = np.array([x + 4.0 * jitter[0, i], y + 4.0 * jitter[1, i], altitude * (1.0 + 0.06 * jitter[2, i])])
        if i < nadir:
            target = eye * (1.0, 1.0, 0.0)
        else:
            k = i - nadir
            heading = np.array([(0.0, 1.0), (1.0, 0.0), (0.0, -1.0), (-1.0, 0.0)][k % 4])
            aim = eye[:2] + heading * altitude
            if np.any(np.abs(aim) > np.asarray(city.extent) / 2):
                heading = -heading
            target = np.append(eye[:2] + heading * altitude, 0.0)
        views.append(look_at(eye, target))
    return np.array(views).reshape(-1, 4, 4)


def _street_route(city: City) -> np.ndarray:
    """Corners [m, 2] of a drive: along the roads that run east, from the middle of the city, one after the other."""
    ny = city.solids.use.shape[0]
    order = sorted(range(1, ny), key=lambda j: (abs(j - ny / 2), j)) or [0]
    half = city.extent[0] / 2 - 8.0
    corners = []
    for leg, j in enumerate(order):
        y = city.solids.y0 + j * city.solids.pitch_y
        ends = [(-half, y), (half, y)]
        corners += ends if leg % 2 == 0 else ends[::-1]
    return np.array(corners)


def street_path(city: City, count: int, height: float = 2.2) -> np.ndarray:
    """A drive through the streets: views along the road and a little to either side, at most 7 m apart, on the asphalt.

    Roads are taken from the middle of the city outwards; the drive repeats from the start (offset) when they run out.
    """
    corners = _street_route(city)
    legs = corners.reshape(-1, 2, 2)
    lengths = np.abs(legs[:, 1, 0] - legs[:, 0, 0])
    total = float(lengths.sum())
    step = min(_STREET_SPACING, total / max(count, 1))
    begin = np.append(0.0, np.cumsum(lengths))
    u = uniforms(seed_key(city.seed, 5), np.arange(count), 3)
    views = []
    for i in range(count):
        at = min((i + 0.5) * step, total - 1e-6)
        leg = int(np.searchsorted(begin, at, side="right")) - 1
        ahead = np.sign(legs[leg, 1, 0] - legs[leg, 0, 0])
        eye = np.array([legs[leg, 0, 0] + ahead * (at - begin[leg]), legs[leg, 0, 1] - 1.0 * ahead, height])
        yaw = (-0.5, 0.0, 0.5)[i % 3] + 0.2 * (u[0, i] - 0.5)
        rise = 0.10 + 0.08 * (u[1, i] - 0.5)
        views.append(look_at(eye, eye + np.array([ahead * math.cos(yaw), math.sin(yaw), rise])))
    return np.array(views).reshape(-1, 4, 4)


def flythrough(city: City, count: int, altitude: float = 60.0) -> np.ndarray:
    """A round flight for videos: an ellipse over the city, looking at its middle."""
    ax, ay = 0.42 * city.extent[0], 0.42 * city.extent[1]
    views = []
    for i in range(count):
        angle = 2.0 * math.pi * i / count
        views.append(
            look_at(np.array([ax * math.cos(angle), ay * math.sin(angle), altitude]), np.array([0.0, 0.0, 5.0]))
        )
    return np.array(views).reshape(-1, 4, 4)
