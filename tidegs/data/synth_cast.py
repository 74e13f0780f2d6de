"""Rays through the generated city: what is hit, what is in the sun, and images of it.

Invariant: exact ray casting (no rasterization), so images are ground truth. A pixel depends on its ray alone: the same
bytes for any number of threads. Solids are found by walking the cells of a 2D grid, which suits a city.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit, prange

from tidegs.data.synth_layout import BOX, CELL, ELLIPSOID, GABLE_X, Solids
from tidegs.data.synth_texture import RGB, ground_color, sky_color, solid_color

GROUND, SKY = -1, -2  # in place of a solid's index
_SUN = (0.494, -0.371, 0.786)  # unit vector towards the sun
_SUNLIGHT = (0.74, 0.70, 0.62)
_AMBIENT = (0.40, 0.43, 0.50)
_EPS = 1e-9


@njit(cache=True)
def _half_space(a: float, b: float, near: float, far: float) -> tuple[float, float]:
    """Clips [near, far] to a + t b <= 0."""
    if b > _EPS:
        return near, min(far, -a / b)
    if b < -_EPS:
        return max(near, -a / b), far
    return (near, far) if a <= 0.0 else (1.0, 0.0)


@njit(cache=True)
def _hit_solid(c: Solids, s: int, o: RGB, d: RGB, limit: float) -> float:
    """Distance along d at which the ray enters solid s (or leaves it, from inside), below limit; else infinity."""
    kind = c.kind[s]
    if kind == ELLIPSOID:
        qa, qb, qc = 0.0, 0.0, -1.0
        for k in range(3):
            half = 0.5 * (c.hi[s, k] - c.lo[s, k])
            p, v = (o[k] - 0.5 * (c.hi[s, k] + c.lo[s, k])) / half, d[k] / half
            qa, qb, qc = qa + v * v, qb + p * v, qc + p * p
        root = qb * qb - qa * qc
        if root <= 0.0:
            return np.inf
        root = math.sqrt(root)
        near, far = (-qb - root) / qa, (-qb + root) / qa
    else:
        near, far = -np.inf, np.inf
        for k in range(3):
            near, far = _half_space(c.lo[s, k] - o[k], -d[k], near, far)
            near, far = _half_space(o[k] - c.hi[s, k], d[k], near, far)
        if kind != BOX and near <= far:
            a = 1 if kind == GABLE_X else 0
            half = 0.5 * (c.hi[s, a] - c.lo[s, a])
            slope = (c.hi[s, 2] - c.lo[s, 2]) / half
            p = o[a] - 0.5 * (c.hi[s, a] + c.lo[s, a])
            near, far = _half_space(o[2] - c.hi[s, 2] + slope * p, d[2] + slope * d[a], near, far)
            near, far = _half_space(o[2] - c.hi[s, 2] - slope * p, d[2] - slope * d[a], near, far)
    if near > far or far <= 0.0:
        return np.inf
    t = near if near > 0.0 else far
    return t if t < limit else np.inf


@njit(cache=True)
def normal_at(c: Solids, s: int, p: RGB) -> RGB:
    """Outward unit normal of solid s at a point of its surface."""
    q = np.empty(3)
    half = np.empty(3)
    for k in range(3):
        half[k] = 0.5 * (c.hi[s, k] - c.lo[s, k])
        q[k] = (p[k] - 0.5 * (c.hi[s, k] + c.lo[s, k])) / half[k]
    if c.kind[s] == ELLIPSOID:
        x, y, z = q[0] / half[0], q[1] / half[1], q[2] / half[2]
        n = math.sqrt(x * x + y * y + z * z)
        return x / n, y / n, z / n
    best = 0
    for k in range(1, 3):
        if abs(q[k]) > abs(q[best]):
            best = k
    if c.kind[s] != BOX:
        a = 1 if c.kind[s] == GABLE_X else 0
        off_slope = abs(0.5 * (q[2] + 1.0) + abs(q[a]) - 1.0)
        if off_slope < 1e-6 or (best != 1 - a and q[2] > -1.0 + 1e-6):
            rise = 2.0 * half[2] / half[a]
            n = math.sqrt(1.0 + rise * rise)
            side = math.copysign(rise / n, q[a])
            return (side if a == 0 else 0.0), (side if a == 1 else 0.0), 1.0 / n
    sign = math.copysign(1.0, q[best])
    return (sign if best == 0 else 0.0), (sign if best == 1 else 0.0), (sign if best == 2 else 0.0)


@njit(cache=True)
def trace(c: Solids, o: RGB, d: RGB, limit: float, first_only: bool) -> tuple[float, int]:
    """Nearest solid along the ray below limit: (distance, index), or (limit, GROUND). `first_only`: any solid will do."""
    gy, gx = c.cell_top.shape
    near, far = 0.0, limit
    near, far = _half_space(c.origin[0] - o[0], -d[0], near, far)
    near, far = _half_space(o[0] - c.origin[0] - gx * CELL, d[0], near, far)
    near, far = _half_space(c.origin[1] - o[1], -d[1], near, far)
    near, far = _half_space(o[1] - c.origin[1] - gy * CELL, d[1], near, far)
    near, far = _half_space(o[2] - c.top, d[2], near, far)
    best, found = limit, GROUND
    if near >= far:
        return best, found
    px, py = (o[0] + near * d[0] - c.origin[0]) / CELL, (o[1] + near * d[1] - c.origin[1]) / CELL
    i, j = min(max(np.int64(px), 0), gx - 1), min(max(np.int64(py), 0), gy - 1)
    step_x, step_y = (1 if d[0] > 0.0 else -1), (1 if d[1] > 0.0 else -1)
    dt_x = CELL / abs(d[0]) if abs(d[0]) > _EPS else np.inf
    dt_y = CELL / abs(d[1]) if abs(d[1]) > _EPS else np.inf
    next_x = near + (i + (step_x > 0) - px) * step_x * dt_x if abs(d[0]) > _EPS else np.inf
    next_y = near + (j + (step_y > 0) - py) * step_y * dt_y if abs(d[1]) > _EPS else np.inf
    t = near
    while True:
        leave = min(next_x, next_y)
        if min(o[2] + t * d[2], o[2] + min(leave, far) * d[2]) <= c.cell_top[j, i]:
            cell = j * gx + i
            for at in range(c.cell_start[cell], c.cell_start[cell + 1]):
                s = c.cell_items[at]
                hit = _hit_solid(c, s, o, d, best)
                if hit < best:
                    best, found = hit, np.int64(s)
                    if first_only:
                        return best, found
        if leave >= min(best, far):
            return best, found
        t = leave
        if next_x < next_y:
            i, next_x = i + step_x, next_x + dt_x
        else:
            j, next_y = j + step_y, next_y + dt_y
        if i < 0 or j < 0 or i >= gx or j >= gy:
            return best, found


@njit(cache=True)
def shade(c: Solids, s: int, n: RGB, p: RGB, fp: float) -> RGB:
    """Colour (0..1) of the surface s with normal n at p: texture times ambient and sun light, with hard shadows."""
    if s == SKY:
        return sky_color(c, p[0], p[1], p[2])
    if s == GROUND:
        color = ground_color(c, p[0], p[1], fp)
    else:
        color = solid_color(c, s, n, p[0], p[1], p[2], fp)
    sun = n[0] * _SUN[0] + n[1] * _SUN[1] + n[2] * _SUN[2]
    if sun > 0.0:
        start = (p[0] + 1e-3 * n[0], p[1] + 1e-3 * n[1], p[2] + 1e-3 * n[2])
        if trace(c, start, _SUN, np.inf, True)[1] != GROUND:
            sun = 0.0
    sun = max(sun, 0.0)
    open_sky = 0.8 + 0.2 * n[2]
    return (
        min(1.0, max(0.0, color[0] * (_AMBIENT[0] * open_sky + _SUNLIGHT[0] * sun))),
        min(1.0, max(0.0, color[1] * (_AMBIENT[1] * open_sky + _SUNLIGHT[1] * sun))),
        min(1.0, max(0.0, color[2] * (_AMBIENT[2] * open_sky + _SUNLIGHT[2] * sun))),
    )


@njit(cache=True)
def cast(c: Solids, o: RGB, d: RGB) -> tuple[float, int, RGB]:
    """What a ray from inside the dome hits first: distance (in lengths of d), solid or GROUND or SKY, outward normal."""
    dd = d[0] * d[0] + d[1] * d[1] + d[2] * d[2]
    od = o[0] * d[0] + o[1] * d[1] + o[2] * d[2]
    oo = o[0] * o[0] + o[1] * o[1] + o[2] * o[2]
    limit = (-od + math.sqrt(max(0.0, od * od - dd * (oo - c.dome * c.dome)))) / dd
    ground = d[2] < 0.0 and -o[2] / d[2] < limit
    if ground:
        limit = -o[2] / d[2]
    t, s = trace(c, o, d, limit, False)
    if s != GROUND:
        return t, s, normal_at(c, s, (o[0] + t * d[0], o[1] + t * d[1], o[2] + t * d[2]))
    return t, (GROUND if ground else SKY), (0.0, 0.0, 1.0)


@njit(cache=True)
def color_along(c: Solids, o: RGB, d: RGB, spread: float) -> RGB:
    """Colour seen along unit direction d; spread: angle between neighbouring samples, radians."""
    t, s, n = cast(c, o, d)
    facing = max(0.3, abs(n[0] * d[0] + n[1] * d[1] + n[2] * d[2]))
    return shade(c, s, n, (o[0] + t * d[0], o[1] + t * d[1], o[2] + t * d[2]), t * spread / facing)


@njit(cache=True, parallel=True)
def render_rows(c: Solids, rot: np.ndarray, eye: np.ndarray, k: np.ndarray, samples: int, image: np.ndarray) -> None:
    """Fills image (uint8 [h, w, 3]). rot: camera to world [3, 3]; eye [3]; k: fx, fy, cx, cy; samples x samples rays."""
    height, width = image.shape[0], image.shape[1]
    spread = 1.0 / (k[0] * samples)
    o = (eye[0], eye[1], eye[2])
    for row in prange(height):
        for col in range(width):
            r, g, b = 0.0, 0.0, 0.0
            for sub in range(samples * samples):
                u = (col + (sub % samples + 0.5) / samples - k[2]) / k[0]
                v = (row + (sub // samples + 0.5) / samples - k[3]) / k[1]
                x = rot[0, 0] * u + rot[0, 1] * v + rot[0, 2]
                y = rot[1, 0] * u + rot[1, 1] * v + rot[1, 2]
                z = rot[2, 0] * u + rot[2, 1] * v + rot[2, 2]
                n = math.sqrt(x * x + y * y + z * z)
                color = color_along(c, o, (x / n, y / n, z / n), spread * math.sqrt(1.0 / n))
                r, g, b = r + color[0], g + color[1], b + color[2]
            gain = 255.0 / (samples * samples)
            image[row, col, 0] = np.uint8(r * gain + 0.5)
            image[row, col, 1] = np.uint8(g * gain + 0.5)
            image[row, col, 2] = np.uint8(b * gain + 0.5)


@njit(cache=True, parallel=True)
def seen_from(c: Solids, eye: np.ndarray, points: np.ndarray, slack: float, seen: np.ndarray) -> None:
    """seen[i] = whether the straight line from eye [3] to points[i] is free but for the last `slack` metres."""
    o = (eye[0], eye[1], eye[2])
    for i in prange(len(points)):
        if not seen[i]:
            continue
        d = (points[i, 0] - o[0], points[i, 1] - o[1], points[i, 2] - o[2])
        dist = math.sqrt(d[0] * d[0] + d[1] * d[1] + d[2] * d[2])
        limit = 1.0 - slack / max(dist, slack)
        seen[i] = trace(c, o, d, limit, True)[1] == GROUND
