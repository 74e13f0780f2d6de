"""How far a view may look so that the blocks it needs hold no more than so many rows.

Invariant: nearer blocks come first; the near side of a block counts.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tidegs.device.base import RenderSettings, View
from tidegs.residency.visibility import Bounds, needed_blocks, view_planes


def reach_of(bounds: Bounds, counts: np.ndarray, view: View, settings: RenderSettings, rows: int) -> RenderSettings:
    """The settings, with a nearer far plane where the view's needed blocks hold more than `rows` rows; at least the
    nearest block stays. `counts`: rows of all blocks."""
    ids = needed_blocks(bounds, view_planes(view, settings))
    held = counts[ids]
    if held.sum(dtype=np.int64) <= rows:
        return settings
    boxes = bounds.blocks[:, ids].astype(np.float64)
    forward, offset = view.viewmat[2, :3].astype(np.float64), float(view.viewmat[2, 3])
    near = forward @ boxes[:3] + offset - np.abs(forward) @ boxes[3:6]
    order = np.argsort(near, kind="stable")
    fits = int(np.searchsorted(np.cumsum(held[order], dtype=np.int64), rows, side="right"))
    first_out = near[order[max(fits, 1)]] if fits < len(order) - 1 else near[order[-1]]
    return replace(settings, far_plane=max(float(first_out) * (1 - 1e-5), settings.near_plane * 1.01))
