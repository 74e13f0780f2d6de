"""Rendering through gsplat: the stages of `gsplat.rasterization`, called one by one.

One by one, because the blocks of a camera may come in parts: rows are projected part by part, the image is drawn from
all of them, and each part's gradients are taken when its blocks are back. In one go they are `rasterization` to the
last bit (a test). Unpacked, because the gather has packed the rows: gsplat's own packing would project twice and copy
the SH coefficients once more.

Invariant: rows are projected with the camera of the whole image, whatever window of it is drawn: gsplat clamps its
Jacobian by the size of the image, so a cropped camera would give other splats near the edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from gsplat import fully_fused_projection, isect_offset_encode, isect_tiles, rasterize_to_pixels, spherical_harmonics
from torch import Tensor

from tidegs.device.base import TILE_SIZE, RenderSettings, View
from tidegs.device.cuda.rows import Params
from tidegs.device.cuda.staging import to_device
from tidegs.device.cuda.windows import Window


@dataclass(frozen=True)
class CameraTensors:
    """A view on the device."""

    viewmats: Tensor  # float32 [1, 4, 4]
    Ks: Tensor  # float32 [1, 3, 3]
    position: Tensor  # float32 [3], of the camera in the scene frame
    width: int
    height: int


def camera_tensors(view: View, device: torch.device, pose_grad: bool = False) -> CameraTensors:
    """The view, sent in one piece; with `pose_grad` its matrix and position are leaves of a graph."""
    position = np.linalg.inv(view.viewmat.astype(np.float64))[:3, 3]
    numbers = np.concatenate([view.viewmat.ravel(), view.K.ravel(), position]).astype(np.float32)
    sent = to_device(numbers, device)
    viewmats, Ks = sent[:16].view(1, 4, 4), sent[16:25].view(1, 3, 3).clone()  # kernels want aligned tensors
    place = sent[25:]
    if pose_grad:
        viewmats.requires_grad_()
        place.requires_grad_()
    return CameraTensors(viewmats, Ks, place, view.width, view.height)


@torch.no_grad()
def pose_gradient(camera: CameraTensors, by_viewmats: Tensor, by_position: Tensor) -> Tensor:
    """BlockUpdates.pose, float64 [3, 4], from gradients of `viewmats` and `position`: to first order [A | b] moves the
    camera by -R^T b, whatever A."""
    viewmat, by_viewmat = camera.viewmats[0].double(), by_viewmats[0].double()
    out = (by_viewmat[:3, None] * viewmat[None]).sum(-1)
    out[:, 3] -= (viewmat[:3, :3] * by_position.double()).sum(-1)
    return out


@dataclass
class Projected:
    """Packed rows in image space, part of a graph that leads to Params. All have a leading dimension of one camera."""

    radii: Tensor  # int32 [1, R, 2], 0 where the row is not visible in the whole image
    means2d: Tensor  # [1, R, 2] pixels
    conics: Tensor  # [1, R, 3]
    colors: Tensor  # [1, R, 3] rgb
    opacities: Tensor  # [1, R], compensation worked in
    depths: Tensor  # [1, R]

    @property
    def visible(self) -> Tensor:
        """bool [R]"""
        return (self.radii[0] > 0).all(-1)

    def differentiable(self, depth: bool = False) -> tuple[Tensor, ...]:
        """What the loss depends on; on the rows' depths only where it compares depth."""
        image = self.means2d, self.conics, self.colors, self.opacities
        return (*image, self.depths) if depth else image

    def leaves(self) -> Projected:
        """The same values, cut from the graph, as leaves of one of their own."""
        return Projected(self.radii, *(t.detach().requires_grad_() for t in self.differentiable(depth=True)))


def project(params: Params, camera: CameraTensors, settings: RenderSettings) -> Projected:
    """The first half of gsplat's `rasterization`: rows to image space, by the camera of the whole image."""
    radii, means2d, depths, conics, compensations = fully_fused_projection(
        params.means,
        None,
        params.quats,
        params.scales,
        camera.viewmats,
        camera.Ks,
        camera.width,
        camera.height,
        eps2d=settings.eps2d,
        near_plane=settings.near_plane,
        far_plane=settings.far_plane,
        radius_clip=settings.radius_clip,
        calc_compensations=settings.rasterize_mode == "antialiased",
        opacities=params.opacities,
    )
    opacities = params.opacities[None] if compensations is None else params.opacities[None] * compensations
    masks = (radii > 0).all(-1)
    rgb = spherical_harmonics(settings.sh_degree, params.means[None] - camera.position, params.sh[None], masks=masks)
    return Projected(radii, means2d, conics, torch.clamp_min(rgb + 0.5, 0.0), opacities, depths)


def joined(pieces: list[Projected]) -> Projected:
    """Pieces one behind the other, as leaves."""
    if len(pieces) == 1:
        return pieces[0].leaves()
    names = ("radii", "means2d", "conics", "colors", "opacities", "depths")
    return Projected(*(torch.cat([getattr(p, name).detach() for p in pieces], 1) for name in names)).leaves()


@dataclass
class Drawn:
    """A window that was drawn, with the graph from its pixels back to the leaves."""

    window: Window
    rgb: Tensor  # [h, w, 3], background blended in
    alpha: Tensor  # [h, w]
    depth: Tensor | None  # [h, w]
    means2d: Tensor  # as gsplat saw them: a backward pass with absgrad leaves its result in their `.absgrad`


def draw(leaves: Projected, window: Window, settings: RenderSettings, with_depth: bool, absgrad: bool) -> Drawn:
    """The second half of gsplat's `rasterization`, for a window of the image: bin, sort, blend."""
    device = leaves.depths.device
    means2d = leaves.means2d
    if window.x0 or window.y0:
        means2d = means2d - to_device(np.array([window.x0, window.y0], np.float32), device)
    down, across = window.tiles
    _, keys, ids = isect_tiles(means2d, leaves.radii, leaves.depths, TILE_SIZE, across, down)
    offsets = isect_offset_encode(keys, 1, across, down).reshape(1, down, across)
    colors, backgrounds = leaves.colors, _background(settings, device)
    if with_depth:
        colors = torch.cat([colors, leaves.depths[..., None]], -1)
        if backgrounds is not None:
            backgrounds = torch.cat([backgrounds, torch.zeros_like(backgrounds[:, :1])], -1)
    out, alphas = rasterize_to_pixels(
        means2d,
        leaves.conics,
        colors,
        leaves.opacities,
        window.width,
        window.height,
        TILE_SIZE,
        offsets,
        ids,
        backgrounds=backgrounds,
        absgrad=absgrad,
    )
    depth = out[0, ..., 3] if with_depth else None
    return Drawn(window, out[0, ..., :3], alphas[0, ..., 0], depth, means2d)


def _background(settings: RenderSettings, device: torch.device) -> Tensor | None:
    if not any(settings.background):
        return None
    return to_device(np.array([settings.background], np.float32), device)
