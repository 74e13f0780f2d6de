"""L1 + D-SSIM and its gradient on the device: the torch twin, and the launch of the Triton kernels.

Invariant: the loss is that of the CPU device: SSIM over windows that lie within the image (fused_ssim's "valid"), 1
where a side is under 11 pixels; the target is bytes / 255.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

TAPS, SIGMA = 11, 1.5  # Wang et al. 2004, section III.C
C1, C2 = 0.01**2, 0.03**2
COLUMNS = 128


def window_taps() -> list[float]:
    """The normalised Gaussian window."""
    taps = [math.exp(-((k - TAPS // 2) ** 2) / (2.0 * SIGMA**2)) for k in range(TAPS)]
    return [t / sum(taps) for t in taps]


@lru_cache(maxsize=4)
def _window(device: torch.device) -> Tensor:
    return torch.tensor(window_taps(), dtype=torch.float32, device=device)


def windows(height: int, width: int) -> int:
    """Number of values of SSIM: of 3 channels, over windows within the image."""
    return 3 * max(height - TAPS + 1, 0) * max(width - TAPS + 1, 0)


def l1_ssim_twin(image: Tensor, target: Tensor, ssim_lambda: float, scale: float) -> tuple[Tensor, Tensor]:
    """Gradient of `scale * total` with respect to image, float32 [H, W, 3]; and float64 [2]: L1 and SSIM.

    image float32 [H, W, 3], target uint8 [H, W, 3]; total = (1 - lambda) L1 + lambda (1 - SSIM).
    """
    with torch.enable_grad():
        x = image.detach().requires_grad_()
        y = target.to(torch.float32) / 255.0
        l1 = (x - y).abs().mean()
        ssim = _ssim(x, y) if windows(*image.shape[:2]) else None
        total = (1.0 - ssim_lambda) * l1 if ssim is None else (1.0 - ssim_lambda) * l1 + ssim_lambda * (1.0 - ssim)
        (grad,) = torch.autograd.grad(total * scale, x)
    values = [l1.detach(), torch.ones_like(l1) if ssim is None else ssim.detach()]
    return grad, torch.stack(values).to(torch.float64)


def _ssim(x: Tensor, y: Tensor) -> Tensor:
    window = _window(x.device)
    kernel = torch.outer(window, window).expand(3, 1, TAPS, TAPS)
    x, y = (v.permute(2, 0, 1)[None] - 0.5 for v in (x, y))  # variances do not change, and cancel less
    ex, ey, squares, product = (F.conv2d(v, kernel, groups=3) for v in (x, y, x * x + y * y, x * y))
    mx, my = ex + 0.5, ey + 0.5
    a, b = 2.0 * mx * my + C1, 2.0 * (product - ex * ey) + C2
    c, d = mx * mx + my * my + C1, squares - ex * ex - ey * ey + C2
    return (a * b / (c * d)).mean()


def l1_ssim(image: Tensor, target: Tensor, ssim_lambda: float, scale: float) -> tuple[Tensor, Tensor]:
    """See l1_ssim_twin."""
    from tidegs.device.cuda import ssim_kernels as kernels

    height, width = image.shape[:2]
    values, n_windows = 3 * height * width, windows(height, width)
    window, empty = _window(image.device), _empty(image)
    blocks, inner = -(-width // COLUMNS), max(-(-(width - TAPS + 1) // COLUMNS), 1)
    spread, ssim_sums = empty(0), empty(0)
    if n_windows:
        rows, columns = height - TAPS + 1, width - TAPS + 1
        filtered, maps = empty(12 * height * columns), empty(9 * rows * columns)
        ssim_sums = empty(3 * rows * inner)
        size = {"height": height, "width": width, "COLUMNS": COLUMNS}
        kernels.filter_rows_kernel[(inner, height, 3)](image, target, window, filtered, **size)
        kernels.maps_kernel[(inner, rows, 3)](filtered, window, maps, ssim_sums, **size)
        del filtered  # large; its memory serves again
        spread = empty(9 * height * columns)
        kernels.spread_columns_kernel[(inner, height, 3)](maps, window, spread, **size)
    grad, l1_sums = torch.empty_like(image), empty(3 * height * blocks)
    kernels.gradient_kernel[(blocks, height, 3)](
        image,
        target,
        window,
        spread,
        grad,
        l1_sums,
        height,
        width,
        scale * (1.0 - ssim_lambda) / values,
        -scale * ssim_lambda / max(n_windows, 1),
        WITH_SSIM=n_windows > 0,
        COLUMNS=COLUMNS,
    )
    l1 = l1_sums.sum(dtype=torch.float64) / values
    ssim = ssim_sums.sum(dtype=torch.float64) / n_windows if n_windows else torch.ones_like(l1)
    return grad, torch.stack([l1, ssim])


def _empty(like: Tensor) -> Callable[[int], Tensor]:
    return lambda n: torch.empty(n, dtype=torch.float32, device=like.device)
