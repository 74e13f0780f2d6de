"""Rendering through gsplat: a whole image by `gsplat.rasterization`, a part of one by the same stages one by one.

Invariant: rows are projected with the camera of the whole image, whatever part of it is drawn: gsplat's Jacobian is
clamped by the size of the image, so a cropped camera would give other splats near its edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from gsplat import fully_fused_projection, isect_offset_encode, isect_tiles, rasterize_to_pixels, spherical_harmonics
from gsplat import rasterization as gsplat_rasterization
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


def camera_tensors(view: View, device: torch.device) -> CameraTensors:
    """The view, sent in one piece."""
    position = np.linalg.inv(view.viewmat.astype(np.float64))[:3, 3]
    numbers = np.concatenate([view.viewmat.ravel(), view.K.ravel(), position]).astype(np.float32)
    sent = to_device(numbers, device)
    viewmats, Ks = sent[:16].view(1, 4, 4), sent[16:25].view(1, 3, 3).clone()  # kernels want aligned tensors
    return CameraTensors(viewmats, Ks, sent[25:], view.width, view.height)


@dataclass
class Picture:
    """What was drawn: rgb [h, w, 3] with the background blended in (part of a graph), alpha and depth [h, w]."""

    rgb: Tensor
    alpha: Tensor
    depth: Tensor | None


def rasterize(
    params: Params, camera: CameraTensors, settings: RenderSettings, with_depth: bool
) -> tuple[Picture, Tensor]:
    """The whole image, and which rows are visible in it (bool [R]).

    `packed` is off: the gather has packed the rows already, so nearly all are visible, and gsplat's own packing would
    project twice and copy the SH coefficients once more.
    """
    colors, alphas, meta = gsplat_rasterization(
        *params.tensors(),
        camera.viewmats,
        camera.Ks,
        camera.width,
        camera.height,
        near_plane=settings.near_plane,
        far_plane=settings.far_plane,
        radius_clip=settings.radius_clip,
        eps2d=settings.eps2d,
        sh_degree=settings.sh_degree,
        packed=False,
        tile_size=TILE_SIZE,
        backgrounds=_background(settings, params.means),
        render_mode="RGB+D" if with_depth else "RGB",
        rasterize_mode=settings.rasterize_mode,
    )
    return _picture(colors[0], alphas[0], with_depth), (meta["radii"][0] > 0).all(-1)


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

    def differentiable(self) -> tuple[Tensor, ...]:
        """In the order of `carry`: 2 + 3 + 3 + 1 components. Nothing is asked of depth's gradient."""
        return self.means2d, self.conics, self.colors, self.opacities

    def leaves(self) -> Projected:
        """The same values, cut from the graph, as leaves of one of their own."""
        means2d, conics, colors, opacities = (t.detach().requires_grad_() for t in self.differentiable())
        return Projected(self.radii, means2d, conics, colors, opacities, self.depths.detach())


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


def draw(projected: Projected, window: Window, settings: RenderSettings, with_depth: bool) -> tuple[Picture, Tensor]:
    """The second half of gsplat's `rasterization`, for one window; pixels of tiles that do not belong are undefined.

    Also returns means2d as gsplat saw them: a backward pass leaves the sums of absolute gradients in their `.absgrad`.
    """
    device = projected.depths.device
    means2d = projected.means2d - to_device(np.array([window.x0, window.y0], np.float32), device)
    down, across = window.tiles.shape
    _, keys, ids = isect_tiles(means2d, projected.radii, projected.depths, TILE_SIZE, across, down)
    offsets = isect_offset_encode(keys, 1, across, down).reshape(1, down, across)
    colors, backgrounds = projected.colors, _background(settings, means2d)
    if with_depth:
        colors = torch.cat([colors, projected.depths[..., None]], -1)
        backgrounds = (
            None if backgrounds is None else torch.cat([backgrounds, torch.zeros_like(backgrounds[:, :1])], -1)
        )
    out, alphas = rasterize_to_pixels(
        means2d,
        projected.conics,
        colors,
        projected.opacities,
        window.width,
        window.height,
        TILE_SIZE,
        offsets,
        ids,
        backgrounds=backgrounds,
        masks=None if window.full else to_device(window.tiles[None], device),
        absgrad=True,
    )
    return _picture(out[0], alphas[0], with_depth), means2d


def _background(settings: RenderSettings, like: Tensor) -> Tensor | None:
    if not any(settings.background):
        return None
    return to_device(np.array([settings.background], np.float32), like.device)


def _picture(colors: Tensor, alphas: Tensor, with_depth: bool) -> Picture:
    return Picture(colors[..., :3], alphas[..., 0], colors[..., 3].detach() if with_depth else None)
