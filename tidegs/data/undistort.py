"""From COLMAP camera models to pinhole cameras. Invariant: camera parameters follow from parameters alone, so no image
is decoded to know them; the camera of the result is the one `colmap image_undistorter` would choose."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from threading import Lock

import cv2
import numpy as np
import PIL.Image  # noqa: F401  before pycolmap: the other order crashes where both save PNGs
import pycolmap

from tidegs.data.colmap_model import CAMERA_MODELS, MODEL_IDS, ColmapCamera
from tidegs.errors import SceneError

_ROWS = 128  # rows of a map that are projected at a time
_MAP_CACHE_BYTES = 256 << 20
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


def rescale(camera: ColmapCamera, width: int, height: int) -> ColmapCamera:
    """The camera of the same image resampled to width x height, exactly: axes that scale apart (by rounding of sizes)
    turn a single focal length into two."""
    sx, sy = width / camera.width, height / camera.height
    model, params = camera.model, camera.params
    if sx != sy and model in _TWO_FOCALS:
        model, more = _TWO_FOCALS[model]
        params = (params[0], *params, *(0.0,) * more)
    fields = CAMERA_MODELS[MODEL_IDS[model]][1]
    factor = {"f": sx, "fx": sx, "cx": sx, "fy": sy, "cy": sy}
    scaled = tuple(p * factor.get(name, 1.0) for name, p in zip(fields, params, strict=True))
    return ColmapCamera(camera.camera_id, model, width, height, scaled)


@lru_cache(maxsize=4096)
def pinhole_of(camera: ColmapCamera) -> ColmapCamera:
    """The PINHOLE camera of the undistorted image: same focal lengths and orientation, size and principal point such
    that no pixel falls outside the distorted image (COLMAP's rule, blank_pixels = 0). Raises SceneError where there is
    no such camera."""
    native = _native(camera)
    if not is_distorted(camera):
        fx, fy = native.focal_length_x, native.focal_length_y
        params = (fx, fy, native.principal_point_x, native.principal_point_y)
        return ColmapCamera(camera.camera_id, "PINHOLE", camera.width, camera.height, params)
    out = pycolmap.undistort_camera(pycolmap.UndistortCameraOptions(), native)
    fx, fy, cx, cy = (float(p) for p in out.params)
    params = (fx, fy, cx, cy)
    if not (np.isfinite(params).all() and fx > 0 and fy > 0 and out.width > 0 and out.height > 0):
        raise SceneError(
            f"camera {camera.camera_id} ({camera.model}) cannot be undistorted with its parameters "
            f"{' '.join(f'{p:g}' for p in camera.params)}; calibrate it again"
        )
    return ColmapCamera(camera.camera_id, "PINHOLE", out.width, out.height, params)


def is_distorted(camera: ColmapCamera) -> bool:
    """Whether the image has to be resampled to become that of `pinhole_of`. (COLMAP's is_undistorted says no of every
    model without coefficients, of plain fisheye lenses too.)"""
    if camera.model not in _PINHOLE_AT_ZERO:
        return True
    fields = CAMERA_MODELS[MODEL_IDS[camera.model]][1]
    return any(p != 0 for name, p in zip(fields, camera.params, strict=True) if name not in _LINEAR)


def _native(camera: ColmapCamera) -> pycolmap.Camera:
    return pycolmap.Camera(model=camera.model, width=camera.width, height=camera.height, params=list(camera.params))


def distortion_map(camera: ColmapCamera, pinhole: ColmapCamera) -> tuple[np.ndarray, np.ndarray]:
    """For each pixel of the pinhole image, where it lies in the distorted one: cv2.remap's fixed-point maps, int16
    [h, w, 2] and uint16 [h, w]. COLMAP's pixel centres at +0.5 become OpenCV's integers."""
    native = _native(camera)
    fx, fy, cx, cy = pinhole.params
    x = (np.arange(pinhole.width) + (0.5 - cx)) / fx
    y = (np.arange(pinhole.height) + (0.5 - cy)) / fy
    coarse = np.empty((pinhole.height, pinhole.width, 2), np.int16)
    fine = np.empty((pinhole.height, pinhole.width), np.uint16)
    for at in range(0, pinhole.height, _ROWS):
        rows = y[at : at + _ROWS]
        rays = np.ones((len(rows), len(x), 3))
        rays[..., 0], rays[..., 1] = x, rows[:, None]
        where = np.asarray(native.img_from_cam(rays.reshape(-1, 3)), np.float64).reshape(len(rows), len(x), 2)
        where = np.nan_to_num(where - 0.5, nan=-2.0).clip(-2, 32766).astype(np.float32)
        coarse[at : at + _ROWS], fine[at : at + _ROWS] = cv2.convertMaps(where[..., 0], where[..., 1], cv2.CV_16SC2)
    return coarse, fine


class MapCache:
    """Maps of the cameras used last, bounded in bytes. Thread-safe; two threads may compute the same map once each."""

    def __init__(self, budget_bytes: int = _MAP_CACHE_BYTES, compute: Callable = distortion_map) -> None:
        self._budget, self._compute = budget_bytes, compute
        self._maps: OrderedDict[tuple, tuple[np.ndarray, np.ndarray]] = OrderedDict()
        self._lock = Lock()

    def get(self, camera: ColmapCamera, pinhole: ColmapCamera) -> tuple[np.ndarray, np.ndarray]:
        """`distortion_map` of the pair."""
        key = (camera.model, camera.width, camera.height, camera.params)
        with self._lock:
            if key in self._maps:
                self._maps.move_to_end(key)
                return self._maps[key]
        maps = self._compute(camera, pinhole)
        with self._lock:
            self._maps[key] = maps
            while len(self._maps) > 1 and sum(a.nbytes + b.nbytes for a, b in self._maps.values()) > self._budget:
                self._maps.popitem(last=False)
        return maps
