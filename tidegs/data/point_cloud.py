"""Point clouds of PLY files, streamed: x y z and, where there are, red green blue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tidegs.data.points import PointStream
from tidegs.data.scene import WorldTransform
from tidegs.errors import FormatError, SceneError
from tidegs.gaussians.ply_header import read_header
from tidegs.gaussians.ply_vertices import PlyVertices, open_vertices

_CHUNK = 1 << 18
_GREY = 128
_RGB = ("red", "green", "blue")


def read_ply_points(path: Path) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Chunks (xyz float64 [n, 3], rgb uint8 [n, 3]) in file order; without colours all are grey. Raises SceneError."""
    vertices = _open(path)
    try:
        for part in vertices.chunks(_CHUNK):
            yield np.stack([part[k].astype(np.float64) for k in "xyz"], axis=1), _colors(part, vertices.row)
    except FormatError as error:
        raise _refused(path, error) from None


def is_point_cloud(path: Path) -> bool:
    """Whether a file is a PLY, and not one of Gaussians. Raises FormatError where its header is damaged."""
    try:
        with open(path, "rb") as file:
            if file.read(3) != b"ply":
                return False
    except OSError:
        return False
    named = {name for e in read_header(path).elements if e.dtype is not None for name in e.dtype.names or ()}
    return not named & {"scale_0", "packed_position"}


def count_ply_points(path: Path) -> int:
    """How many points a file holds, as its header states. Raises SceneError."""
    return _open(path).count


def stream_ply_points(path: Path, transform: WorldTransform) -> PointStream:
    """The points of a file in the scene frame. Raises SceneError where it holds none."""
    return PointStream(lambda: read_ply_points(path), transform, count_ply_points(path))


def _open(path: Path) -> PlyVertices:
    try:
        vertices = open_vertices(path)
    except FormatError as error:
        raise _refused(path, error) from None
    names = vertices.row.names or ()
    if not {"x", "y", "z"} <= set(names):
        raise SceneError(f"{path}: its vertices have no x, y and z ({', '.join(names)}); export it again as PLY")
    return vertices


def _refused(path: Path, error: FormatError) -> SceneError:
    return SceneError(f"{path}: the point cloud cannot be read ({str(error).removeprefix(f'{path}: ')})")


def _colors(part: np.ndarray, declared: np.dtype) -> np.ndarray:
    """`declared`: the types that the header states, which say what full colour is; ASCII files are read as float64."""
    if not set(_RGB) <= set(declared.names or ()):
        return np.full((len(part), 3), _GREY, np.uint8)
    rgb = np.stack([part[k] for k in _RGB], axis=1)
    if declared["red"].kind == "f":  # 0 to 1
        rgb = np.round(np.nan_to_num(rgb) * 255)
    elif declared["red"].itemsize == 2:
        rgb = rgb // 256
    return rgb.clip(0, 255).astype(np.uint8)
