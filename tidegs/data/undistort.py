"""From COLMAP camera models to pinhole cameras. Invariant: camera parameters follow from parameters alone, so no image
is decoded to know them; the camera of the result is the one `colmap image_undistorter` would choose."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import PIL.Image  # noqa: F401  before pycolmap: the other order crashes where both save PNGs
import pycolmap

from tidegs.data.colmap_model import CAMERA_MODELS, MODEL_IDS, ColmapCamera
from tidegs.errors import SceneError

_SAMPLES = 33  # of a border at a time
_SCALES = (0.2, 2.0)  # COLMAP's limits of the size of an undistorted image, relative to the photo
# The model with two focal lengths that holds one with a single one, and the parameters that it has more.
_TWO_FOCALS = {
    "SIMPLE_PINHOLE": ("PINHOLE", 0),
    "SIMPLE_RADIAL": ("OPENCV", 3),
    "RADIAL": ("OPENCV", 2),
    "SIMPLE_RADIAL_FISHEYE": ("OPENCV_FISHEYE", 3),
    "RADIAL_FISHEYE": ("OPENCV_FISHEYE", 2),
    "SIMPLE_DIVISION": ("DIVISION", 0),
    "SIMPLE_FISHEYE": ("FISHEYE", 0),
}
# Models that are a pinhole where all parameters but these are zero.
_PINHOLE_AT_ZERO = ("SIMPLE_PINHOLE", "PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV", "FULL_OPENCV")
_LINEAR = ("f", "fx", "fy", "cx", "cy")


def two_focals(camera: ColmapCamera) -> ColmapCamera:
    """The same camera in the model with two focal lengths that holds its own, where there is one."""
    if camera.model not in _TWO_FOCALS:
        return camera
    model, more = _TWO_FOCALS[camera.model]
    params = (camera.params[0], *camera.params, *(0.0,) * more)
    return ColmapCamera(camera.camera_id, model, camera.width, camera.height, params)


def rescale(camera: ColmapCamera, width: int, height: int) -> ColmapCamera:
    """The camera of the same image resampled to width x height, exactly: axes that scale apart (by rounding of sizes)
    turn a single focal length into two."""
    sx, sy = width / camera.width, height / camera.height
    if sx != sy:
        camera = two_focals(camera)
    fields = CAMERA_MODELS[MODEL_IDS[camera.model]][1]
    factor = {"f": sx, "fx": sx, "cx": sx, "fy": sy, "cy": sy}
    scaled = tuple(p * factor.get(name, 1.0) for name, p in zip(fields, camera.params, strict=True))
    return ColmapCamera(camera.camera_id, camera.model, width, height, scaled)


@lru_cache(maxsize=4096)
def pinhole_of(camera: ColmapCamera) -> ColmapCamera:
    """The PINHOLE camera of the undistorted image: same focal lengths and orientation, size and principal point such
    that no pixel falls outside the distorted image (COLMAP's rule, blank_pixels = 0). Raises SceneError where there is
    no such camera."""
    native = native_camera(camera)
    fx, fy = float(native.focal_length_x), float(native.focal_length_y)
    cx, cy = float(native.principal_point_x), float(native.principal_point_y)
    width, height = camera.width, camera.height
    if is_distorted(camera):
        try:
            scale_x, scale_y = _inner_scales(native, width, height)
            width, height = max(1, int(scale_x * width)), max(1, int(scale_y * height))
        except (_NoRay, ZeroDivisionError):
            width, height = _colmap_size(camera, native)
        cx, cy = cx * width / camera.width, cy * height / camera.height
    return ColmapCamera(camera.camera_id, "PINHOLE", width, height, (fx, fy, cx, cy))


class _NoRay(Exception):
    """A pixel of the border that no ray falls on: the lens model turns back on itself before the corner."""


def _colmap_size(camera: ColmapCamera, native: pycolmap.Camera) -> tuple[int, int]:
    """The size as COLMAP itself has it."""
    out = pycolmap.undistort_camera(pycolmap.UndistortCameraOptions(), native)
    if not (np.isfinite(out.params).all() and out.width > 0 and out.height > 0):
        raise SceneError(
            f"camera {camera.camera_id} ({camera.model}) cannot be undistorted with its parameters "
            f"{' '.join(f'{p:g}' for p in camera.params)}; calibrate it again"
        )
    return out.width, out.height


def _inner_scales(native: pycolmap.Camera, width: int, height: int) -> tuple[float, float]:
    """How much larger than the photo the undistorted image may be along x and y, so that the photo's borders lie
    outside it (COLMAP, UndistortCamera). COLMAP projects every border pixel; here the extremes are searched.
    Raises _NoRay."""
    cx, cy = native.principal_point_x, native.principal_point_y

    def border(axis: int, fixed: float, sign: float) -> Callable[[np.ndarray], np.ndarray]:
        focal, center = (native.focal_length_x, cx) if axis == 0 else (native.focal_length_y, cy)

        def value(along: np.ndarray) -> np.ndarray:
            points = np.empty((len(along), 2))
            points[:, axis], points[:, 1 - axis] = fixed, along + 0.5
            rays = np.asarray(native.cam_from_img(points), np.float64)
            return sign * (focal * rays[:, axis] + center)

        return value

    left, right = _greatest(border(0, 0.5, 1), height), -_greatest(border(0, width - 0.5, -1), height)
    top, bottom = _greatest(border(1, 0.5, 1), width), -_greatest(border(1, height - 0.5, -1), width)
    inner_x = max(cx / (cx - left), (width - 0.5 - cx) / (right - cx))
    inner_y = max(cy / (cy - top), (height - 0.5 - cy) / (bottom - cy))
    low, high = _SCALES
    return min(max(1 / inner_x, low), high), min(max(1 / inner_y, low), high)


def _greatest(value: Callable[[np.ndarray], np.ndarray], n: int) -> float:
    """The greatest of value(0 .. n - 1), a smooth function, by ever finer samples about the greatest so far."""
    low, high = 0, n - 1
    while True:
        span = high - low
        at = low + (np.arange(_SAMPLES) * span // (_SAMPLES - 1) if span >= _SAMPLES else np.arange(span + 1))
        values = value(at)
        if not np.isfinite(values).all():
            raise _NoRay
        best = int(np.argmax(values))
        if span < _SAMPLES:
            return float(values[best])
        low, high = int(at[max(best - 1, 0)]), int(at[min(best + 1, len(at) - 1)])


def is_distorted(camera: ColmapCamera) -> bool:
    """Whether the image has to be resampled to become that of `pinhole_of`. (COLMAP's is_undistorted says no of every
    model without coefficients, of plain fisheye lenses too.)"""
    if camera.model not in _PINHOLE_AT_ZERO:
        return True
    fields = CAMERA_MODELS[MODEL_IDS[camera.model]][1]
    return any(p != 0 for name, p in zip(fields, camera.params, strict=True) if name not in _LINEAR)


def native_camera(camera: ColmapCamera) -> pycolmap.Camera:
    """COLMAP's own object of a camera."""
    return pycolmap.Camera(model=camera.model, width=camera.width, height=camera.height, params=list(camera.params))
