"""Reads COLMAP's binary files. Invariant: every byte that is used was checked to exist; memory does not grow with
tracks and 2D points, which are skipped."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import numba
import numpy as np

from tidegs.data.colmap_model import CAMERA_MODELS, ColmapCamera, ColmapImage
from tidegs.errors import SceneError

_IMAGE = struct.Struct("<I7dI")  # id, qvec, tvec, camera id; then name\0, number of 2D points, 24 bytes each
_NAME_LIMIT = 1 << 16
_BUFFER = 16 << 20
_POINT_HEAD, _TRACK_ENTRY = 51, 8  # bytes: id, xyz, rgb, error, track length; then the track


class _Reader:
    """A file read by position, where running out of bytes is a SceneError that names the file and the field."""

    def __init__(self, path: Path, what: str, least: int) -> None:
        self.path, self.at = path, 0
        self.file = open(path, "rb", buffering=0)  # noqa: SIM115  closed in __exit__
        self.size = os.fstat(self.file.fileno()).st_size
        self.count = struct.unpack("<Q", self.take(8, f"the number of {what}"))[0]
        if self.count * least > self.size - 8:
            raise SceneError(
                f"{path}: the file says it has {self.count} {what}, but is only {self.size} bytes long; "
                "it is truncated or not a COLMAP binary file: copy or export it again"
            )

    def take(self, n: int, field: str) -> bytes:
        data = os.pread(self.file.fileno(), n, self.at)
        if len(data) < n:
            raise SceneError(
                f"{self.path}: the file ends at byte {self.size} within {field}; it is truncated: "
                "copy or export it again"
            )
        self.at += n
        return data

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def read_cameras_bin(path: Path) -> list[ColmapCamera]:
    """All cameras of a cameras.bin."""
    out = []
    with _Reader(path, "cameras", 24) as f:
        for n in range(f.count):
            camera_id, model, width, height = struct.unpack("<IiQQ", f.take(24, f"camera {n + 1} of {f.count}"))
            if model not in CAMERA_MODELS:
                raise SceneError(
                    f"{path}: camera {camera_id} has the camera model id {model}, which is not one of COLMAP's "
                    f"0 to {max(CAMERA_MODELS)}; undistort the scene with `colmap image_undistorter` or export it again"
                )
            name, fields = CAMERA_MODELS[model]
            params = struct.unpack(f"<{len(fields)}d", f.take(8 * len(fields), f"the parameters of camera {camera_id}"))
            out.append(ColmapCamera(camera_id, name, width, height, params))
    return out


def read_images_bin(path: Path) -> list[ColmapImage]:
    """All images of an images.bin, their 2D points skipped."""
    out = []
    with _Reader(path, "images", _IMAGE.size + 9) as f:
        for n in range(f.count):
            where = f"image {n + 1} of {f.count}"
            image_id, *pose, camera_id = _IMAGE.unpack(f.take(_IMAGE.size, where))
            name = _take_name(f, where)
            points = struct.unpack("<Q", f.take(8, f"the 2D points of image {name!r}"))[0]
            if 24 * points > f.size - f.at:
                raise SceneError(
                    f"{path}: image {name!r} says it has {points} 2D points, more than the file's {f.size} bytes "
                    "hold; it is truncated: copy or export it again"
                )
            seen = (f.at, points)
            f.at += 24 * points
            q, t = pose[:4], pose[4:]
            out.append(ColmapImage(image_id, (q[0], q[1], q[2], q[3]), (t[0], t[1], t[2]), camera_id, name, seen))
    return out


def count_images_bin(path: Path) -> int:
    """The number of images that an images.bin states."""
    with _Reader(path, "images", _IMAGE.size + 9) as f:
        return int(f.count)


def count_points_bin(path: Path) -> int:
    """The number of points that a points3D.bin states."""
    with _Reader(path, "points", _POINT_HEAD) as f:
        return int(f.count)


def _take_name(f: _Reader, where: str) -> str:
    window = 256
    while window <= _NAME_LIMIT:
        data = os.pread(f.file.fileno(), window, f.at)
        end = data.find(b"\0")
        if end >= 0:
            f.at += end + 1
            return os.fsdecode(data[:end])
        if len(data) < window:
            break
        window *= 4
    raise SceneError(f"{f.path}: the name of {where} does not end; the file is damaged: copy or export it again")


def read_points_bin(path: Path) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Chunks (xyz float64 [n, 3], rgb uint8 [n, 3]) of a points3D.bin in file order, through one buffer of 16 MiB."""
    return ((xyz, rgb) for _, xyz, rgb in read_points_with_ids(path))


def read_points_with_ids(path: Path) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """As `read_points_bin`, with the ids, uint64 [n], before."""
    with _Reader(path, "points", _POINT_HEAD) as f:
        left, buffer = int(f.count), bytearray(_BUFFER)
        data = np.frombuffer(buffer, np.uint8)
        while left:
            got = os.preadv(f.file.fileno(), [buffer], f.at)
            rows = min(left, got // _POINT_HEAD)
            head, rgb = np.empty((rows, 32), np.uint8), np.empty((rows, 3), np.uint8)
            n, used = _parse_points(data[:got], head, rgb)
            if n == 0 or f.at + used > f.size:
                point = f.count - left + max(n, 1)
                raise SceneError(
                    f"{path}: the file ends at byte {f.size} within point {point} of {f.count}; it is truncated: "
                    "copy or export it again"
                )
            f.at += used
            left -= n
            ids, xyz = head[:n, :8].copy().view("<u8")[:, 0], head[:n, 8:].copy().view("<f8")
            yield ids, xyz, rgb[:n]


@numba.njit(cache=True, nogil=True)
def _parse_points(data: np.ndarray, head: np.ndarray, rgb: np.ndarray) -> tuple[int, int]:
    """Copies the points whose heads lie whole in `data`, id and xyz into `head`; returns their number
    and the bytes to advance, which may reach past `data` where the last track does."""
    at, n = 0, 0
    while n < len(rgb) and at + 51 <= len(data):
        for k in range(32):
            head[n, k] = data[at + k]
        for k in range(3):
            rgb[n, k] = data[at + 32 + k]
        track = np.uint64(0)
        for k in range(8):
            track |= np.uint64(data[at + 43 + k]) << np.uint64(8 * k)
        n += 1
        if track > np.uint64(1 << 40):
            return n, 1 << 62
        at += 51 + 8 * np.int64(track)
    return n, at
