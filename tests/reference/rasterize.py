"""Torch reference of `gsplat.rasterization` (1.5.3, CUDA kernels' semantics) that runs on a CPU, for tests only.

Invariant: projection and SH are gsplat's own torch functions; what they leave out of the CUDA kernels (culling rules,
opacity-aware radius, the pixel stage) is written here after ProjectionEWA3DGSFused.cu, IntersectTile.cu and
RasterizeToPixels3DGS{Fwd,Bwd}.cu. Everything differentiable is left to autograd, in the dtype of `means`.
"""

from __future__ import annotations

import torch
from gsplat.cuda import _torch_impl as gs
from torch import Tensor

TILE_SIZE = 16
ALPHA_THRESHOLD = 1.0 / 255.0
ALPHA_MAX = 0.999
TRANSMITTANCE_STOP = 1e-4
MAX_EXTENT = 3.33  # sigmas


def render(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor,
    sh: Tensor,
    viewmat: Tensor,
    K: Tensor,
    width: int,
    height: int,
    sh_degree: int,
    near_plane: float = 0.01,
    far_plane: float = 1e10,
    eps2d: float = 0.3,
    radius_clip: float = 0.0,
    rasterize_mode: str = "classic",
    background: tuple[float, float, float] = (0.0, 0.0, 0.0),
) -> dict[str, Tensor]:
    """Renders N Gaussians: means [N, 3], quats [N, 4] wxyz, linear scales [N, 3], opacities [N] in 0..1, sh [N, K, 3].

    Returns
        image [H, W, 3] with the background blended in, alpha [H, W], depth [H, W] (accumulated z: gsplat's "D"),
        radii int32 [N, 2] (0 where culled), means2d [N, 2] (0 where culled; its gradient is retained), and
        means2d_abs [N, 2], which a backward pass fills: sum over pixels of the absolute gradient (gsplat's `absgrad`).
    """
    antialiased = rasterize_mode == "antialiased"
    cull = (width, height, near_plane, far_plane, eps2d, radius_clip, antialiased)
    with torch.no_grad():
        radii = visible_radii(means, quats, scales, opacities, viewmat, K, *cull)
    rows = (radii > 0).all(-1).nonzero()[:, 0]

    covars, _ = gs._quat_scale_to_covar_preci(quats[rows], scales[rows], compute_preci=False)
    _, xy, depths, conics, compensations = gs._fully_fused_projection(
        means[rows], covars, viewmat[None], K[None], width, height, eps2d, near_plane, far_plane, antialiased
    )
    opac = opacities[rows] * compensations[0] if antialiased else opacities[rows]

    # All rows' means2d stand in the graph between projection and pixels, as gsplat's unpacked `meta["means2d"]` does.
    means2d = torch.zeros_like(means[:, :2]).index_put((rows,), xy[0])
    if means2d.requires_grad:
        means2d.retain_grad()
    means2d_abs = torch.zeros_like(means2d, requires_grad=False)

    campos = torch.inverse(viewmat)[:3, 3]
    rgb = gs._spherical_harmonics(sh_degree, means[rows] - campos, sh[rows])
    channels = torch.cat([torch.clamp_min(rgb + 0.5, 0.0), depths[0][:, None]], -1)

    order = torch.argsort(depths[0].detach(), stable=True)  # ties by index
    front = _Splats(
        means2d[rows][order], conics[0][order], opac[order], channels[order], radii[rows][order], rows[order]
    )
    colors, alpha = _rasterize(front, width, height, means2d_abs)
    image = colors[..., :3] + (1.0 - alpha)[..., None] * alpha.new_tensor(background)
    return {
        "image": image,
        "alpha": alpha,
        "depth": colors[..., 3],
        "radii": radii,
        "means2d": means2d,
        "means2d_abs": means2d_abs,
    }


def visible_radii(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor,
    viewmat: Tensor,
    K: Tensor,
    width: int,
    height: int,
    near_plane: float,
    far_plane: float,
    eps2d: float,
    radius_clip: float,
    antialiased: bool,
) -> Tensor:
    """Radii int32 [N, 2] in pixels as projection_ewa_3dgs_fused_fwd_kernel gives them; 0 where it culls.

    The box is opacity-aware: beyond sqrt(2 ln(opacity / threshold)) sigmas alpha is under the threshold
    (Radl et al. 2024, arXiv 2402.00525, section B.2).
    """
    covars, _ = gs._quat_scale_to_covar_preci(quats, scales, compute_preci=False)
    means_c, covars_c = gs._world_to_cam(means, covars, viewmat[None])
    means2d, cov2d = (x[0] for x in gs._persp_proj(means_c, covars_c, K[None], width, height))
    z = means_c[0, :, 2]
    var_x, var_y, cov = cov2d[:, 0, 0], cov2d[:, 1, 1], cov2d[:, 0, 1]
    det_orig = var_x * var_y - cov * cov2d[:, 1, 0]
    var_x, var_y = var_x + eps2d, var_y + eps2d
    det = var_x * var_y - cov * cov2d[:, 1, 0]

    if antialiased:
        opacities = opacities * torch.sqrt(torch.clamp_min(det_orig / det, 0.0))
    extent = torch.sqrt(2.0 * torch.log(opacities / ALPHA_THRESHOLD)).clamp_max(MAX_EXTENT)
    rx = torch.ceil(extent * torch.sqrt(var_x))
    ry = torch.ceil(extent * torch.sqrt(var_y))

    culled = (z < near_plane) | (z > far_plane) | (det <= 0.0) | (opacities < ALPHA_THRESHOLD)
    culled |= (rx <= radius_clip) & (ry <= radius_clip)
    culled |= (means2d[:, 0] + rx <= 0) | (means2d[:, 0] - rx >= width)
    culled |= (means2d[:, 1] + ry <= 0) | (means2d[:, 1] - ry >= height)
    radii = torch.where(culled[:, None], torch.zeros_like(means2d), torch.stack([rx, ry], -1))
    return radii.to(torch.int32)


class _Splats:
    """Projected Gaussians, front to back."""

    def __init__(self, xy: Tensor, conics: Tensor, opacities: Tensor, channels: Tensor, radii: Tensor, ids: Tensor):
        self.xy, self.conics, self.opacities, self.channels, self.ids = xy, conics, opacities, channels, ids
        r, at = radii.to(xy.dtype) / TILE_SIZE, xy.detach() / TILE_SIZE
        self.tile_min, self.tile_max = torch.floor(at - r), torch.ceil(at + r)  # exclusive max

    def in_tile(self, tx: int, ty: int) -> Tensor:
        """Indices of the splats whose radius box touches the tile, front to back."""
        tile = self.xy.new_tensor([tx, ty])
        return ((self.tile_min <= tile) & (tile < self.tile_max)).all(-1).nonzero()[:, 0]


def _rasterize(splats: _Splats, width: int, height: int, means2d_abs: Tensor) -> tuple[Tensor, Tensor]:
    """Blends every tile; returns channels [H, W, C] and alpha [H, W]."""
    rows = []
    for y in range(0, height, TILE_SIZE):
        tiles = []
        for x in range(0, width, TILE_SIZE):
            w, h = min(TILE_SIZE, width - x), min(TILE_SIZE, height - y)
            tiles.append(_blend_tile(splats, x, y, w, h, means2d_abs))
        rows.append(torch.cat(tiles, 1))
    out = torch.cat(rows, 0)
    return out[..., :-1], out[..., -1]


def _blend_tile(splats: _Splats, x: int, y: int, w: int, h: int, means2d_abs: Tensor) -> Tensor:
    """Front-to-back blending of one tile, all pixels by all its splats at once: [h, w, C + 1], alpha last."""
    ids = splats.in_tile(x // TILE_SIZE, y // TILE_SIZE)
    like = splats.xy
    if len(ids) == 0:
        return like.new_zeros(h, w, splats.channels.shape[1] + 1)
    py, px = torch.meshgrid(
        torch.arange(y, y + h, dtype=like.dtype) + 0.5, torch.arange(x, x + w, dtype=like.dtype) + 0.5, indexing="ij"
    )
    delta = splats.xy[ids] - torch.stack([px.reshape(-1), py.reshape(-1)], -1)[:, None]  # [pixels, n, 2]
    if delta.requires_grad:
        rows = splats.ids[ids]
        delta.register_hook(lambda g: _add_abs(means2d_abs, rows, g))
    dx, dy = delta.unbind(-1)
    a, b, c = splats.conics[ids].unbind(-1)
    sigma = 0.5 * (a * dx * dx + c * dy * dy) + b * dx * dy
    # The clamp passes no gradient above ALPHA_MAX and all of it at or below, as the CUDA backward does.
    alpha = torch.clamp_max(splats.opacities[ids] * torch.exp(-sigma), ALPHA_MAX)
    alpha = torch.where((sigma < 0.0) | (alpha < ALPHA_THRESHOLD), torch.zeros_like(alpha), alpha)
    # The splat that would take the transmittance to the stop is not rendered, nor is any behind it.
    alive = torch.cumprod(1.0 - alpha.detach(), 1) > TRANSMITTANCE_STOP
    alpha = alpha * alive
    after = torch.cumprod(1.0 - alpha, 1)
    before = torch.cat([torch.ones_like(after[:, :1]), after[:, :-1]], 1)
    out = torch.cat([(alpha * before) @ splats.channels[ids], 1.0 - after[:, -1:]], 1)
    return out.reshape(h, w, -1)


def _add_abs(into: Tensor, rows: Tensor, grad: Tensor) -> None:
    into.index_add_(0, rows, grad.abs().sum(0))
