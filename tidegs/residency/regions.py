"""Splits a camera that exceeds the arena into regions: contiguous ranges of its 16x16 tiles in Morton order.

Invariant: the split depends on the needed sets and the limits alone, never on what is resident.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidegs.device import tiles
from tidegs.device.base import TILE_SIZE, Region, RenderSettings, View
from tidegs.errors import CapacityError
from tidegs.residency.visibility import Bounds, needed_among, view_planes


@dataclass(frozen=True)
class RegionSet:
    """A region and the blocks that it needs (int32, ascending)."""

    region: Region
    ids: np.ndarray


def split_view(
    bounds: Bounds,
    view: View,
    settings: RenderSettings,
    ids: np.ndarray,
    limit: int,
    capacity: int,
    inflate: float = 0.0,
) -> list[RegionSet]:
    """Regions that together cover the view, in ascending order, each needing at most `limit` of the blocks `ids`; a
    single tile may need up to `capacity`. Raises CapacityError where even a tile needs more."""
    width, height = view.width, view.height
    leaves: list[RegionSet] = []

    def descend(region: Region, ids: np.ndarray) -> None:
        rect = tiles.pixel_rects(width, height, region, at_most=1)[0]
        needed = needed_among(bounds, ids, view_planes(view, settings, rect, inflate))
        if len(needed) <= limit or region.last - region.first == 1:
            leaves.append(RegionSet(region, needed))
            return
        for part in tiles.split(width, height, region):
            descend(part, needed)

    descend(tiles.whole(width, height), ids)
    worst = max(len(leaf.ids) for leaf in leaves)
    if worst > capacity:
        raise CapacityError(
            f"a single tile of {TILE_SIZE}x{TILE_SIZE} pixels needs {worst} blocks at once but the device arena "
            f"holds {capacity}: give it room for at least {worst} blocks (--device-memory), "
            f"or build the store with smaller blocks"
        )
    return _merge(leaves, limit)


def _merge(leaves: list[RegionSet], limit: int) -> list[RegionSet]:
    """Joins neighbours as long as their union stays within the limit."""
    out = [leaves[0]]
    for leaf in leaves[1:]:
        union = np.union1d(out[-1].ids, leaf.ids)
        if len(union) <= limit:
            out[-1] = RegionSet(Region(out[-1].region.first, leaf.region.last), union)
        else:
            out.append(leaf)
    return out
