"""Sparse neighbours become one block when both are settled: which ones, and how rows go from one to the other.

Invariant: pairs follow from ids and the table alone, as they are before the settlement; the rows of the block with the
lower id go to the other, which is settled later or with it, however the settlement is parted.
"""

from __future__ import annotations

import numpy as np

from tidegs.store.spatial import Box, hilbert
from tidegs.train.strategies.rows import Planes, new_planes

SPARSE = 0.25  # of its capacity, up to which a block is sparse
GIVES = 0.5  # up to which it gives its rows away, if settling has filled it meanwhile
_MOST = 128  # pairs of a settlement: what they give waits in host memory
_WIDER, _LARGER = 2.0, 4.0  # how much the union may be wider than either, or the splats of one than the other's


def pairs_of(table: np.ndarray, ids: np.ndarray, capacity: int) -> dict[int, int]:
    """Of the blocks `ids` (int32, ascending), the ones that give their rows away, and to whom: neighbours along the
    Hilbert curve whose union is no longer than twice the longer one, with splats of like size."""
    counts = table["count"][ids]
    sparse = ids[(counts > 0) & (counts <= SPARSE * capacity)]
    if len(sparse) < 2:
        return {}
    lo, hi = table["lo"][sparse].astype(np.float64), table["hi"][sparse].astype(np.float64)
    middle = (lo + hi) / 2
    half = max(float(np.ptp(middle, axis=0).max()) / 2, 1e-12)
    box = Box((middle.min(axis=0) + middle.max(axis=0)) / 2, half)
    order = np.argsort(hilbert(middle.astype(np.float32), box), kind="stable")
    sides, sizes = (hi - lo).max(axis=1), table["extent"][sparse].astype(np.float64)
    out: dict[int, int] = {}
    at = 0
    while at + 1 < len(order) and len(out) < _MOST:
        a, b = order[at], order[at + 1]
        union = (np.maximum(hi[a], hi[b]) - np.minimum(lo[a], lo[b])).max()
        fits = union <= _WIDER * max(sides[a], sides[b]) and _alike(sizes[a], sizes[b])
        if fits:
            one, other = sorted((int(sparse[a]), int(sparse[b])))
            out[one] = other
        at += 2 if fits else 1
    return out


def _alike(a: float, b: float) -> bool:
    return max(a, b) <= _LARGER * min(a, b)


def joined(planes: Planes, count: int, more: Planes) -> Planes:
    """The first `count` rows of `planes`, then all rows of `more`, in new planes."""
    out = new_planes(planes, count + more.base.shape[1])
    for target, first, second in zip(out, planes, more, strict=True):
        target[:, :count], target[:, count:] = first[:, :count], second
    return out
