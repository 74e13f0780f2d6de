"""Points on the surfaces of the generated city, uniform by area, in no useful order.

Invariant: point i of n follows from (seed, n, i) alone, however many threads there are and wherever one starts.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tidegs.data.synth_cast import GROUND, SKY, normal_at, shade
from tidegs.data.synth_hash import hash2, kernel, mix, unit
from tidegs.data.synth_layout import BOX, CELL, ELLIPSOID, GABLE_X, GABLE_Y, Solids
from tidegs.data.synth_texture import RGB, Body

FACES = 6  # entries of each solid in the table: its own faces, and with the first solid of a block, the block's ground
_GROUND_FACE = 5
_OUTSKIRTS = 0.1  # density of points on the ground outside the city, relative to the city
_TRIES = 16
# The plastic number's sequence (Roberts 2018, "R2"), in 64-bit fixed point: even cover of a face by successive strata.
_R2_X, _R2_Y = np.uint64(0xC13FA9A902A6328F), np.uint64(0x91E10DA5C79E7B1D)


class Faces(NamedTuple):
    """What points are drawn from: faces of all solids (and ground) block by block, then outskirts and sky."""

    cumulative: np.ndarray  # float64 [FACES * n + 2], running sum of area x density
    guide: np.ndarray  # int64 [g], first face whose cumulative share exceeds k / g
    window: float  # a buried place is drawn again this near, in shares: a hundred blocks, so that memory is at hand


def face_table(c: Solids, sky_share: float) -> Faces:
    """sky_share: fraction of the points that lie on the dome."""
    body = c.body
    x, y, z = (body[f"{a}1"] - body[f"{a}0"] for a in "xyz")
    area = np.zeros((len(body), FACES))
    box = body["kind"] == BOX
    area[box] = np.stack([x * y, y * z, y * z, x * z, x * z, 0.0 * x], 1)[box]
    for kind, across, along in ((GABLE_X, y, x), (GABLE_Y, x, y)):
        slope, end = along * np.hypot(across / 2.0, z), across * z / 2.0
        m = body["kind"] == kind
        area[m] = np.stack([slope, slope, end, end, 0.0 * end, 0.0 * end], 1)[m]
    ball = body["kind"] == ELLIPSOID
    p = 1.6075  # Thomsen's approximation of an ellipsoid's area
    a, b, h = ((0.5 * side[ball]) ** p for side in (x, y, z))
    area[ball, 0] = 4.0 * math.pi * ((a * b + a * h + b * h) / 3.0) ** (1.0 / p)
    ny, nx = c.use.shape
    column = np.floor((0.5 * (body["x0"] + body["x1"]) - c.x0) / c.pitch_x)
    row = np.floor((0.5 * (body["y0"] + body["y1"]) - c.y0) / c.pitch_y)
    area[np.unique(row * nx + column, return_index=True)[1], _GROUND_FACE] = c.pitch_x * c.pitch_y
    city = nx * c.pitch_x * ny * c.pitch_y
    visible = area.sum() + _OUTSKIRTS * (math.pi * c.dome**2 - city)
    ends = [_OUTSKIRTS * 4.0 * c.dome**2, sky_share / (1.0 - sky_share) * visible]
    cumulative = np.cumsum(np.append(area.ravel(), ends))
    marks = np.arange(len(cumulative) // 2) / (len(cumulative) // 2)
    guide = np.searchsorted(cumulative, marks * cumulative[-1], side="right")
    return Faces(cumulative, guide, min(0.5, 100.0 / (nx * ny)))


class _Shuffle(NamedTuple):
    """A bijection of [0, n): multiply and xor-shift in the next power of two, walked until it lands inside."""

    n: np.uint64
    mask: np.uint64
    half: np.uint64
    factor: tuple[np.uint64, np.uint64, np.uint64]
    add: tuple[np.uint64, np.uint64, np.uint64]


@kernel
def _shuffle(n: int, key: np.uint64) -> _Shuffle:
    bits = 1
    while (1 << bits) < n:
        bits += 1
    one = np.uint64(1)
    factor = (mix(key) | one, mix(key + one) | one, mix(key + np.uint64(2)) | one)
    add = (key, key >> one, key >> np.uint64(2))
    return _Shuffle(np.uint64(n), np.uint64((1 << bits) - 1), np.uint64((bits + 1) // 2), factor, add)


@kernel
def _permute(i: int, to: _Shuffle) -> int:
    x = np.uint64(i)
    while True:
        x = (x * to.factor[0] + to.add[0]) & to.mask
        x = x ^ (x >> to.half)
        x = (x * to.factor[1] + to.add[1]) & to.mask
        x = x ^ (x >> to.half)
        x = (x * to.factor[2] + to.add[2]) & to.mask
        x = x ^ (x >> to.half)
        if x < to.n:
            return np.int64(x)


@kernel
def _on_solid(b: Body, face: int, u: float, v: float) -> tuple[float, float, float]:
    """The point (u, v) in [0, 1)^2 of a face."""
    x0, y0, z0 = b.x0, b.y0, b.z0
    x, y, z = b.x1 - x0, b.y1 - y0, b.z1 - z0
    kind = b.kind
    if kind == BOX:
        if face == 0:
            return x0 + u * x, y0 + v * y, z0 + z
        if face <= 2:
            return x0 + (face - 1) * x, y0 + u * y, z0 + v * z
        return x0 + u * x, y0 + (face - 3) * y, z0 + v * z
    if kind == ELLIPSOID:
        up, angle = 2.0 * v - 1.0, 2.0 * math.pi * u
        flat = math.sqrt(1.0 - up * up)
        return (
            x0 + 0.5 * x * (1.0 + flat * math.cos(angle)),
            y0 + 0.5 * y * (1.0 + flat * math.sin(angle)),
            z0 + 0.5 * z * (1.0 + up),
        )
    if face < 2:
        along, across, rise = u, (0.5 * v if face == 0 else 1.0 - 0.5 * v), v
    else:
        fold = u + v >= 1.0
        u, v = (1.0 - u, 1.0 - v) if fold else (u, v)
        along, across, rise = float(face - 2), u + 0.5 * v, v
    if kind == GABLE_X:
        return x0 + along * x, y0 + across * y, z0 + rise * z
    return x0 + across * x, y0 + along * y, z0 + rise * z


@kernel
def _contains(b: Body, p: RGB) -> bool:
    x = (2.0 * p[0] - b.x0 - b.x1) / (b.x1 - b.x0)
    y = (2.0 * p[1] - b.y0 - b.y1) / (b.y1 - b.y0)
    z = (2.0 * p[2] - b.z0 - b.z1) / (b.z1 - b.z0)
    if max(abs(x), max(abs(y), abs(z))) >= 1.0:
        return False
    if b.kind == ELLIPSOID:
        return x * x + y * y + z * z < 1.0
    if b.kind == BOX:
        return True
    return 0.5 * (z + 1.0) + abs(y if b.kind == GABLE_X else x) < 1.0


@kernel
def inside_solid(c: Solids, p: RGB) -> bool:
    """Whether a point lies inside a solid or under the ground."""
    if p[2] <= 0.0:
        return True
    gy, gx = c.cells.shape
    i, j = np.int64(math.floor((p[0] - c.x0) / CELL)), np.int64(math.floor((p[1] - c.y0) / CELL))
    if i < 0 or j < 0 or i >= gx or j >= gy:
        return False
    cell = c.cells[j, i]
    if p[2] < cell.top:
        for at in range(cell.first, cell.last):
            if _contains(c.body[c.items[at]], p):
                return True
    return False


@kernel
def _draw(c: Solids, faces: Faces, share: float, u: float, v: float) -> tuple[int, RGB, RGB, bool]:
    """Surface, point, normal of a place in the cumulative table; and whether the point can be seen at all."""
    target = share * faces.cumulative[-1]
    f = faces.guide[min(np.int64(share * len(faces.guide)), len(faces.guide) - 1)]
    while faces.cumulative[f] <= target and f < len(faces.cumulative) - 1:
        f += 1
    up = (0.0, 0.0, 1.0)
    solids = len(c.body)
    if f >= FACES * solids:
        if f == FACES * solids:
            p = (c.dome * (2.0 * u - 1.0), c.dome * (2.0 * v - 1.0), 0.0)
            outside = abs(p[0]) > -c.x0 or abs(p[1]) > -c.y0
            return GROUND, p, up, outside and p[0] * p[0] + p[1] * p[1] < c.dome * c.dome
        flat = c.dome * math.sqrt(1.0 - v * v)
        return SKY, (flat * math.cos(2.0 * math.pi * u), flat * math.sin(2.0 * math.pi * u), c.dome * v), up, True
    s = f // FACES
    b = c.body[s]
    if f % FACES == _GROUND_FACE:
        column = math.floor((0.5 * (b.x0 + b.x1) - c.x0) / c.pitch_x)
        row = math.floor((0.5 * (b.y0 + b.y1) - c.y0) / c.pitch_y)
        p = (c.x0 + (column + u) * c.pitch_x, c.y0 + (row + v) * c.pitch_y, 0.0)
        return GROUND, p, up, not inside_solid(c, (p[0], p[1], 1e-3))
    p = _on_solid(b, f % FACES, u, v)
    n = normal_at(b, p)
    return s, p, n, not inside_solid(c, (p[0] + 1e-3 * n[0], p[1] + 1e-3 * n[1], p[2] + 1e-3 * n[2]))


@kernel
def _bell(h: int) -> float:
    """uint64 to a number of mean 0 and variance 1: the sum of its four 16-bit parts."""
    total = 0.0
    for _ in range(4):
        total += np.float64(h & np.uint64(0xFFFF)) + 0.5
        h = h >> np.uint64(16)
    return (total / 65536.0 - 2.0) * 1.7320508075688772


@kernel
def fill_points(
    c: Solids,
    faces: Faces,
    key: int,
    n: int,
    chunk: int,
    chunks: int,
    footprint: float,
    noise: float,
    xyz: np.ndarray,
    rgb: np.ndarray,
    first: int,
    last: int,
) -> None:
    """Strata first .. last of a chunk of a set of n points: the chunk holds every `chunks`-th stratum from `chunk` on.

    They go to hashed rows of xyz (float64 [m, 3]) and rgb (uint8 [m, 3]), arrays of the whole chunk: strata are walked
    in the order of the faces, which is easy on the memory, and leave in no order. noise: standard deviation in metres
    of each coordinate (near normal: Irwin-Hall of four). footprint: width in metres that a colour stands for.
    """
    to = _shuffle(len(xyz), key)
    for j in range(first, last):
        i = j * chunks + chunk
        row = _permute(j, to)
        share = (i + unit(hash2(key, i, 1))) / n
        u = unit(np.uint64(i) * _R2_X + key)
        v = unit(np.uint64(i) * _R2_Y + mix(key))
        s, p, normal, seen = _draw(c, faces, share, u, v)
        for again in range(_TRIES):
            if seen:
                break
            a, b = hash2(key, i, 3 * again + 2), hash2(key, i, 3 * again + 3)
            other = share + (2.0 * unit(a) - 1.0) * faces.window
            s, p, normal, seen = _draw(c, faces, other - math.floor(other), unit(b), unit(hash2(key, i, 3 * again + 4)))
        color = shade(c, s, normal, p, footprint)
        for axis in range(3):
            xyz[row, axis] = p[axis]
            rgb[row, axis] = np.uint8(255.0 * color[axis] + 0.5)
            if noise > 0.0:
                xyz[row, axis] += noise * _bell(hash2(key, i, 100 + axis))
