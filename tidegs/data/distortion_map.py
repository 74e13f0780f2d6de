"""Where the pixels of an undistorted image lie in the photo. Invariant: COLMAP's mathematics to 1/32 pixel (the step of
cv2.remap), by OpenCV where it has the model, by COLMAP itself elsewhere."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

import cv2
import numpy as np

from tidegs.data.colmap_model import ColmapCamera
from tidegs.data.undistort import native_camera, two_focals

_ROWS = 32  # rows that COLMAP projects at a time, holding Python's lock
MAP_CACHE_BYTES = 256 << 20
_LINEAR_PARAMS = 4  # fx, fy, cx, cy
_FISHEYE_TERMS = 4  # k1 to k4

Maps = tuple[np.ndarray, np.ndarray]


def distortion_map(camera: ColmapCamera, pinhole: ColmapCamera) -> Maps:
    """For each pixel of the pinhole image, where it lies in the distorted one: cv2.remap's fixed-point maps, int16
    [h, w, 2] and uint16 [h, w]. COLMAP's pixel centres at +0.5 become OpenCV's integers."""
    lens = two_focals(camera)
    size = (pinhole.width, pinhole.height)
    terms = np.array(lens.params[_LINEAR_PARAMS:], np.float64)
    if lens.model in ("OPENCV", "FULL_OPENCV"):
        return cv2.initUndistortRectifyMap(_matrix(lens), terms, np.eye(3), _matrix(pinhole), size, cv2.CV_16SC2)
    if lens.model in ("OPENCV_FISHEYE", "FISHEYE"):
        terms = np.resize(terms, _FISHEYE_TERMS) if len(terms) else np.zeros(_FISHEYE_TERMS)
        return cv2.fisheye.initUndistortRectifyMap(
            _matrix(lens), terms, np.eye(3), _matrix(pinhole), size, cv2.CV_16SC2
        )
    return _by_colmap(camera, pinhole)


def _matrix(camera: ColmapCamera) -> np.ndarray:
    fx, fy, cx, cy = camera.params[:_LINEAR_PARAMS]
    return np.array([[fx, 0, cx - 0.5], [0, fy, cy - 0.5], [0, 0, 1]])


def _by_colmap(camera: ColmapCamera, pinhole: ColmapCamera) -> Maps:
    native = native_camera(camera)
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

    def __init__(
        self,
        budget_bytes: int = MAP_CACHE_BYTES,
        compute: Callable[[ColmapCamera, ColmapCamera], Maps] = distortion_map,
    ) -> None:
        self._budget, self._compute = budget_bytes, compute
        self._maps: OrderedDict[tuple, Maps] = OrderedDict()
        self._held = 0
        self._lock = Lock()

    def get(self, camera: ColmapCamera, pinhole: ColmapCamera) -> Maps:
        """`distortion_map` of the pair."""
        key = (camera.model, camera.width, camera.height, camera.params)
        with self._lock:
            if key in self._maps:
                self._maps.move_to_end(key)
                return self._maps[key]
        maps = self._compute(camera, pinhole)
        with self._lock:
            self._held += _nbytes(maps) - (_nbytes(self._maps[key]) if key in self._maps else 0)
            self._maps[key] = maps
            while len(self._maps) > 1 and self._held > self._budget:
                self._held -= _nbytes(self._maps.popitem(last=False)[1])
        return maps


def _nbytes(maps: Maps) -> int:
    return maps[0].nbytes + maps[1].nbytes
