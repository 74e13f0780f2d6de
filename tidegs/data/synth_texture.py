"""Procedural colours of the generated city: bricks, windows, tiles, leaves, roads, fields and sky.

Invariant: a colour depends on the solid's key, the point and the sampling footprint (metres) alone. Patterns are
filtered over the footprint, so distant surfaces fade to their mean instead of aliasing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tidegs.data.synth_hash import fade, fbm, hash2, kernel, pulse, unit, value_noise
from tidegs.data.synth_layout import (
    APARTMENTS,
    ASPHALT,
    BRICK,
    COPPER,
    FLAT_ROOF,
    GLASS,
    HOUSES,
    KERB,
    LEAVES,
    PARK,
    TILES,
    WOOD,
    Solids,
)

RGB = tuple[float, float, float]
Body = Any  # a numba record of dtype BODY


@kernel
def _blend(a: RGB, b: RGB, w: float) -> RGB:
    return a[0] + (b[0] - a[0]) * w, a[1] + (b[1] - a[1]) * w, a[2] + (b[2] - a[2]) * w


@kernel
def _scale(a: RGB, s: float) -> RGB:
    return a[0] * s, a[1] * s, a[2] * s


@kernel
def _vary(key: int, u: float, v: float, size_u: float, size_v: float, fp: float) -> float:
    """A random number in [-1, 1] for each cell of a lattice, gone where cells are unresolved."""
    h = hash2(key, np.int64(math.floor(u / size_u)), np.int64(math.floor(v / size_v)))
    return (2.0 * unit(h) - 1.0) * fade(fp, min(size_u, size_v))


@kernel
def _bricks(base: RGB, key: int, u: float, v: float, fp: float) -> RGB:
    """Courses of 0.25 m, bricks of 0.6 m, each of its own shade, with pale mortar."""
    shifted = u + 0.3 * (math.floor(v / 0.25) % 2.0)
    mortar = 1.0 - (1.0 - pulse(v, 0.25, 0.035, fp)) * (1.0 - pulse(shifted, 0.6, 0.035, fp))
    color = _scale(base, 1.0 + 0.22 * _vary(key, shifted, v, 0.6, 0.25, fp))
    return _blend(color, (0.74, 0.71, 0.66), 0.75 * mortar)


@kernel
def _windows(wall: RGB, key: int, u: float, v: float, width: float, tall: float, share: float, fp: float) -> RGB:
    """A window in each bay of about 3 m and each floor of 3 m, framed; some have curtains or stand open."""
    bay = width / max(1.0, math.floor(width / 3.0 + 0.5))
    half = 0.5 * share * bay
    frame = pulse(u - 0.5 * bay + half + 0.12, bay, 2.0 * half + 0.24, fp) * pulse(v - 0.78, 3.0, 1.74, fp)
    pane = pulse(u - 0.5 * bay + half, bay, 2.0 * half, fp) * pulse(v - 0.9, 3.0, 1.5, fp)
    bars = pulse(u - 0.5 * bay + 0.04, bay, 0.08, fp) * pulse(v - 0.9, 3.0, 1.5, fp)
    near = fade(fp, 1.5)
    h = hash2(key + np.uint64(7), np.int64(math.floor(u / bay)), np.int64(math.floor(v / 3.0)))
    pick = unit(h)
    glass = (0.17, 0.21, 0.27)
    if pick < 0.25:
        glass = _blend(glass, (0.78, 0.74, 0.66), near)
    elif pick < 0.35:
        glass = _blend(glass, (0.05, 0.06, 0.08), near)
    else:
        glass = _scale(glass, 1.0 + near * (0.6 * (v / 3.0 - math.floor(v / 3.0)) + 0.4 * (pick - 0.6)))
    color = _blend(wall, (0.88, 0.87, 0.84), frame)
    color = _blend(color, glass, pane)
    return _blend(color, (0.88, 0.87, 0.84), bars)


@kernel
def _shops(color: RGB, key: int, u: float, v: float, fp: float) -> RGB:
    """Shop fronts on the lowest floor: wide panes, doors, a sign band of random colour every 6 m."""
    h = hash2(key + np.uint64(11), np.int64(math.floor(u / 6.0)), 0)
    sign = (0.25 + 0.65 * unit(h), 0.2 + 0.6 * unit(h * np.uint64(3)), 0.2 + 0.6 * unit(h * np.uint64(7)))
    front = pulse(u - 0.3, 6.0, 5.4, fp)
    if v > 2.5:
        letters = front * pulse(u, 0.45, 0.28, fp) * pulse(v - 2.6, 3.0, 0.28, fp)
        return _blend(_blend(color, sign, front), (0.95, 0.93, 0.88), 0.8 * letters)
    door = pulse(u - 2.5, 6.0, 1.0, fp)
    pane = front * (1.0 - door) * pulse(v - 0.5, 3.0, 1.8, fp) * (1.0 - pulse(u, 1.5, 0.1, fp))
    color = _blend(color, _scale(sign, 0.6), front * door)
    goods = 0.5 + 0.5 * value_noise(u * 3.0, v * 3.0, key) * fade(fp, 0.4)
    return _blend(color, (0.18 + 0.2 * goods, 0.2 + 0.12 * goods, 0.24), pane)


@kernel
def _glass_wall(base: RGB, key: int, u: float, v: float, tall: float, fp: float) -> RGB:
    """Curtain wall: panes of 1.5 m, a spandrel band at each floor, mullions."""
    color = _scale(base, 0.75 + 0.4 * v / max(tall, 1.0) + 0.35 * _vary(key, u, v, 1.5, 3.0, fp))
    sky = 0.5 + 0.5 * value_noise(u / 9.0, v / 14.0, key + np.uint64(5))
    color = _blend(color, (0.66, 0.74, 0.82), 0.35 * sky)
    color = _blend(color, _scale(base, 0.45), pulse(v, 3.0, 0.7, fp))
    return _blend(color, (0.72, 0.72, 0.70), pulse(u - 0.05, 1.5, 0.1, fp))


@kernel
def _wall(b: Body, base: RGB, u: float, v: float, width: float, tall: float, fp: float) -> RGB:
    key, material = b.key, b.material
    stain = 1.0 + 0.10 * fbm(u, v * 0.5, key, 6.0, 5, fp)
    if material == GLASS:
        return _scale(_glass_wall(base, key, u, v, tall, fp), 0.5 + 0.5 * stain)
    if material == BRICK:
        color = _bricks(base, key, u, v, fp)
        share = 0.42
    else:
        rough = 1.0 + 0.06 * fbm(u, v, key + np.uint64(31), 0.5, 3, fp)
        color = _scale(base, rough * (1.0 - 0.18 * pulse(v + 0.1, 3.0, 0.2, fp)))
        share = 0.55
    color = _scale(color, stain)
    if width > 2.5 and tall > 2.9:
        if width > 14.0 and v < 3.0:
            color = _shops(color, key, u, v, fp)
        else:
            color = _windows(color, key, u, v, width, tall, share, fp)
    return _scale(color, 0.78 + 0.22 * min(1.0, v / 1.5))


@kernel
def _roof(b: Body, base: RGB, x: float, y: float, fp: float) -> RGB:
    """Flat roofs: felt strips, puddle stains, gravel, a pale parapet."""
    key = b.key
    edge = min(min(x - b.x0, b.x1 - x), min(y - b.y0, b.y1 - y))
    color = _blend((0.52, 0.51, 0.50), base, 0.3)
    color = _scale(color, 1.0 + 0.16 * fbm(x, y, key, 4.0, 6, fp) + 0.08 * _vary(key, x, y, 1.0, 8.0, fp))
    color = _scale(color, 1.0 - 0.3 * pulse(x, 1.0, 0.05, fp))
    return _blend(color, (0.76, 0.74, 0.70), min(1.0, max(0.0, 0.5 + (0.35 - edge) / max(fp, 0.01))))


@kernel
def _tiles(base: RGB, key: int, along: float, down: float, fp: float) -> RGB:
    """Rows of roof tiles with a shadow line under each row."""
    shifted = along + 0.2 * (math.floor(down / 0.35) % 2.0)
    color = _scale(
        base, 1.0 + 0.2 * _vary(key, shifted, down, 0.4, 0.35, fp) + 0.14 * fbm(along, down, key, 3.0, 4, fp)
    )
    return _scale(color, 1.0 - 0.35 * pulse(down, 0.35, 0.07, fp) - 0.2 * pulse(shifted, 0.4, 0.04, fp))


@kernel
def _road(key: int, a: float, along: float, period: float, x: float, y: float, fp: float) -> RGB:
    """a: distance from the centre line; along: distance from the crossing at the start of this stretch."""
    gray = 0.34 * (1.0 + 0.12 * fbm(x, y, key, 5.0, 6, fp) + 0.10 * _vary(key, x, y, 7.0, 9.0, fp))
    color = (gray, gray * 1.01, gray * 1.04)
    inner = min(along, period - along)
    white = 0.0
    if inner > KERB + 4.0:
        white = max(
            pulse(a + 0.09, 1e4, 0.18, fp) * pulse(along, 4.0, 2.2, fp), pulse(a - ASPHALT + 2.15, 1e4, 0.12, fp)
        )
    elif inner > KERB:
        white = pulse(a, 1.0, 0.5, fp) * min(1.0, max(0.0, 0.5 + (1.4 - abs(inner - KERB - 1.8)) / max(fp, 0.01)))
    color = _blend(color, (0.88, 0.88, 0.86), 0.9 * white)
    cx, cy = math.floor(x / 11.0), math.floor(y / 11.0)
    h = hash2(key + np.uint64(3), np.int64(cx), np.int64(cy))
    mx, my = x - (cx + 0.2 + 0.6 * unit(h)) * 11.0, y - (cy + 0.2 + 0.6 * unit(h * np.uint64(5))) * 11.0
    cover = min(1.0, max(0.0, 0.5 + (0.4 - math.sqrt(mx * mx + my * my)) / max(fp, 0.01)))
    return _blend(color, (0.20, 0.18, 0.17), cover * 0.8)


@kernel
def _grass(key: int, x: float, y: float, fp: float) -> RGB:
    n = fbm(x, y, key + np.uint64(17), 9.0, 7, fp)
    color = _blend((0.30, 0.42, 0.19), (0.50, 0.52, 0.26), min(1.0, max(0.0, 0.4 + 0.4 * n)))
    return _scale(color, 1.0 + 0.12 * n)


@kernel
def _paving(key: int, x: float, y: float, size: float, fp: float) -> RGB:
    shade = 1.0 + 0.10 * _vary(key, x, y, size, size, fp) + 0.08 * fbm(x, y, key, 3.0, 5, fp)
    joint = 1.0 - (1.0 - pulse(x, size, 0.05, fp)) * (1.0 - pulse(y, size, 0.05, fp))
    return _scale((0.64, 0.62, 0.58), shade * (1.0 - 0.35 * joint))


@kernel
def _lot(key: int, use: int, pitch: float, dx: float, dy: float, x: float, y: float, fp: float) -> RGB:
    """Ground of a lot; dx, dy from its centre."""
    if use == HOUSES:
        path = pulse(dx - 0.6, pitch / 4.5, 1.2, fp) * min(1.0, max(0.0, 0.5 + (abs(dy) - 11.0) / max(fp, 0.01)))
        return _blend(_grass(key, x, y, fp), _paving(key, x, y, 0.6, fp), path)
    if use == PARK:
        r = math.sqrt(dx * dx + dy * dy)
        d = min(min(abs(r - 10.0), min(abs(dx), abs(dy))), abs(dx - dy) * 0.7)
        path = min(1.0, max(0.0, 0.5 + (1.1 - d) / max(fp, 0.05)))
        n = 1.0 + 0.15 * fbm(x, y, key + np.uint64(23), 2.0, 5, fp)
        return _blend(_grass(key, x, y, fp), (0.70 * n, 0.60 * n, 0.44 * n), path)
    if use == APARTMENTS:
        yard = min(1.0, max(0.0, 0.5 + (6.0 - max(abs(dx), abs(dy))) / max(fp, 0.05)))
        return _blend(_paving(key, x, y, 1.2, fp), _grass(key, x, y, fp), yard)
    return _paving(key, x, y, 2.0, fp)


@kernel
def _fields(key: int, x: float, y: float, fp: float) -> RGB:
    """Farmland around the city: patches of 45 m, each with its crop and rows."""
    wx = x + 8.0 * value_noise(x / 60.0, y / 60.0, key)
    i, j = np.int64(math.floor(wx / 45.0)), np.int64(math.floor(y / 32.0))
    h = hash2(key + np.uint64(41), i, j)
    crop = unit(h)
    color = _blend((0.36, 0.46, 0.20), (0.70, 0.60, 0.34), crop)
    across = x if (h >> np.uint64(3)) & np.uint64(1) else y
    color = _scale(color, 1.0 - 0.25 * pulse(across, 3.0, 1.2, fp))
    return _scale(color, 1.0 + 0.14 * fbm(x, y, key, 16.0, 8, fp))


@kernel
def ground_color(c: Solids, x: float, y: float, fp: float) -> RGB:
    """Albedo of the ground at (x, y)."""
    ny, nx = c.use.shape
    gx, gy = (x - c.x0) / c.pitch_x, (y - c.y0) / c.pitch_y
    i, j = np.int64(math.floor(gx)), np.int64(math.floor(gy))
    fx, fy = (gx - math.floor(gx)) * c.pitch_x, (gy - math.floor(gy)) * c.pitch_y
    ax, ay = min(fx, c.pitch_x - fx), min(fy, c.pitch_y - fy)
    margin = max(-gx * c.pitch_x, -gy * c.pitch_y)
    margin = max(margin, max((gx - nx) * c.pitch_x, (gy - ny) * c.pitch_y))
    if margin > ASPHALT:
        return _fields(c.key, x, y, fp)
    road = min(ax, ay)
    if road < ASPHALT:
        if ax < ay:
            return _road(c.key, ax, fy, c.pitch_y, x, y, fp)
        return _road(c.key, ay, fx, c.pitch_x, x, y, fp)
    if road < KERB:
        color = _paving(c.key, x, y, 0.9, fp)
        return _scale(color, 1.15 if road < ASPHALT + 0.3 else 1.0)
    i, j = min(max(i, 0), nx - 1), min(max(j, 0), ny - 1)
    return _lot(c.key, c.use[j, i], c.pitch_x, fx - 0.5 * c.pitch_x, fy - 0.5 * c.pitch_y, x, y, fp)


@kernel
def sky_color(c: Solids, x: float, y: float, z: float) -> RGB:
    """The dome: paler at the horizon, with soft clouds. It gives its own light (not shaded)."""
    r = c.dome
    up = min(1.0, max(0.0, z / r))
    color = _blend((0.80, 0.86, 0.92), (0.40, 0.58, 0.84), math.sqrt(up))
    n = fbm(x / r, y / r, c.key + np.uint64(53), 0.8, 4, 0.0)
    return _blend(color, (0.95, 0.95, 0.96), min(0.8, max(0.0, 0.2 + 0.6 * n)) * min(1.0, 4.0 * up))


@kernel
def solid_color(b: Body, normal: RGB, x: float, y: float, z: float, fp: float) -> RGB:
    """Albedo of a solid at a point of its surface with this outward normal."""
    base = (np.float64(b.red), np.float64(b.green), np.float64(b.blue))
    material, key = b.material, b.key
    if material == LEAVES:
        n = fbm(x + 0.6 * z, y - 0.5 * z, key, 1.6, 5, fp)
        return _scale(base, max(0.3, 1.0 + 0.42 * n))
    if material == TILES:
        along, down = (x, y) if abs(normal[1]) > abs(normal[0]) else (y, x)
        if normal[2] > 0.2:
            return _tiles(base, key, along, down, fp)
        return _scale(base, 0.8)
    if material <= GLASS:
        if normal[2] > 0.5:
            return _roof(b, base, x, y, fp)
        if abs(normal[0]) > abs(normal[1]):
            return _wall(b, base, y - b.y0, z - b.z0, b.y1 - b.y0, b.z1 - b.z0, fp)
        return _wall(b, base, x - b.x0, z - b.z0, b.x1 - b.x0, b.z1 - b.z0, fp)
    if material == COPPER:
        angle = math.atan2(y - 0.5 * (b.y0 + b.y1), x - 0.5 * (b.x0 + b.x1))
        ribs = pulse(angle, math.pi / 12.0, 0.05, 0.02 + fp * 0.1)
        return _scale(base, (1.0 - 0.3 * ribs) * (1.0 + 0.12 * fbm(x + z, y - z, key, 2.0, 5, fp)))
    if material == FLAT_ROOF:
        return _scale(base, 1.0 - 0.35 * pulse(z, 0.4, 0.12, fp) + 0.1 * fbm(x, y + z, key, 1.0, 4, fp))
    if material == WOOD:
        return _scale(base, 1.0 + 0.25 * fbm((x + y) * 4.0, z, key, 1.0, 4, fp))
    return _scale(base, 1.0 + 0.05 * fbm(x + z, y - z, key, 1.0, 3, fp))
