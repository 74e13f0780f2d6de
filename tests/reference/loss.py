"""Torch twin of the fused L1 + D-SSIM loss: the formulas written out, differentiated by autograd, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

WINDOW, SIGMA = 11, 1.5
C1, C2 = 0.01**2, 0.03**2


def gaussian_window(dtype: torch.dtype = torch.float64) -> Tensor:
    """The 11 taps of the separable window, summing to 1."""
    k = torch.arange(WINDOW, dtype=dtype) - WINDOW // 2
    taps = torch.exp(-(k**2) / (2 * SIGMA**2))
    return taps / taps.sum()


def ssim_map(x: Tensor, y: Tensor) -> Tensor:
    """SSIM (Wang et al. 2004, eq. 13) of each window within the image: x, y [3, H, W] -> [3, H - 10, W - 10]."""
    taps = gaussian_window(x.dtype)

    def blur(z: Tensor) -> Tensor:
        z = torch.nn.functional.conv2d(z[:, None], taps.reshape(1, 1, -1, 1))
        return torch.nn.functional.conv2d(z, taps.reshape(1, 1, 1, -1))[:, 0]

    mu_x, mu_y = blur(x), blur(y)
    var_x, var_y, cov = blur(x * x) - mu_x**2, blur(y * y) - mu_y**2, blur(x * y) - mu_x * mu_y
    return (2 * mu_x * mu_y + C1) * (2 * cov + C2) / ((mu_x**2 + mu_y**2 + C1) * (var_x + var_y + C2))


def ssim_l1(image: Tensor, target: Tensor, ssim_lambda: float) -> tuple[Tensor, Tensor, Tensor]:
    """L1, SSIM and the total of image [3, H, W] against target uint8 [H, W, 3]; SSIM is 1 where no window fits."""
    y = target.permute(2, 0, 1).to(image.dtype) / 255
    l1 = (image - y).abs().mean()
    fits = min(image.shape[1:]) >= WINDOW
    ssim = ssim_map(image, y).mean() if fits else torch.ones((), dtype=image.dtype)
    return l1, ssim, (1 - ssim_lambda) * l1 + ssim_lambda * (1 - ssim)
