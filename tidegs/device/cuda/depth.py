"""Sparse depth in torch: see tidegs.device.sparse_depth, which this follows.

Invariant: nothing here waits for the device.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tidegs.device.base import SparseDepth
from tidegs.device.cuda.frame import CudaFrame
from tidegs.device.cuda.staging import to_device
from tidegs.device.sparse_depth import LEAST_ALPHA
from tidegs.errors import DeviceError


def disparity_l1(frame: CudaFrame, points: SparseDepth, scale: float) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The mean over points, and the gradients by coverage and distance of the weight times `scale` times it."""
    if frame.distance is None:
        raise DeviceError("depths were to be compared in a frame without: ask new_frame for depth")
    alpha, depth = (t.detach().requires_grad_() for t in (frame.coverage, frame.distance))
    if not len(points.xy):
        return torch.zeros((), device=depth.device), (torch.zeros_like(alpha), torch.zeros_like(depth))
    height, width = depth.shape
    sent = to_device(np.column_stack([points.xy - 0.5, points.disparity]).astype(np.float32), depth.device)
    x, y, wanted = sent.unbind(1)
    x0, y0 = x.long().clamp(0, width - 1), y.long().clamp(0, height - 1)
    x1, y1 = (x0 + 1).clamp_max(width - 1), (y0 + 1).clamp_max(height - 1)
    fx, fy = x - x0, y - y0
    corners = ((x0, y0, (1 - fx) * (1 - fy)), (x1, y0, fx * (1 - fy)), (x0, y1, (1 - fx) * fy), (x1, y1, fx * fy))
    with torch.enable_grad():
        each = [w * depth[v, u] / alpha[v, u].clamp_min(LEAST_ALPHA) for u, v, w in corners]
        found = torch.stack(each).sum(0)
        seen = found > 0
        disparity = torch.where(seen, 1.0 / torch.where(seen, found, torch.ones_like(found)), torch.zeros_like(found))
        mean = (disparity - wanted).abs().mean()
        by_alpha, by_depth = torch.autograd.grad(mean, (alpha, depth), torch.full_like(mean, points.weight * scale))
    return mean.detach(), (by_alpha, by_depth)
