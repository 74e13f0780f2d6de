"""The CUDA functions of gsplat 1.5.3 as torch operations on a CPU, so that gsplat's own Python runs without a GPU.

Invariant: signatures and meaning are those of gsplat/cuda/include/Ops.h; what the CUDA kernels leave undefined is NaN
here, so that code which relies on it fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from gsplat.cuda import _torch_impl as gs
from gsplat.cuda import _wrapper
from torch import Tensor

from tests.reference.rasterize import _blend_tile, visible_radii

NAN = float("nan")


@contextmanager
def gsplat_on_cpu() -> Iterator[None]:
    """gsplat's lazy CUDA functions are those of this file inside."""
    before = _wrapper._make_lazy_cuda_func, _wrapper._make_lazy_cuda_obj
    _wrapper._make_lazy_cuda_func = OPS.__getitem__
    _wrapper._make_lazy_cuda_obj = lambda name: name
    try:
        yield
    finally:
        _wrapper._make_lazy_cuda_func, _wrapper._make_lazy_cuda_obj = before


def projection_fwd(
    means, covars, quats, scales, opacities, viewmats, Ks, width, height, eps2d, near, far, clip, compensate, model
) -> tuple[Tensor, ...]:
    assert (covars, model) == (None, "CameraModelType.PINHOLE")
    radii = visible_radii(
        means, quats, scales, opacities, viewmats[0], Ks[0], width, height, near, far, eps2d, clip, compensate
    )[None]
    seen = (radii > 0).all(-1)
    out = _project(means, quats, scales, viewmats, Ks, width, height, eps2d, near, far, compensate)
    undefined = (NAN, NAN, NAN, 0.0)  # compensations are zeroed beforehand
    return radii, *(torch.where(_like(seen, t), t, torch.full_like(t, u)) for t, u in zip(out, undefined, strict=True))


def projection_bwd(
    means, covars, quats, scales, viewmats, Ks, width, height, eps2d, model, radii, conics, compensations,
    v_means2d, v_depths, v_conics, v_compensations, viewmats_requires_grad,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    seen = (radii[0] > 0).all(-1)
    outs = [torch.zeros_like(t) for t in (means, quats, scales)]
    leaves = [t[seen].detach().requires_grad_() for t in (means, quats, scales)]
    viewmats = viewmats.detach().requires_grad_()
    with torch.enable_grad():
        compensate = v_compensations is not None
        made = _project(*leaves, viewmats, Ks, width, height, eps2d, 0.0, 1e30, compensate)
        shares = [v[:, seen] for v in (v_means2d, v_depths, v_conics)]
        if compensate:
            shares.append(v_compensations[:, seen])
        *grads, by_viewmats = torch.autograd.grad(made[: len(shares)], [*leaves, viewmats], shares)
        for out, grad in zip(outs, grads, strict=True):
            out[seen] = grad
    return outs[0], None, outs[1], outs[2], by_viewmats if viewmats_requires_grad else None


def _project(means, quats, scales, viewmats, Ks, width, height, eps2d, near, far, compensate) -> tuple[Tensor, ...]:
    covars, _ = gs._quat_scale_to_covar_preci(quats, scales, compute_preci=False)
    _, means2d, depths, conics, compensations = gs._fully_fused_projection(
        means, covars, viewmats, Ks, width, height, eps2d, near, far, True
    )
    return means2d, depths, conics, compensations


def sh_fwd(degree: int, dirs: Tensor, coeffs: Tensor, masks: Tensor | None) -> Tensor:
    colors = gs._spherical_harmonics(degree, dirs, coeffs)
    return colors if masks is None else torch.where(masks[..., None], colors, torch.full_like(colors, NAN))


def sh_bwd(bases: int, degree: int, dirs, coeffs, masks, v_colors, compute_v_dirs: bool) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        dirs, coeffs = dirs.detach().requires_grad_(), coeffs.detach().requires_grad_()
        v = v_colors if masks is None else torch.where(masks[..., None], v_colors, 0.0)
        colors = gs._spherical_harmonics(degree, dirs, coeffs)
        v_dirs, v_coeffs = torch.autograd.grad(colors, (dirs, coeffs), v, allow_unused=True)
    return v_coeffs, torch.zeros_like(dirs) if v_dirs is None else v_dirs


def intersect_tile(
    means2d, radii, depths, image_ids, gaussian_ids, images, tile_size, across, down, sort, segmented
) -> tuple[Tensor, Tensor, Tensor]:
    assert (image_ids, images, sort, segmented) == (None, 1, True, False)
    xy, r = means2d[0].numpy() / np.float32(tile_size), radii[0].numpy() / np.float32(tile_size)
    seen = (radii[0] > 0).all(-1).numpy()
    limits = np.array([across, down])
    low = np.clip(np.floor(np.where(seen[:, None], xy - r, 0)), 0, limits).astype(np.int64)
    high = np.clip(np.ceil(np.where(seen[:, None], xy + r, 0)), 0, limits).astype(np.int64)
    sizes = high - low
    counts = sizes.prod(1)
    ids = np.repeat(np.arange(len(xy)), counts)
    nth = np.arange(len(ids)) - np.repeat(np.cumsum(counts) - counts, counts)
    wide = np.maximum(sizes[ids, 0], 1)
    tiles = (low[ids, 1] + nth // wide) * across + low[ids, 0] + nth % wide
    keys = (tiles << 32) | depths[0].numpy().view(np.uint32).astype(np.int64)[ids]
    order = np.argsort(keys, kind="stable")
    return (
        torch.from_numpy(counts.astype(np.int32))[None],
        torch.from_numpy(keys[order]),
        torch.from_numpy(ids[order].astype(np.int32)),
    )


def intersect_offset(keys: Tensor, images: int, across: int, down: int) -> Tensor:
    tiles = torch.arange(across * down)
    return torch.searchsorted(keys >> 32, tiles).to(torch.int32).reshape(images, down, across)


class _Listed:
    """Splats in the order of `flatten_ids`, as the reference's blending takes them."""

    def __init__(self, xy, conics, opacities, channels, offsets, ids) -> None:
        self.xy, self.conics, self.opacities, self.channels = xy, conics, opacities, channels
        self.ids = torch.arange(len(xy))
        self._offsets, self._flat = torch.cat([offsets.flatten(), torch.tensor([len(ids)])]).tolist(), ids.long()
        self._across = offsets.shape[-1]

    def in_tile(self, tx: int, ty: int) -> Tensor:
        tile = ty * self._across + tx
        return self._flat[self._offsets[tile] : self._offsets[tile + 1]]


def _pixels(
    means2d, conics, colors, opacities, backgrounds, masks, width, height, tile_size, offsets, ids, absolute
) -> tuple[Tensor, Tensor]:
    splats = _Listed(means2d[0], conics[0], opacities[0], colors[0], offsets, ids)
    rows = []
    for y in range(0, height, tile_size):
        row = []
        for x in range(0, width, tile_size):
            w, h = min(tile_size, width - x), min(tile_size, height - y)
            if masks is not None and not masks[0, y // tile_size, x // tile_size]:
                empty = torch.zeros(h, w, colors.shape[-1] + 1)
                empty[..., -1] = NAN  # the kernel writes no alpha here
                row.append(empty)
            else:
                row.append(_blend_tile(splats, x, y, w, h, absolute))
        rows.append(torch.cat(row, 1))
    out = torch.cat(rows, 0)[None]
    rgb, alpha = out[..., :-1], out[..., -1:]
    if backgrounds is not None:
        rgb = rgb + (1.0 - torch.nan_to_num(alpha)) * backgrounds[:, None, None]
    return rgb, alpha


def rasterize_fwd(
    means2d, conics, colors, opacities, backgrounds, masks, width, height, tile_size, offsets, ids
) -> tuple[Tensor, Tensor, Tensor]:
    rgb, alpha = _pixels(
        means2d, conics, colors, opacities, backgrounds, masks, width, height, tile_size, offsets, ids, None
    )
    return rgb, alpha, torch.zeros(rgb.shape[:-1], dtype=torch.int32)


def rasterize_bwd(
    means2d, conics, colors, opacities, backgrounds, masks, width, height, tile_size, offsets, ids,
    alphas, last_ids, v_colors, v_alphas, absgrad,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    leaves = [t.detach().requires_grad_() for t in (means2d, conics, colors, opacities)]
    absolute = torch.zeros_like(means2d[0])
    with torch.enable_grad():
        rgb, alpha = _pixels(*leaves, backgrounds, masks, width, height, tile_size, offsets, ids, absolute)
        drawn = torch.ones(alpha.shape, dtype=torch.bool) if masks is None else _drawn(masks, tile_size, height, width)
        value = torch.where(drawn, rgb * v_colors, 0.0).sum() + torch.where(drawn, alpha * v_alphas, 0.0).sum()
        grads = torch.autograd.grad(value, leaves, allow_unused=True)
    outs = [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, grads, strict=True)]
    return (absolute[None] if absgrad else None, *outs)


def _drawn(masks: Tensor, tile_size: int, height: int, width: int) -> Tensor:
    grown = masks.repeat_interleave(tile_size, -2).repeat_interleave(tile_size, -1)
    return grown[:, :height, :width, None]


def _like(mask: Tensor, tensor: Tensor) -> Tensor:
    return mask.reshape(mask.shape + (1,) * (tensor.dim() - mask.dim()))


OPS: dict[str, Callable[..., Any]] = {
    "projection_ewa_3dgs_fused_fwd": projection_fwd,
    "projection_ewa_3dgs_fused_bwd": projection_bwd,
    "spherical_harmonics_fwd": sh_fwd,
    "spherical_harmonics_bwd": sh_bwd,
    "intersect_tile": intersect_tile,
    "intersect_offset": intersect_offset,
    "rasterize_to_pixels_3dgs_fwd": rasterize_fwd,
    "rasterize_to_pixels_3dgs_bwd": rasterize_bwd,
}
