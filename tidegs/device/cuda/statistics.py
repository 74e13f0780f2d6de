"""What densification asks of an update: statistics of rows that a camera saw, and the regularisation of MCMC.

Invariant: rows of a part are distinct, so each entry of a plane is written once, and no order of additions matters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tidegs.device.base import AdamSettings, View
from tidegs.device.cuda.arena import Arena
from tidegs.device.cuda.rows import Blocks, Params

_OVERFLOW = 1e18  # a norm beyond it comes of a degenerate splat, and does not count


def collect(
    arena: Arena,
    blocks: Blocks,
    rows: Tensor,
    seen: Tensor,
    gradient: Tensor,
    radii: Tensor,
    view: View,
    adam: AdamSettings,
) -> None:
    """Adds to the `stats` planes what AdamSettings says, of packed rows [R] where `seen` (bool [R]). `gradient`
    (float32 [R, 2]) by pixels, `radii` (int32 [R, 2])."""
    slot, row = blocks.slots[rows // arena.layout.capacity].long(), rows % arena.layout.capacity
    stats = arena.plane("stats")
    norm = torch.hypot(
        gradient[:, 0] * (0.5 * view.width * adam.cameras), gradient[:, 1] * (0.5 * view.height * adam.cameras)
    )
    stats[slot, 0, row] += torch.where(seen & (norm < _OVERFLOW), norm, 0.0)
    stats[slot, 1, row] += seen.to(torch.float32)
    if stats.shape[1] > 2:
        share = radii.amax(1).to(torch.float32) / max(view.width, view.height)
        stats[slot, 2, row] = torch.where(seen, torch.maximum(stats[slot, 2, row], share), stats[slot, 2, row])


def regularise(grads: Params, rows: Tensor, adam: AdamSettings) -> None:
    """Adds the gradients of the regularisation, by activated scales and opacities, where `rows` (bool [R])."""
    if adam.scale_reg:
        grads.scales = grads.scales + adam.scale_reg * rows[:, None]
    if adam.opacity_reg:
        grads.opacities = grads.opacities + adam.opacity_reg * rows
