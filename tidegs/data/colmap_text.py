"""Reads COLMAP's text files: comments and blank lines anywhere they are legal, LF or CRLF, names with spaces and of
any bytes. Invariant: a line that does not parse is a SceneError with its number."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tidegs.data.colmap_model import CAMERA_MODELS, MODEL_IDS, ColmapCamera, ColmapImage
from tidegs.errors import SceneError

_CHUNK = 1 << 16


def _fail(path: Path, number: int, what: str) -> SceneError:
    return SceneError(f"{path}: line {number} {what}; correct the line or export the model again")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with open(path, "rb") as f:
        for number, line in enumerate(f, 1):
            yield number, line.removeprefix(b"\xef\xbb\xbf").strip(b"\r\n")


def _rows(path: Path) -> Iterator[tuple[int, bytes]]:
    for number, line in _lines(path):
        if line.strip() and not line.lstrip().startswith(b"#"):
            yield number, line


def read_cameras_txt(path: Path) -> list[ColmapCamera]:
    """All cameras of a cameras.txt."""
    out = []
    for number, line in _rows(path):
        words = line.split()
        if len(words) < 4:
            raise _fail(path, number, "has fewer than the four words CAMERA_ID MODEL WIDTH HEIGHT")
        model = os.fsdecode(words[1])
        if model not in MODEL_IDS:
            raise SceneError(
                f"{path}: line {number} names the camera model {model!r}, which is not one of COLMAP's; "
                "undistort the scene with `colmap image_undistorter` or correct the name"
            )
        fields = CAMERA_MODELS[MODEL_IDS[model]][1]
        try:
            camera_id, width, height = int(words[0]), int(words[2]), int(words[3])
            params = tuple(float(w) for w in words[4:])
        except ValueError:
            raise _fail(path, number, "has a word that is not a number among id, size and parameters") from None
        if len(params) != len(fields):
            raise _fail(
                path, number, f"has {len(params)} parameters where {model} has {len(fields)} ({' '.join(fields)})"
            )
        out.append(ColmapCamera(camera_id, model, width, height, params))
    return out


def _image_rows(path: Path) -> Iterator[tuple[int, bytes]]:
    """The first line of each pair of lines. The second holds 2D points and may be empty; tools other than COLMAP leave
    it out, which is seen by the next line ending in a word (a name) instead of a number."""
    points_next = False
    for number, line in _lines(path):
        if line.lstrip().startswith(b"#"):
            continue
        if points_next and not _ends_in_name(line):
            points_next = False
        elif line.strip():
            points_next = True
            yield number, line


def _ends_in_name(line: bytes) -> bool:
    words = line.rsplit(None, 1)
    try:
        float(words[-1] if words else b"0")
    except ValueError:
        return True
    return False


def read_images_txt(path: Path) -> list[ColmapImage]:
    """All images of an images.txt. The name is all that follows CAMERA_ID, inner spaces included."""
    out = []
    for number, line in _image_rows(path):
        words = line.split(None, 9)
        if len(words) < 10:
            raise _fail(path, number, "has fewer than ten words IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME")
        try:
            image_id, camera_id = int(words[0]), int(words[8])
            q, t = [float(w) for w in words[1:5]], [float(w) for w in words[5:8]]
        except ValueError:
            raise _fail(path, number, "is not an image: a word among id, pose and camera is not a number") from None
        name = os.fsdecode(words[9].rstrip())
        out.append(ColmapImage(image_id, (q[0], q[1], q[2], q[3]), (t[0], t[1], t[2]), camera_id, name))
    return out


def count_images_txt(path: Path) -> int:
    """The number of images in an images.txt."""
    return sum(1 for _ in _image_rows(path))


def read_points_txt(path: Path) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Chunks (xyz float64 [n, 3], rgb uint8 [n, 3]) of a points3D.txt in file order."""
    xyz: list[tuple[float, ...]] = []
    rgb: list[tuple[int, ...]] = []
    for number, line in _rows(path):
        words = line.split(None, 7)
        try:
            if len(words) < 7:
                raise ValueError
            position = tuple(map(float, words[1:4]))
            colour = tuple(map(int, words[4:7]))
            if min(colour) < 0 or max(colour) > 255:
                raise ValueError
        except ValueError:
            raise _fail(path, number, "is not a point: POINT3D_ID X Y Z R G B, colours 0 to 255") from None
        xyz.append(position)
        rgb.append(colour)
        if len(xyz) == _CHUNK:
            yield np.array(xyz), np.array(rgb, np.uint8)
            xyz, rgb = [], []
    if xyz:
        yield np.array(xyz), np.array(rgb, np.uint8)
