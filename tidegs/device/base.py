"""The seam between the trainer and a device: what a pass is made of, and what a device does with it.

Invariant: nothing above this file knows where the arena lies or who rasterizes.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import IntFlag
from typing import Literal, Protocol

import numpy as np

from tidegs.gaussians.layout import RecordLayout

TILE_SIZE = 16  # pixels, as gsplat's default


class BlockFlags(IntFlag):
    """Where a camera stands among the cameras of its step that need a block; a step of one camera has both set."""

    FIRST_OF_STEP = 4  # `grads` holds nothing yet
    LAST_OF_STEP = 8  # after this pass the block's gradients are complete: the optimizer runs
    ALL = 12


@dataclass(frozen=True)
class View:
    """A pinhole camera as a device sees it. Frames: scene frame -> OpenCV camera frame (x right, y down, z forward)."""

    viewmat: np.ndarray  # float32 [4, 4], world to camera
    K: np.ndarray  # float32 [3, 3], pixels; pixel centres at +0.5
    width: int
    height: int


@dataclass(frozen=True)
class RenderSettings:
    """What gsplat.rasterization is told; same names, same defaults."""

    sh_degree: int = 3  # bands in use, at most the layout's
    near_plane: float = 0.01
    far_plane: float = 1e10
    eps2d: float = 0.3
    radius_clip: float = 0.0
    rasterize_mode: Literal["classic", "antialiased"] = "classic"
    background: tuple[float, float, float] = (0.0, 0.0, 0.0)
    absgrad: bool = False  # statistics sum the absolute gradients of pixels (AbsGS, arXiv 2404.10484)
    pose_grad: bool = False  # updates tell the gradient of the view matrix


@dataclass(frozen=True)
class AdamSettings:
    """One optimizer step (Kingma & Ba 2015, eq. as in torch.optim.Adam), for visible rows only, or, where `dense`, for
    all rows of the blocks whose step ends; then bounds hold wherever momentum alone can still take a row.

    Learning rates by attribute, in the order means, quats, scales, opacities, sh0, shN. `step` counts from 1 and gives
    the bias corrections, for all rows alike (as torch.optim.SparseAdam does).

    `opacity_reg` and `scale_reg` are the gradients of the loss by each opacity and each scale (not logarithmic), beside
    those of the image. Where `cameras`, the cameras of the step, is not 0, what densification goes by is added to the
    `stats` plane for every row that a camera sees: the norm of its mean's gradient in image space (with
    RenderSettings.absgrad, of the sum of the absolute gradients of the pixels), in units of half the image and times
    `cameras`; 1; and the greatest radius as a share of the image's longer side, where the layout has a third component.
    """

    lrs: tuple[float, float, float, float, float, float]
    step: int
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-15
    opacity_reg: float = 0.0
    scale_reg: float = 0.0
    cameras: int = 0
    dense: bool = False

    @property
    def drift(self) -> float:
        """How far momentum alone can still take a value, in learning rates times |m| / sqrt(v): the sum of the powers
        of beta1 / sqrt(beta2), by which that ratio shrinks in each step; a little more, over any rounding."""
        ratio = self.beta1 / math.sqrt(self.beta2)
        return 1.01 * ratio / (1.0 - ratio)

    @property
    def reach(self) -> tuple[float, float]:
        """How far momentum alone can still take means and scales after this step: factors of |m| / (sqrt(v) + eps);
        zero unless `dense`."""
        far = self.drift / (1.0 - self.beta1**self.step) if self.dense else 0.0
        return self.lrs[0] * far, self.lrs[2] * far


@dataclass(frozen=True)
class PassBlocks:
    """The blocks of one pass, in ascending block id (which breaks depth ties), all resident."""

    slots: np.ndarray  # int32 [n], arena slots
    counts: np.ndarray  # int32 [n], rows in use
    flags: np.ndarray  # uint8 [n], BlockFlags; read by `update` only


@dataclass
class BlockUpdates:
    """What `update` learned of each block of the pass; rows as in PassBlocks. Valid where LAST_OF_STEP was set."""

    lo: np.ndarray  # float32 [n, 3], least mean of the rows in use, after the update
    hi: np.ndarray  # float32 [n, 3], greatest mean
    extent: np.ndarray  # float32 [n], greatest exp(scale) of any row and axis (one sigma, scene units)
    visible: np.ndarray  # int32 [n], rows that the optimizer updated (radius > 0 in a camera of the step)
    touched: np.ndarray  # bool [n], the slot's bytes changed (record or scratch)
    # With RenderSettings.pose_grad, float64 [k, 3, 4], whatever the flags: its sum over k is the blocks' share of the
    # loss's gradient by [A | b], at the identity, where the view matrix becomes [A | b] times itself. On the CPU k = n.
    pose: np.ndarray | None


@dataclass(frozen=True)
class MeanNoise:
    """Noise for the means of whole blocks (3DGS-MCMC, arXiv 2404.09591, equation 10): to each row, R S^2 R^T times
    normal numbers times the block's scale times sigmoid(100 (0.005 - opacity)).

    Number k of a row is by Box and Muller from the two halves of SplitMix64's hash number row * 8 + k of the key.
    """

    keys: np.ndarray  # uint64 [n]
    scales: np.ndarray  # float32 [n]
    min_opacity: float  # up to which a row is dead


@dataclass
class NoisedBlocks:
    """What `add_noise` learned of each block; bounds as in BlockUpdates."""

    lo: np.ndarray  # float32 [n, 3]
    hi: np.ndarray  # float32 [n, 3]
    extent: np.ndarray  # float32 [n]
    mass: np.ndarray  # float64 [n], sum of the opacities of rows that are not dead
    dead: np.ndarray  # int32 [n], rows of at most `min_opacity`


@dataclass
class Frame:
    """One image being rendered, and what a device keeps with it."""

    image: np.ndarray  # float32 [3, height, width], rgb, background blended in
    alpha: np.ndarray  # float32 [height, width]
    depth: np.ndarray | None = None  # float32 [height, width], accumulated (gsplat "D"); on request


@dataclass(frozen=True)
class SparseDepth:
    """Points that an image is known to show, for its loss: see tidegs.device.sparse_depth."""

    xy: np.ndarray  # float32 [n, 2], pixels, at least half a pixel inside the image
    disparity: np.ndarray  # float32 [n], 1 / depth
    weight: float


@dataclass(frozen=True)
class LossValue:
    """Scalars of one image; `total` is what was differentiated."""

    total: float
    l1: float
    ssim: float
    exposure_grad: np.ndarray | None  # float [3, 4], of `total` times the scale; where an exposure was given


class Device(Protocol):
    """One device. All calls come from one thread, except `upload` and `download`, each of which has its own."""

    name: str

    def open_arena(self, layout: RecordLayout, slots: int) -> None:
        """Allocates the arena: `slots` slots of layout.slot_nbytes, once."""

    def host_region(self, nbytes: int) -> np.ndarray:
        """Memory for the host cache: zeroed uint8 [nbytes], aligned to pages, from which `upload` is fastest (pinned on
        CUDA). It is the caller's until `close`."""

    def upload(self, host: list[np.ndarray], slots: list[int]) -> None:
        """Copies host slots (uint8 [slot_nbytes] each) into arena slots; returns when they may be used."""

    def download(self, slots: list[int], host: list[np.ndarray]) -> None:
        """Copies arena slots into host slots; returns when they may be used."""

    def edit(self, slots: list[int]) -> AbstractContextManager[list[np.ndarray]]:
        """Inside, arena slots as host memory (uint8) that may be changed: what is written there is in the arena
        afterwards. Called by the thread that renders, between two passes."""

    def new_frame(self, view: View, depth: bool = False) -> Frame: ...

    # One camera at a time: begin, add each part of its blocks, finish; then, to train, loss, differentiate, and update
    # each part. The parts have the camera's blocks in ascending order; between two calls the arena is the caller's, so
    # a camera may need more blocks than the arena holds. Bits do not depend on how the blocks are parted.

    def begin(self, view: View, settings: RenderSettings, frame: Frame) -> None:
        """Starts a camera; what was kept of the last one is void."""

    def add(self, blocks: PassBlocks) -> None:
        """Projects the next part of the camera's blocks, and keeps what the image needs of their visible rows."""

    def finish(self, frame: Frame) -> None:
        """Renders the whole image from all parts into the frame."""

    def loss(
        self,
        frame: Frame,
        target: np.ndarray,
        ssim_lambda: float,
        scale: float = 1.0,
        mask: np.ndarray | None = None,
        exposure: np.ndarray | None = None,
        points: SparseDepth | None = None,
    ) -> LossValue:
        """(1 - ssim_lambda) L1 + ssim_lambda (1 - SSIM) against target (uint8 [height, width, 3]); its gradient with
        respect to the image, times `scale`, stays with the frame for `differentiate`. Pixels where `mask` (uint8
        [height, width]) is 0 do not count: see tidegs.device.masking. With `exposure` (float32 [3, 4]) the image is
        transformed before it is compared: see tidegs.device.exposure. With `points`, of a frame with depth, their
        disparities are compared too, and the gradient by alpha and depth stays likewise."""

    def differentiate(self, frame: Frame) -> None:
        """The loss's gradient in image space, for every visible row; kept for `update`."""

    def update(self, part: int, blocks: PassBlocks, adam: AdamSettings) -> BlockUpdates:
        """Gradients of the parameters of part number `part` (counted in order of `add`), in any order of parts. Blocks
        whose LAST_OF_STEP flag is set are updated by Adam; those of the others are added to `grads`."""

    def add_noise(self, blocks: PassBlocks, noise: MeanNoise, adam: AdamSettings) -> NoisedBlocks:
        """Moves the means of all rows in use of the blocks, after the step `adam` has ended for them. Called by the
        thread that renders, between two passes."""

    def close(self) -> None: ...
