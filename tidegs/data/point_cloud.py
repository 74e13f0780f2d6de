"""Reads a point cloud from a PLY file (ASCII or binary): x y z and, where there are, red green blue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from plyfile import PlyData, PlyParseError

from tidegs.errors import SceneError

_CHUNK = 1 << 20
_GREY = 128


def read_ply_points(path: Path) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Chunks (xyz float64 [n, 3], rgb uint8 [n, 3]) in file order; without colours all are grey. Raises SceneError."""
    try:
        vertices = PlyData.read(path)["vertex"].data
    except (PlyParseError, KeyError, ValueError, OSError, UnicodeDecodeError) as error:
        raise SceneError(f"{path}: the point cloud cannot be read ({error}); export it again as PLY") from None
    names = vertices.dtype.names or ()
    if not {"x", "y", "z"} <= set(names):
        raise SceneError(f"{path}: its vertices have no x, y and z ({', '.join(names)}); export it again as PLY")
    for at in range(0, len(vertices), _CHUNK):
        part = vertices[at : at + _CHUNK]
        yield np.stack([part[k].astype(np.float64) for k in "xyz"], axis=1), _colors(part)


def _colors(part: np.ndarray) -> np.ndarray:
    names = ("red", "green", "blue")
    if not set(names) <= set(part.dtype.names or ()):
        return np.full((len(part), 3), _GREY, np.uint8)
    rgb = np.stack([part[k] for k in names], axis=1)
    if rgb.dtype.kind == "f":  # 0 to 1
        rgb = np.round(np.nan_to_num(rgb) * 255)
    elif rgb.dtype.itemsize == 2:
        rgb = rgb >> 8
    return rgb.clip(0, 255).astype(np.uint8)
