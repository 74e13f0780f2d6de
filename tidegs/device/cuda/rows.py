"""What the kernels work on: the blocks of a pass and the rows of them that a camera may see, packed.

Invariant: a packed row is the number `block * capacity + row`, ascending, `block` counted within the pass; so packed
order is the order of (block id, row), which breaks depth ties.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tidegs.device.base import AdamSettings, BlockFlags, RenderSettings, View

RADIUS_SIGMAS = 3.33  # gsplat's greatest radius
ALPHA_THRESHOLD = 1.0 / 255.0  # gsplat's least alpha
EXTENT_MARGIN = 1.000002  # exp rounds differently on each device; bounds must not be too small


@dataclass(frozen=True)
class Blocks:
    """The blocks of a pass on the device."""

    slots: Tensor  # int32 [n]
    counts: Tensor  # int32 [n]
    flags: np.ndarray  # uint8 [n], BlockFlags, on the host

    def __len__(self) -> int:
        return len(self.flags)

    def flagged(self, flag: BlockFlags) -> np.ndarray:
        """bool [n]: blocks with the flag."""
        return (self.flags & np.uint8(flag)) != 0

    @property
    def all_alone(self) -> bool:
        """Whether no other camera of the step needs any of them."""
        return bool((self.flagged(BlockFlags.FIRST_OF_STEP) & self.flagged(BlockFlags.LAST_OF_STEP)).all())


@dataclass(frozen=True)
class Camera:
    """A view as numbers; the kernels take it as arguments, so nothing is copied to the device for it."""

    rotation: tuple[float, ...]  # 9, row by row, scene frame to camera frame
    translation: tuple[float, ...]  # 3
    fx: float
    fy: float
    cx: float
    cy: float
    width: int
    height: int


def camera_of(view: View) -> Camera:
    """The numbers of a view."""
    return Camera(
        rotation=tuple(float(v) for v in view.viewmat[:3, :3].ravel()),
        translation=tuple(float(v) for v in view.viewmat[:3, 3]),
        fx=float(view.K[0, 0]),
        fy=float(view.K[1, 1]),
        cx=float(view.K[0, 2]),
        cy=float(view.K[1, 2]),
        width=view.width,
        height=view.height,
    )


@dataclass
class Params:
    """Packed rows, activated, as gsplat takes them; also their gradients, with respect to the activated values."""

    means: Tensor  # float32 [R, 3]
    quats: Tensor  # [R, 4] wxyz, not normalised
    scales: Tensor  # [R, 3] linear
    opacities: Tensor  # [R] in 0..1
    sh: Tensor  # [R, (degree + 1)^2, 3], bands in use

    def tensors(self) -> tuple[Tensor, ...]:
        return self.means, self.quats, self.scales, self.opacities, self.sh


def empty_params(rows: int, sh_degree: int, device: torch.device) -> Params:
    """Room for packed rows."""
    bands = (sh_degree + 1) ** 2
    shapes = ((rows, 3), (rows, 4), (rows, 3), (rows,), (rows, bands, 3))
    return Params(*(torch.empty(shape, dtype=torch.float32, device=device) for shape in shapes))


@dataclass(frozen=True)
class AdamNumbers:
    """One step of Adam, with the bias corrections worked in, as float64."""

    rates: tuple[float, ...]  # means, quats, scales, opacities, sh0, shN; over the first bias correction
    gain1: float  # 1 - beta1: taken before rounding to float32, as torch.optim.Adam does
    beta2: float
    gain2: float  # 1 - beta2
    eps: float
    inv_sqrt_bias2: float


def adam_numbers(adam: AdamSettings) -> AdamNumbers:
    """Kingma & Ba 2015, algorithm 1, in the order of torch.optim.Adam."""
    bias1, bias2 = 1.0 - adam.beta1**adam.step, 1.0 - adam.beta2**adam.step
    rates = tuple(lr / bias1 for lr in adam.lrs)
    return AdamNumbers(rates, 1.0 - adam.beta1, adam.beta2, 1.0 - adam.beta2, adam.eps, bias2**-0.5)


@dataclass(frozen=True)
class Reach:
    """How far momentum alone can still take rows: the factors of |m| / (sqrt(v) + eps)."""

    means: float
    scales: float
    eps: float


def reach_of(adam: AdamSettings) -> Reach | None:
    """None where only rows that cameras see move."""
    return Reach(*adam.reach, adam.eps) if adam.dense else None


@dataclass(frozen=True)
class Culling:
    """The limits of gsplat's culling that the gather applies ahead of it, never more strictly."""

    near: float
    far: float
    eps2d: float
    radius_clip: float


def culling_of(settings: RenderSettings) -> Culling:
    """The limits of the settings."""
    return Culling(settings.near_plane, settings.far_plane, settings.eps2d, settings.radius_clip)
