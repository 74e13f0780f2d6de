"""Where the blocks lie and who needs them: the map from above, working sets of cameras, loads against arena sizes.

Invariant: computed from the last snapshot's bounds and the cameras alone, in memory that does not grow with Gaussians.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tidegs.device.base import RenderSettings, View
from tidegs.report.belady import cut, least_loads
from tidegs.report.pictures import png, ramp
from tidegs.residency import visibility

CELLS = 256  # of the map's longer side
CAMERAS = 400  # drawn on the map, and points of the curve of working sets
CURVE = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)  # arena sizes, shares of the scene


@dataclass(frozen=True)
class Sets:
    """Working sets of views as CSR, and how many views need each block."""

    offsets: np.ndarray  # int64 [views + 1]
    ids: np.ndarray  # int32
    blocks: int  # in the table

    @property
    def sizes(self) -> np.ndarray:
        """Blocks that each view needs."""
        return np.diff(self.offsets)

    @property
    def uses(self) -> np.ndarray:
        """Views that need each block, int64 [blocks]."""
        return np.bincount(self.ids, minlength=self.blocks)


def view_sets(table: np.ndarray, views: list[View], settings: RenderSettings) -> Sets:
    """What each view needs, by the bounds in the table."""
    return Sets(*visibility.view_sets(table, views, settings), len(table))


def set_sizes(sets: Sets, order: np.ndarray, blocks: int, arena: int | None) -> dict[str, Any]:
    """Sizes of working sets: along the order where it is known, else by camera. `arena`: slots."""
    sizes = sets.sizes[order[: 4 * len(sets.sizes)]] if len(order) else sets.sizes
    at = np.unique(np.linspace(0, len(sizes) - 1, min(CAMERAS, len(sizes))).round().astype(int))
    every = sets.sizes
    return {
        "along": "visit" if len(order) else "camera",
        "at": at.tolist(),
        "blocks": sizes[at].tolist(),
        "mean": float(every.mean()),
        "greatest": int(every.max()),
        "mean_share": float(every.mean() / max(1, blocks)),
        "arena": arena,
        "split_share": None if arena is None else float((every > arena).mean()),
    }


def loads_curve(sets: Sets, order: np.ndarray, blocks: int, marks: dict[str, int]) -> dict[str, Any]:
    """Fewest loads a visit for arenas of many sizes, and for the sizes (blocks) in `marks`."""
    used = cut(sets.offsets, order)
    capacities = sorted({max(1, round(blocks * s)) for s in CURVE})

    def a_visit(capacity: int) -> float:
        return least_loads(sets.offsets, sets.ids, used, sets.blocks, capacity) / len(used)

    return {
        "visits": len(used),
        "blocks": capacities,
        "loads": [a_visit(c) for c in capacities],
        "no_reuse": float(sets.sizes[used].mean()),
        "marks": {name: {"blocks": c, "loads": a_visit(c)} for name, c in marks.items()},
    }


def up_direction(views: list[View], table: np.ndarray) -> np.ndarray:
    """Which way is up, unit float64 [3]. Cameras held level have their x axes in the ground's plane, whichever way they
    look; where all look one way, it is what they hold upright; without cameras, the thinnest axis of the blocks."""
    if views:
        ups = -np.array([v.viewmat[1, :3] for v in views], np.float64).mean(axis=0)
        right = np.array([v.viewmat[0, :3] for v in views], np.float64)
        spread, axes = np.linalg.eigh(right.T @ right / len(views))
        if spread[1] > 0.05:
            up = axes[:, 0]
            return up if up @ ups >= 0 else -up
        if np.linalg.norm(ups) > 0.3:
            return ups / np.linalg.norm(ups)
    middles = _middles(table[table["count"] > 0])
    return np.linalg.svd(middles - middles.mean(axis=0), full_matrices=False)[2][2]


def block_map(table: np.ndarray, uses: np.ndarray, views: list[View], scale: float) -> dict[str, Any]:
    """The blocks seen from above: an image whose colour is the mean use of the blocks over each cell, with cameras on
    it. `uses` [blocks]; `scale`: scene units in a world unit. Lengths in world units."""
    used = table["count"] > 0
    rows, heat = table[used], uses[used].astype(np.float64)
    basis = _ground_basis(up_direction(views, table))
    low, high = _extent(_middles(rows) @ basis.T)
    span = max(float((high - low).max()), 1e-9)
    cell = span / CELLS
    shape = np.maximum(1, np.ceil((high - low) / cell).astype(int))  # [across, along]
    grid = _splat(rows, heat, basis, low, cell, shape)
    top = float(grid.max(initial=0.0))
    image = np.zeros((*grid.shape, 4), np.uint8)
    image[..., :3] = ramp(np.clip(grid, 0, None) / max(top, 1e-9))
    image[..., 3] = np.where(grid >= 0, 255, 0)
    return {
        "image": png(image[::-1]),
        "width": float(shape[0] * cell / scale),
        "height": float(shape[1] * cell / scale),
        "top": top,
        "blocks": int(used.sum()),
        "unused": int((heat == 0).sum()),
        "cameras": _cameras(views, basis, low, scale),
    }


def _middles(rows: np.ndarray) -> np.ndarray:
    return 0.5 * (rows["lo"].astype(np.float64) + rows["hi"])


def _ground_basis(up: np.ndarray) -> np.ndarray:
    """Two directions that span the ground, float64 [2, 3]: across and along, a right-handed frame with up."""
    axis = np.eye(3)[np.argmin(np.abs(up))]
    across = np.cross(axis, up)
    across /= np.linalg.norm(across)
    return np.stack([across, np.cross(up, across)])


def _extent(at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The box [2] that shows nearly all points; far outliers (a sky) are left out."""
    low, high = np.percentile(at, [4, 96], axis=0)
    room = np.maximum(0.1 * (high - low), 1e-9)
    return np.maximum(at.min(axis=0), low - room), np.minimum(at.max(axis=0), high + room) + 1e-9


def _splat(
    rows: np.ndarray, heat: np.ndarray, basis: np.ndarray, low: np.ndarray, cell: float, shape: np.ndarray
) -> np.ndarray:
    """float64 [along, across]: the mean heat of the blocks over each cell, where a block counts by its density: the
    few that span the whole scene (a sky) do not hide the others. -1 where there is none."""
    middle, half = _middles(rows), 0.5 * (rows["hi"].astype(np.float64) - rows["lo"])
    centre, reach = middle @ basis.T, half @ np.abs(basis).T
    first = np.clip(np.floor((centre - reach - low) / cell), -1, shape).astype(np.int64)
    last = np.clip(np.floor((centre + reach - low) / cell), -1, shape).astype(np.int64)
    weights = 1 / np.prod(last - first + 1, axis=1)
    total, heated = np.zeros((shape[1], shape[0])), np.zeros((shape[1], shape[0]))
    for i in range(len(rows)):
        (x0, y0), (x1, y1) = np.maximum(first[i], 0), last[i] + 1
        total[y0:y1, x0:x1] += weights[i]
        heated[y0:y1, x0:x1] += weights[i] * heat[i]
    return np.where(total > 0, heated / np.maximum(total, 1e-30), -1.0)


def _cameras(views: list[View], basis: np.ndarray, low: np.ndarray, scale: float) -> list[list[float]]:
    """[x, y, dx, dy] of up to CAMERAS views on the map: place, and where they look."""
    if not views:
        return []
    chosen = [views[i] for i in np.unique(np.linspace(0, len(views) - 1, min(CAMERAS, len(views))).astype(int))]
    out = []
    for view in chosen:
        rotation, shift = view.viewmat[:3, :3].astype(np.float64), view.viewmat[:3, 3].astype(np.float64)
        place = (basis @ (-rotation.T @ shift) - low) / scale
        out.append([float(f"{v:.5g}") for v in (*place, *(basis @ rotation[2]))])
    return out
