"""The C structures that csrc/raster/types.hpp reads, and the prototypes of csrc/raster/raster.inl.

Invariant: field for field the same as in C++; the pointers' owners outlive the call (CpuDevice keeps them).
"""

from __future__ import annotations

import ctypes as c
import math
from functools import cache

import numpy as np

from tidegs.device import native
from tidegs.device.base import AdamSettings, MeanNoise, RenderSettings, View
from tidegs.gaussians.layout import RecordLayout


class CLayout(c.Structure):
    """Byte offsets of a slot's planes."""

    _fields_ = [
        *((name, c.c_int64) for name in ("slot_nbytes", "capacity", "rest_components")),
        *((name, c.c_int64) for name in ("base", "rest", "m_base", "m_rest", "v_base", "v_rest", "grads")),
        *((name, c.c_int64) for name in ("stats", "stat_components")),
    ]


class CCamera(c.Structure):
    """A view and what gsplat.rasterization is told."""

    _fields_ = [
        ("R", c.c_float * 9),
        ("t", c.c_float * 3),
        ("position", c.c_float * 3),
        *((name, c.c_float) for name in ("fx", "fy", "cx", "cy")),
        *((name, c.c_int32) for name in ("width", "height", "sh_degree", "antialiased", "absgrad")),
        *((name, c.c_float) for name in ("near_plane", "far_plane", "eps2d", "radius_clip")),
        ("background", c.c_float * 3),
    ]


class CBlocks(c.Structure):
    """A part of a camera's blocks."""

    _fields_ = [
        *((name, c.c_void_p) for name in ("arena", "slots", "counts")),
        ("n", c.c_int32),
    ]


class CPlanes(c.Structure):
    """Planes of an image, or of its gradient; alpha's gradient and both depths may be null."""

    _fields_ = [*((name, c.c_void_p) for name in ("rgb", "alpha", "depth")), ("height", c.c_int64)]


class CAdam(c.Structure):
    """One step of Adam, its bias corrections folded in."""

    _fields_ = [
        ("lr", c.c_float * 6),
        *((name, c.c_float) for name in ("beta1", "beta2", "eps", "inv_sqrt_bias2", "opacity_reg", "scale_reg")),
        ("cameras", c.c_float),
        ("drift", c.c_float),
    ]


class CNoise(c.Structure):
    """Noise for the means of blocks."""

    _fields_ = [
        *((name, c.c_void_p) for name in ("keys", "scales")),
        *((name, c.c_float) for name in ("floor", "means_reach", "scales_reach", "eps")),
    ]


class CNoised(c.Structure):
    """Where noise writes what it learned of each block."""

    _fields_ = [(name, c.c_void_p) for name in ("lo", "hi", "extent", "mass", "dead")]


class CUpdates(c.Structure):
    """Where backward writes what it learned of each block; `pose` may be null."""

    _fields_ = [(name, c.c_void_p) for name in ("lo", "hi", "extent", "visible", "touched", "pose")]


@cache
def library(isa: str | None = None) -> c.CDLL:
    """The kernels (of one instruction set, or of the one to use here), with prototypes."""
    lib = native.load(isa) if isa else native.kernels()
    pointer = c.c_void_p
    lib.tidegs_raster_open.argtypes = [pointer, c.c_int64]
    lib.tidegs_raster_open.restype = pointer
    lib.tidegs_raster_close.argtypes = [pointer]
    lib.tidegs_raster_close.restype = None
    lib.tidegs_raster_begin.argtypes = [pointer] * 2
    lib.tidegs_raster_begin.restype = None
    lib.tidegs_raster_add.argtypes = [pointer] * 2
    lib.tidegs_raster_finish.argtypes = [pointer] * 2
    lib.tidegs_raster_differentiate.argtypes = [pointer] * 2
    lib.tidegs_raster_update.argtypes = [pointer, c.c_int, pointer, pointer, pointer, pointer]
    lib.tidegs_raster_counts.argtypes = [pointer] * 2
    lib.tidegs_raster_counts.restype = None
    lib.tidegs_raster_twin.argtypes = [pointer] * 4
    lib.tidegs_raster_twin.restype = c.c_int64
    lib.tidegs_raster_add_noise.argtypes = [pointer] * 4
    lib.tidegs_ssim_l1.argtypes = [pointer, pointer, c.c_int, c.c_int, c.c_float, c.c_float, pointer, pointer]
    lib.tidegs_ssim_l1.restype = None
    return lib


def address(array: np.ndarray | None) -> int | None:
    """Where an array's bytes begin; None for None."""
    return None if array is None else array.ctypes.data


def layout(record: RecordLayout) -> CLayout:
    """The planes of a slot."""
    at = record.offsets
    planes = [at[name] for name in ("base", "rest", "m_base", "m_rest", "v_base", "v_rest")]
    grads = at["grads"] if record.with_grads else -1
    stats = (at["stats"] if record.stat_components else -1, record.stat_components)
    return CLayout(record.slot_nbytes, record.capacity, record.rest_components, *planes, grads, *stats)


def camera(view: View, settings: RenderSettings) -> CCamera:
    """A camera; its position is taken in float64 from the inverse of the view matrix, as gsplat takes it."""
    viewmat, K = np.asarray(view.viewmat, np.float64), np.asarray(view.K, np.float64)
    out = CCamera()
    out.R[:] = viewmat[:3, :3].ravel().tolist()
    out.t[:] = viewmat[:3, 3].tolist()
    out.position[:] = np.linalg.inv(viewmat)[:3, 3].tolist()
    out.fx, out.fy, out.cx, out.cy = K[0, 0], K[1, 1], K[0, 2], K[1, 2]
    out.width, out.height = view.width, view.height
    out.sh_degree, out.antialiased = settings.sh_degree, settings.rasterize_mode == "antialiased"
    out.absgrad = settings.absgrad
    out.near_plane, out.far_plane = settings.near_plane, settings.far_plane
    out.eps2d, out.radius_clip = settings.eps2d, settings.radius_clip
    out.background[:] = settings.background
    return out


def adam(settings: AdamSettings) -> CAdam:
    """Adam with the bias corrections of its step, in float64 before rounding."""
    correction = 1.0 - settings.beta1**settings.step
    out = CAdam()
    out.lr[:] = [lr / correction for lr in settings.lrs]
    out.beta1, out.beta2, out.eps = settings.beta1, settings.beta2, settings.eps
    out.inv_sqrt_bias2 = 1.0 / math.sqrt(1.0 - settings.beta2**settings.step)
    out.opacity_reg, out.scale_reg = settings.opacity_reg, settings.scale_reg
    out.cameras = settings.cameras
    out.drift = settings.drift if settings.dense else 0.0
    return out


def noise(settings: MeanNoise, step: AdamSettings) -> CNoise:
    """Noise after a step; the caller keeps the arrays of `settings`."""
    means, scales = step.reach
    return CNoise(address(settings.keys), address(settings.scales), settings.min_opacity, means, scales, step.eps)
