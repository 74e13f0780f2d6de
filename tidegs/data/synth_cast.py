"""Rays through the generated city: what is hit, what is in the sun, and images of it.

Invariant: exact ray casting (no rasterization), so images are ground truth. A pixel depends on its ray alone: the same
bytes for any number of threads. Solids are found by walking the cells of a 2D grid, which suits a city.
"""

from __future__ import annotations

import math

import numpy as np

from tidegs.data.synth_hash import kernel
from tidegs.data.synth_layout import CELL, ELLIPSOID, GABLE_X, GABLE_Y, Solids
from tidegs.data.synth_texture import RGB, Body, ground_color, sky_color, solid_color

GROUND, SKY = -1, -2  # in place of a solid's index
_SUN = (0.494, -0.371, 0.786)  # unit vector towards the sun
_SUNLIGHT = (0.74, 0.70, 0.62)
_AMBIENT = (0.40, 0.43, 0.50)


@kernel
def _hit_ball(b: Body, o: RGB, d: RGB) -> tuple[float, float]:
    hx, hy, hz = 0.5 * (b.x1 - b.x0), 0.5 * (b.y1 - b.y0), 0.5 * (b.z1 - b.z0)
    px, py, pz = (o[0] - b.x0) / hx - 1.0, (o[1] - b.y0) / hy - 1.0, (o[2] - b.z0) / hz - 1.0
    vx, vy, vz = d[0] / hx, d[1] / hy, d[2] / hz
    qa, qb, qc = vx * vx + vy * vy + vz * vz, px * vx + py * vy + pz * vz, px * px + py * py + pz * pz - 1.0
    root = qb * qb - qa * qc
    if root <= 0.0:
        return 1.0, 0.0
    root = math.sqrt(root)
    return (-qb - root) / qa, (-qb + root) / qa


@kernel
def _clip(a: float, b: float, near: float, far: float) -> tuple[float, float]:
    """Clips [near, far] to a + t b <= 0."""
    if b > 0.0:
        return near, min(far, -a / b)
    if b < 0.0:
        return max(near, -a / b), far
    return (near, far) if a <= 0.0 else (1.0, 0.0)


@kernel
def _box(b: Body, o: RGB, r: RGB) -> tuple[float, float]:
    """Where a ray is inside the box around a solid; r: reciprocals of its direction."""
    ax, bx = (b.x0 - o[0]) * r[0], (b.x1 - o[0]) * r[0]
    ay, by = (b.y0 - o[1]) * r[1], (b.y1 - o[1]) * r[1]
    az, bz = (b.z0 - o[2]) * r[2], (b.z1 - o[2]) * r[2]
    near = max(min(ax, bx), max(min(ay, by), min(az, bz)))
    return near, min(max(ax, bx), min(max(ay, by), max(az, bz)))


@kernel
def _hit_solid(b: Body, o: RGB, d: RGB, r: RGB, limit: float) -> float:
    """Distance along d at which the ray enters the solid (or leaves it, from inside), below limit; else infinity."""
    near, far = _box(b, o, r)
    if near > far or far <= 0.0 or near >= limit:
        return np.inf
    if b.kind == ELLIPSOID:
        near, far = _hit_ball(b, o, d)
    elif b.kind == GABLE_X:
        slope = 2.0 * (b.z1 - b.z0) / (b.y1 - b.y0)
        p, v = slope * (o[1] - 0.5 * (b.y0 + b.y1)), slope * d[1]
        near, far = _clip(o[2] - b.z1 + p, d[2] + v, near, far)
        near, far = _clip(o[2] - b.z1 - p, d[2] - v, near, far)
    elif b.kind == GABLE_Y:
        slope = 2.0 * (b.z1 - b.z0) / (b.x1 - b.x0)
        p, v = slope * (o[0] - 0.5 * (b.x0 + b.x1)), slope * d[0]
        near, far = _clip(o[2] - b.z1 + p, d[2] + v, near, far)
        near, far = _clip(o[2] - b.z1 - p, d[2] - v, near, far)
    if near > far or far <= 0.0:
        return np.inf
    t = near if near > 0.0 else far
    return t if t < limit else np.inf


@kernel
def normal_at(b: Body, p: RGB) -> RGB:
    """Outward unit normal of a solid at a point of its surface."""
    hx, hy, hz = 0.5 * (b.x1 - b.x0), 0.5 * (b.y1 - b.y0), 0.5 * (b.z1 - b.z0)
    x, y, z = (p[0] - b.x0) / hx - 1.0, (p[1] - b.y0) / hy - 1.0, (p[2] - b.z0) / hz - 1.0
    if b.kind == ELLIPSOID:
        x, y, z = x / hx, y / hy, z / hz
        n = math.sqrt(x * x + y * y + z * z)
        return x / n, y / n, z / n
    if b.kind == GABLE_X and abs(0.5 * (z + 1.0) + abs(y) - 1.0) < 1e-6:
        n = math.hypot(hy, 2.0 * hz)
        return 0.0, math.copysign(2.0 * hz / n, y), hy / n
    if b.kind == GABLE_Y and abs(0.5 * (z + 1.0) + abs(x) - 1.0) < 1e-6:
        n = math.hypot(hx, 2.0 * hz)
        return math.copysign(2.0 * hz / n, x), 0.0, hx / n
    if abs(x) >= abs(y) and abs(x) >= abs(z):
        return math.copysign(1.0, x), 0.0, 0.0
    if abs(y) >= abs(z):
        return 0.0, math.copysign(1.0, y), 0.0
    return 0.0, 0.0, math.copysign(1.0, z)


@kernel
def _reciprocal(v: float) -> float:
    return 1.0 / v if abs(v) > 1e-12 else math.copysign(1e12, v)


@kernel
def trace(c: Solids, o: RGB, d: RGB, limit: float, any_hit: bool) -> tuple[float, int]:
    """Nearest solid below limit: (distance in lengths of d, index), or (limit, GROUND). any_hit: any solid will do."""
    gy, gx = c.cells.shape
    r = (_reciprocal(d[0]), _reciprocal(d[1]), _reciprocal(d[2]))
    ax, bx = (c.x0 - o[0]) * r[0], (c.x0 + gx * CELL - o[0]) * r[0]
    ay, by = (c.y0 - o[1]) * r[1], (c.y0 + gy * CELL - o[1]) * r[1]
    az, bz = -o[2] * r[2], (c.top - o[2]) * r[2]
    near = max(0.0, max(min(ax, bx), max(min(ay, by), min(az, bz))))
    far = min(limit, min(max(ax, bx), min(max(ay, by), max(az, bz))))
    best, found = limit, GROUND
    if near >= far:
        return best, found
    px, py = (o[0] + near * d[0] - c.x0) / CELL, (o[1] + near * d[1] - c.y0) / CELL
    i, j = min(max(np.int64(px), 0), gx - 1), min(max(np.int64(py), 0), gy - 1)
    step_x, step_y = (1 if r[0] > 0.0 else -1), (1 if r[1] > 0.0 else -1)
    dt_x, dt_y = CELL * abs(r[0]), CELL * abs(r[1])
    next_x = near + (i + (step_x > 0) - px) * step_x * dt_x
    next_y = near + (j + (step_y > 0) - py) * step_y * dt_y
    t = near
    while True:
        leave = min(next_x, next_y)
        cell = c.cells[j, i]
        if min(o[2] + t * d[2], o[2] + min(leave, far) * d[2]) <= cell.top:
            for at in range(cell.first, cell.last):
                s = c.items[at]
                hit = _hit_solid(c.body[s], o, d, r, best)
                if hit < best:
                    best, found = hit, np.int64(s)
                    if any_hit:
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


@kernel
def shade(c: Solids, s: int, n: RGB, p: RGB, fp: float) -> RGB:
    """Colour (0..1) of the surface s with normal n at p: texture times ambient and sun light, with hard shadows."""
    if s == SKY:
        return sky_color(c, p[0], p[1], p[2])
    if s == GROUND:
        color = ground_color(c, p[0], p[1], fp)
    else:
        color = solid_color(c.body[s], n, p[0], p[1], p[2], fp)
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


@kernel
def cast(c: Solids, o: RGB, d: RGB) -> tuple[float, int, RGB]:
    """What a ray from inside the dome hits first: distance in lengths of d, solid or GROUND or SKY, outward normal."""
    dd = d[0] * d[0] + d[1] * d[1] + d[2] * d[2]
    od = o[0] * d[0] + o[1] * d[1] + o[2] * d[2]
    oo = o[0] * o[0] + o[1] * o[1] + o[2] * o[2]
    limit = (-od + math.sqrt(max(0.0, od * od - dd * (oo - c.dome * c.dome)))) / dd
    ground = d[2] < 0.0 and -o[2] / d[2] < limit
    if ground:
        limit = -o[2] / d[2]
    t, s = trace(c, o, d, limit, False)
    if s != GROUND:
        return t, s, normal_at(c.body[s], (o[0] + t * d[0], o[1] + t * d[1], o[2] + t * d[2]))
    return t, (GROUND if ground else SKY), (0.0, 0.0, 1.0)


@kernel
def render_rows(
    c: Solids, rot: np.ndarray, eye: np.ndarray, k: np.ndarray, samples: int, image: np.ndarray, first: int, last: int
) -> None:
    """Fills rows first .. last of image (uint8 [h, w, 3]) from samples x samples rays a pixel.

    rot: camera to world [3, 3]; eye [3]; k: fx, fy, cx, cy.
    """
    width = image.shape[1]
    o = (eye[0], eye[1], eye[2])
    for row in range(first, last):
        for col in range(width):
            red, green, blue = 0.0, 0.0, 0.0
            for sub in range(samples * samples):
                u = (col + (sub % samples + 0.5) / samples - k[2]) / k[0]
                v = (row + (sub // samples + 0.5) / samples - k[3]) / k[1]
                n = math.sqrt(u * u + v * v + 1.0)
                d = (
                    (rot[0, 0] * u + rot[0, 1] * v + rot[0, 2]) / n,
                    (rot[1, 0] * u + rot[1, 1] * v + rot[1, 2]) / n,
                    (rot[2, 0] * u + rot[2, 1] * v + rot[2, 2]) / n,
                )
                t, s, normal = cast(c, o, d)
                facing = max(0.3, abs(normal[0] * d[0] + normal[1] * d[1] + normal[2] * d[2]))
                footprint = t / (n * k[0] * samples * facing)
                color = shade(c, s, normal, (o[0] + t * d[0], o[1] + t * d[1], o[2] + t * d[2]), footprint)
                red, green, blue = red + color[0], green + color[1], blue + color[2]
            gain = 255.0 / (samples * samples)
            image[row, col, 0] = np.uint8(red * gain + 0.5)
            image[row, col, 1] = np.uint8(green * gain + 0.5)
            image[row, col, 2] = np.uint8(blue * gain + 0.5)


@kernel
def find_seen(
    c: Solids,
    viewmat: np.ndarray,
    eye: np.ndarray,
    k: np.ndarray,
    size: tuple[int, int],
    points: np.ndarray,
    slack: float,
    seen: np.ndarray,
) -> None:
    """seen[i] = points[i] falls inside the image (width, height) and nothing but the last `slack` metres is in between.

    k: fx, fy, cx, cy.
    """
    o = (eye[0], eye[1], eye[2])
    for i in range(len(points)):
        d = (points[i, 0] - o[0], points[i, 1] - o[1], points[i, 2] - o[2])
        z = viewmat[2, 0] * d[0] + viewmat[2, 1] * d[1] + viewmat[2, 2] * d[2]
        u = k[0] * (viewmat[0, 0] * d[0] + viewmat[0, 1] * d[1] + viewmat[0, 2] * d[2]) / z + k[2]
        v = k[1] * (viewmat[1, 0] * d[0] + viewmat[1, 1] * d[1] + viewmat[1, 2] * d[2]) / z + k[3]
        seen[i] = z > 0.05 and 0.0 <= u < size[0] and 0.0 <= v < size[1]
        if seen[i]:
            dist = math.sqrt(d[0] * d[0] + d[1] * d[1] + d[2] * d[2])
            seen[i] = trace(c, o, d, 1.0 - slack / max(dist, slack), True)[1] == GROUND
