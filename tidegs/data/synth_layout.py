"""The solids of the generated city: boxes, gable roofs and ellipsoids, block by block, and the grid that finds them.

Invariant: everything follows from (seed, extent) by counter-based hashing. Metres; x east, y north, z up; the ground is
z = 0 and the city is centred on the origin.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tidegs.data.synth_hash import seed_key, uniforms

BOX, ELLIPSOID, GABLE_X, GABLE_Y = 0, 1, 2, 3  # kinds; a gable's ridge runs along the named axis
BRICK, PLASTER, GLASS, TILES, FLAT_ROOF, LEAVES, PAINT, WOOD, COPPER = range(9)  # materials
HOUSES, APARTMENTS, TOWERS, PARK = 0, 1, 2, 3  # uses of a block

PITCH = 50.0  # metres from road centre to road centre, before fitting to the extent
ASPHALT = 4.6  # half width of the carriageway
KERB = 6.6  # half width of carriageway and pavement: where the lots begin
CELL = 10.0  # size of a grid cell

_USE_SHARES = (0.40, 0.65, 0.87)  # cumulative: houses, apartments, towers, the rest parks
_BRICKS = ((0.66, 0.36, 0.27), (0.72, 0.52, 0.38), (0.56, 0.30, 0.26), (0.78, 0.68, 0.54))
_PLASTERS = ((0.86, 0.80, 0.68), (0.80, 0.66, 0.54), (0.72, 0.76, 0.74), (0.90, 0.86, 0.80), (0.76, 0.70, 0.52))
_GLASSES = ((0.34, 0.46, 0.56), (0.28, 0.40, 0.44), (0.46, 0.50, 0.54), (0.52, 0.46, 0.38))
_TILES = ((0.62, 0.30, 0.22), (0.42, 0.34, 0.32), (0.52, 0.26, 0.20), (0.36, 0.38, 0.42))
_LEAVES = ((0.26, 0.40, 0.18), (0.34, 0.46, 0.18), (0.20, 0.34, 0.18), (0.46, 0.46, 0.20))
_PAINTS = ((0.75, 0.12, 0.12), (0.88, 0.88, 0.90), (0.14, 0.15, 0.18), (0.18, 0.32, 0.62), (0.85, 0.72, 0.18))
_ROOFS = ((0.56, 0.55, 0.53), (0.44, 0.44, 0.46), (0.64, 0.60, 0.54))
_WOODS = ((0.36, 0.27, 0.20),)
_COPPERS = ((0.42, 0.62, 0.54), (0.70, 0.66, 0.58))


# One solid. Few arrays with records, because numba counts references of each array it hands from kernel to kernel.
BODY = np.dtype(
    [
        *((name, np.float64) for name in ("x0", "y0", "z0", "x1", "y1", "z1")),  # the box around it
        ("key", np.uint64),  # for textures
        *((name, np.float32) for name in ("red", "green", "blue")),  # base colour in [0, 1]
        ("kind", np.uint8),
        ("material", np.uint8),
    ],
    align=True,
)
CELLS = np.dtype([("first", np.int64), ("last", np.int64), ("top", np.float64)])


class Solids(NamedTuple):
    """All that numba kernels need. n solids, [ny, nx] blocks, [gy, gx] grid cells."""

    body: np.ndarray  # BODY [n]
    cells: np.ndarray  # CELLS [gy, gx]: range in `items`, greatest z of the cell's solids
    items: np.ndarray  # int32, solids of each cell in ascending order
    use: np.ndarray  # uint8 [ny, nx], of each block
    x0: float  # the corner (least x, y) of the city and of the grid
    y0: float
    pitch_x: float  # block spacing
    pitch_y: float
    top: float  # greatest z of all solids
    dome: float  # radius of the sky and of the ground disc
    key: np.uint64  # for textures of the ground and the sky


class _Builder:
    """Collects solids; every array argument is broadcast over the blocks at hand."""

    def __init__(self) -> None:
        self.parts: list[tuple[np.ndarray, ...]] = []

    def add(
        self,
        kind: int | np.ndarray,
        material: int,
        palette: tuple[tuple[float, float, float], ...],
        pick: np.ndarray,
        center: tuple[np.ndarray, np.ndarray],
        half: tuple[np.ndarray | float, np.ndarray | float],
        z: tuple[np.ndarray | float, np.ndarray | float],
        keep: np.ndarray | None = None,
    ) -> None:
        """One solid for each element of `pick` (uniform in [0, 1), chooses the colour) where `keep`."""
        n = len(pick)
        cols = [np.broadcast_to(np.asarray(a, np.float64), n) for a in (*center, *half, *z)]
        cx, cy, hx, hy, z0, z1 = cols
        lo = np.stack([cx - hx, cy - hy, z0], 1)
        hi = np.stack([cx + hx, cy + hy, z1], 1)
        shade = 0.9 + 0.2 * ((pick * 97.0) % 1.0)
        colors = np.asarray(palette)[(pick * len(palette)).astype(np.int64)] * shade[:, None]
        mask = np.ones(n, bool) if keep is None else keep
        kinds = np.broadcast_to(np.asarray(kind, np.uint8), n)
        self.parts.append((kinds[mask], lo[mask], hi[mask], np.full(int(mask.sum()), material, np.uint8), colors[mask]))

    def tree(self, u: np.ndarray, cx: np.ndarray, cy: np.ndarray, size: float, keep: np.ndarray | None = None) -> None:
        """Trunk and crown; u: uniforms [3, n]."""
        trunk = size * (0.35 + 0.15 * u[0])
        crown = size * (0.28 + 0.12 * u[1])
        self.add(BOX, WOOD, _WOODS, u[2], (cx, cy), (0.16, 0.16), (0.0, trunk + 0.5), keep)
        self.add(ELLIPSOID, LEAVES, _LEAVES, u[2], (cx, cy), (crown, crown), (trunk, trunk + crown * 2.3), keep)


class _Lots(NamedTuple):
    ids: np.ndarray  # int64 [n]
    cx: np.ndarray  # float64 [n], centre of the lot
    cy: np.ndarray
    hx: float  # half sizes of a lot
    hy: float


def _houses(b: _Builder, lots: _Lots, key: np.uint64) -> None:
    dx, dy = 2.0 * lots.hx / 3.0, lots.hy
    for plot in range(6):
        u = uniforms(key, lots.ids * 6 + plot, 14)
        row = 1.0 if plot >= 3 else -1.0
        cx = lots.cx + (plot % 3 - 1) * dx
        cy = lots.cy + row * 0.54 * lots.hy
        hw, hd, tall = 0.33 * dx + 0.5 * u[0], 0.24 * dy + 0.8 * u[1], np.where(u[2] < 0.3, 3.0, 6.0)
        b.add(BOX, BRICK, _BRICKS + _PLASTERS, u[3], (cx, cy), (hw, hd), (0.0, tall))
        ridge = np.where(u[4] < 0.5, GABLE_X, GABLE_Y)
        b.add(ridge, TILES, _TILES, u[5], (cx, cy), (hw + 0.4, hd + 0.4), (tall, tall + 2.6 + u[6]))
        chimney = (cx + (u[7] - 0.5) * hw, cy + 0.3 * hd)
        b.add(BOX, BRICK, _BRICKS, u[7], chimney, (0.4, 0.4), (tall, tall + 3.4 + u[6]))
        garden = lots.cy + row * 0.12 * lots.hy
        b.tree(u[8:11], cx + (u[8] - 0.5) * dx * 0.5, garden, 6.5, u[11] < 0.75)
        b.add(BOX, LEAVES, _LEAVES, u[12], (cx + 0.47 * dx, cy), (0.3, hd), (0.0, 1.1 + 0.4 * u[13]))
        b.add(BOX, WOOD, ((0.6, 0.5, 0.4),), u[13], (cx - 0.3 * dx, garden), (1.2, 0.9), (0.0, 2.2), u[12] < 0.6)


def _apartments(b: _Builder, lots: _Lots, key: np.uint64) -> None:
    depth = min(4.6, 0.3 * lots.hx, 0.3 * lots.hy)
    for side in range(4):
        u = uniforms(key, lots.ids * 4 + side, 12)
        sign = 1.0 if side % 2 else -1.0
        if side < 2:
            cx, cy, hx, hy = lots.cx, lots.cy + sign * (lots.hy - depth - 0.6), lots.hx - 0.6, depth
        else:
            cx, cy, hx, hy = lots.cx + sign * (lots.hx - depth - 0.6), lots.cy, depth, lots.hy - 2.0 * depth - 1.0
        tall = 3.0 * (4.0 + np.floor(4.0 * u[0]))
        material = BRICK if side == 2 else PLASTER
        b.add(BOX, material, _BRICKS if side == 2 else _PLASTERS, u[1], (cx, cy), (hx, hy), (0.0, tall))
        for k in range(2):
            at = (cx + (u[2 + k] - 0.5) * 1.4 * hx, cy + (u[4 + k] - 0.5) * hy)
            b.add(BOX, FLAT_ROOF, _ROOFS, u[6], at, (1.0 + u[2], 0.9 + u[3]), (tall, tall + 1.5 + u[7]), u[8] < 0.8)
        b.tree(u[9:12], cx * 0.3 + lots.cx * 0.7, cy * 0.3 + lots.cy * 0.7, 8.0)


def _towers(b: _Builder, lots: _Lots, key: np.uint64) -> None:
    u = uniforms(key, lots.ids, 16)
    cx, cy, h = lots.cx, lots.cy, min(lots.hx, lots.hy)
    b.add(BOX, PLASTER, _PLASTERS, u[0], (cx, cy), (0.86 * lots.hx, 0.86 * lots.hy), (0.0, 6.0))
    ax, ay, aw = cx - 0.34 * h, cy + (u[1] - 0.5) * 0.5 * h, (0.32 + 0.08 * u[2]) * h
    tall = 3.0 * (9.0 + np.floor(5.0 * u[3]))
    upper = tall + 3.0 * (2.0 + np.floor(3.0 * u[4]))
    b.add(BOX, GLASS, _GLASSES, u[5], (ax, ay), (aw, aw), (6.0, tall))
    b.add(BOX, GLASS, _GLASSES, u[5], (ax, ay), (0.7 * aw, 0.7 * aw), (tall, upper))
    b.add(BOX, FLAT_ROOF, _ROOFS, u[6], (ax, ay), (0.3 * aw, 0.4 * aw), (upper, upper + 2.5))
    ex, ey, ew = cx + 0.44 * h, cy - (u[7] - 0.5) * 0.5 * h, (0.24 + 0.06 * u[8]) * h
    lower = 3.0 * (5.0 + np.floor(5.0 * u[9]))
    b.add(BOX, GLASS, _GLASSES, u[10], (ex, ey), (ew, 1.3 * ew), (6.0, lower), u[11] < 0.8)
    b.add(ELLIPSOID, COPPER, _COPPERS, u[12], (ex, ey), (ew, ew), (3.0, 10.0 + 2.0 * u[13]), u[11] >= 0.8)
    b.add(BOX, FLAT_ROOF, _ROOFS, u[14], (ex, ey), (0.4 * ew, 0.5 * ew), (lower, lower + 1.8), u[11] < 0.8)


def _parks(b: _Builder, lots: _Lots, key: np.uint64) -> None:
    for k in range(16):
        u = uniforms(key, lots.ids * 16 + k, 6)
        cx = lots.cx + ((k % 4 + 0.2 + 0.6 * u[3]) / 2.0 - 1.0) * lots.hx * 0.95
        cy = lots.cy + ((k // 4 + 0.2 + 0.6 * u[4]) / 2.0 - 1.0) * lots.hy * 0.95
        clear = (np.abs(cx - lots.cx) > 6.0) | (np.abs(cy - lots.cy) > 6.0)
        b.tree(u[:3], cx, cy, 9.0, clear & (u[5] < 0.9))
    u = uniforms(key, lots.ids * 16 + 2**40, 4)
    b.add(BOX, PLASTER, _PLASTERS, u[0], (lots.cx, lots.cy), (3.4, 3.4), (0.0, 3.0))
    b.add(ELLIPSOID, COPPER, _COPPERS, u[1], (lots.cx, lots.cy), (3.2, 3.2), (0.2, 5.8 + u[2]))


def _streets(b: _Builder, lots: _Lots, key: np.uint64) -> None:
    """Trees on the pavements and parked cars at the kerbs around each lot."""
    for k in range(8):
        u = uniforms(key, lots.ids * 16 + k, 6)
        along, sign = ((k // 2 + 0.5) / 2.0 - 1.0), (1.0 if k % 2 else -1.0)
        b.tree(u[:3], lots.cx + sign * (lots.hx + 1.1), lots.cy + along * lots.hy, 6.0, u[3] < 0.7)
    for k in range(8):
        u = uniforms(key, lots.ids * 16 + 8 + k, 6)
        along, sign = ((k // 2 + 0.3 + 0.4 * u[0]) / 2.0 - 1.0) * 0.85, (1.0 if k % 2 else -1.0)
        gap = KERB - ASPHALT + 1.05
        keep = u[1] < 0.6
        if k < 4:
            cx, cy, hx, hy = lots.cx + along * lots.hx, lots.cy + sign * (lots.hy + gap), 2.1, 0.85
        else:
            cx, cy, hx, hy = lots.cx + sign * (lots.hx + gap), lots.cy + along * lots.hy, 0.85, 2.1
        b.add(BOX, PAINT, _PAINTS, u[2], (cx, cy), (hx, hy), (0.25, 0.95), keep)
        b.add(BOX, PAINT, ((0.16, 0.18, 0.22),), u[3], (cx, cy), (hx * 0.62, hy * 0.62), (0.95, 1.5), keep)


def _grid(lo: np.ndarray, hi: np.ndarray, origin: np.ndarray, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """`cells` and `items` of solids over a grid of [gy, gx] cells."""
    gy, gx = shape
    limit = np.array([gx - 1, gy - 1])
    first = np.clip(np.floor((lo[:, :2] - origin) / CELL).astype(np.int64), 0, limit)
    last = np.clip(np.floor((hi[:, :2] - origin) / CELL).astype(np.int64), 0, limit)
    span = (last - first).max(axis=0) + 1
    cells, items = [], []
    for dy in range(span[1]):
        for dx in range(span[0]):
            at = first + np.array([dx, dy])
            inside = np.flatnonzero((at <= last).all(axis=1))
            cells.append(at[inside, 1] * gx + at[inside, 0])
            items.append(inside)
    cell, item = np.concatenate(cells), np.concatenate(items)
    order = np.lexsort((item, cell))
    count = np.bincount(cell, minlength=gy * gx)
    cells_ = np.zeros(gy * gx, CELLS)
    cells_["last"] = np.cumsum(count)
    cells_["first"] = cells_["last"] - count
    np.maximum.at(cells_["top"], cell, hi[item, 2])
    return cells_.reshape(gy, gx), item[order].astype(np.int32)


def lay_out(seed: int, extent: tuple[float, float]) -> Solids:
    """The solids of a city of extent (x, y) metres, in blocks of about 50 m that fill it exactly."""
    nx, ny = (max(1, round(e / PITCH)) for e in extent)
    pitch = np.array([extent[0] / nx, extent[1] / ny])
    origin = -0.5 * np.asarray(extent, np.float64)
    ids = np.arange(nx * ny)
    rank = np.empty(nx * ny, np.int64)
    rank[np.argsort(uniforms(seed_key(seed, 0), ids, 1)[0], kind="stable")] = ids
    use = np.searchsorted(_USE_SHARES, (rank + 0.5) / len(ids)).astype(np.uint8)

    half = pitch / 2.0 - KERB
    cx = origin[0] + (ids % nx + 0.5) * pitch[0]
    cy = origin[1] + (ids // nx + 0.5) * pitch[1]
    b = _Builder()
    for kind, build in ((HOUSES, _houses), (APARTMENTS, _apartments), (TOWERS, _towers), (PARK, _parks)):
        m = use == kind
        if m.any():
            build(b, _Lots(ids[m], cx[m], cy[m], half[0], half[1]), seed_key(seed, 10 + kind))
    _streets(b, _Lots(ids, cx, cy, half[0], half[1]), seed_key(seed, 20))

    kinds, lo, hi, materials, tints = (np.concatenate(p) for p in zip(*b.parts, strict=True))
    block = np.floor((lo[:, :2] + hi[:, :2] - 2.0 * origin) / (2.0 * pitch)).astype(np.int64)
    near = np.argsort(block[:, 1] * nx + block[:, 0], kind="stable")  # neighbours lie together in memory
    kinds, lo, hi, materials, tints = kinds[near], lo[near], hi[near], materials[near], tints[near]
    body = np.zeros(len(lo), BODY)
    columns = (*lo.T, *hi.T, *np.clip(tints, 0.0, 1.0).T, kinds, materials)
    names = ("x0", "y0", "z0", "x1", "y1", "z1", "red", "green", "blue", "kind", "material")
    for name, column in zip(names, columns, strict=True):
        body[name] = column
    body["key"] = uniforms(seed_key(seed, 1), np.arange(len(lo)), 1)[0] * 2.0**53
    cells, items = _grid(lo, hi, origin, (int(np.ceil(extent[1] / CELL)), int(np.ceil(extent[0] / CELL))))
    reach = float(np.hypot(*extent)) / 2.0
    return Solids(
        body=body,
        cells=cells,
        items=items,
        use=use.reshape(ny, nx),
        x0=float(origin[0]),
        y0=float(origin[1]),
        pitch_x=float(pitch[0]),
        pitch_y=float(pitch[1]),
        top=float(hi[:, 2].max()),
        dome=reach + max(80.0, 0.1 * reach),
        key=seed_key(seed, 2),
    )
