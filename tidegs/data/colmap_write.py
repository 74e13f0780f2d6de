"""Writes COLMAP models, binary and text. Invariant: each file appears whole or not at all; points are streamed."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import numpy as np

from tidegs.data.colmap_model import CAMERA_MODELS, MODEL_IDS, ColmapCamera, ColmapImage
from tidegs.files import replacing

# A point of points3D.bin without a track: id, xyz, rgb, error, track length 0.
_POINT = np.dtype(
    [("id", "<u8"), ("xyz", "<f8", 3), ("rgb", "u1", 3), ("error", "<f8"), ("track", "<u8")]
)  # 51 bytes, packed
_CHUNK = 1 << 16

PointChunks = Iterable[tuple[np.ndarray, np.ndarray]]


def write_model(
    folder: Path,
    cameras: Iterable[ColmapCamera],
    images: Iterable[ColmapImage],
    points: tuple[np.ndarray, np.ndarray] | PointChunks,
    *,
    binary: bool = True,
    text: bool = False,
) -> None:
    """Writes cameras, images and points3D (.bin, .txt or both) into `folder`, made where absent.

    `points` is one pair (xyz float [n, 3], rgb uint8 [n, 3]) or an iterable of such pairs, which is read once and
    never held whole. Ids of points count from 1, tracks and 2D points are empty.
    """
    folder.mkdir(parents=True, exist_ok=True)
    cameras, images = list(cameras), list(images)
    if binary:
        with replacing(folder / "cameras.bin") as f:
            _cameras_bin(f, cameras)
        with replacing(folder / "images.bin") as f:
            _images_bin(f, images)
    if text:
        with replacing(folder / "cameras.txt") as f:
            _cameras_txt(f, cameras)
        with replacing(folder / "images.txt") as f:
            _images_txt(f, images)
    with ExitStack() as files:
        bin_file = files.enter_context(replacing(folder / "points3D.bin")) if binary else None
        txt_file = files.enter_context(replacing(folder / "points3D.txt")) if text else None
        _points(bin_file, txt_file, points)


def _cameras_bin(f: BinaryIO, cameras: list[ColmapCamera]) -> None:
    f.write(struct.pack("<Q", len(cameras)))
    for c in cameras:
        model = MODEL_IDS[c.model]
        if len(c.params) != len(CAMERA_MODELS[model][1]):
            raise ValueError(f"camera {c.camera_id}: {c.model} has {len(CAMERA_MODELS[model][1])} parameters")
        f.write(struct.pack("<IiQQ", c.camera_id, model, c.width, c.height))
        f.write(struct.pack(f"<{len(c.params)}d", *c.params))


def _images_bin(f: BinaryIO, images: list[ColmapImage]) -> None:
    f.write(struct.pack("<Q", len(images)))
    for i in images:
        f.write(struct.pack("<I7dI", i.image_id, *i.qvec, *i.tvec, i.camera_id))
        f.write(_name(i) + b"\0" + struct.pack("<Q", 0))


def _cameras_txt(f: BinaryIO, cameras: list[ColmapCamera]) -> None:
    f.write(b"# Camera list: CAMERA_ID, MODEL, WIDTH, HEIGHT, PARAMS[]\n")
    for c in cameras:
        params = " ".join(repr(float(p)) for p in c.params)
        f.write(f"{c.camera_id} {c.model} {c.width} {c.height} {params}\n".encode())


def _images_txt(f: BinaryIO, images: list[ColmapImage]) -> None:
    f.write(b"# Image list, two lines an image: IMAGE_ID, QW, QX, QY, QZ, TX, TY, TZ, CAMERA_ID, NAME; 2D points\n")
    for i in images:
        pose = " ".join(repr(float(v)) for v in (*i.qvec, *i.tvec))
        f.write(f"{i.image_id} {pose} {i.camera_id} ".encode() + _name(i) + b"\n\n")


def _name(image: ColmapImage) -> bytes:
    name = os.fsencode(image.name)
    if not name or b"\0" in name or b"\n" in name:
        raise ValueError(f"image {image.image_id}: the name {image.name!r} cannot be stored in a COLMAP model")
    return name


def _points(
    bin_file: BinaryIO | None, txt_file: BinaryIO | None, points: tuple[np.ndarray, np.ndarray] | PointChunks
) -> None:
    count = 0
    if bin_file:
        bin_file.write(struct.pack("<Q", 0))
    if txt_file:
        txt_file.write(b"# 3D point list: POINT3D_ID, X, Y, Z, R, G, B, ERROR, TRACK[]\n")
    for xyz, rgb in _chunks(points):
        rows = np.zeros(len(xyz), _POINT)
        rows["id"] = np.arange(count + 1, count + 1 + len(xyz))
        rows["xyz"], rows["rgb"] = xyz, rgb
        count += len(rows)
        if bin_file:
            bin_file.write(rows.tobytes())
        if txt_file:
            for i, p, c in zip(rows["id"].tolist(), rows["xyz"].tolist(), rows["rgb"].tolist(), strict=True):
                txt_file.write(f"{i} {p[0]!r} {p[1]!r} {p[2]!r} {c[0]} {c[1]} {c[2]} 0\n".encode())
    if bin_file:
        bin_file.seek(0)
        bin_file.write(struct.pack("<Q", count))


def _chunks(points: tuple[np.ndarray, np.ndarray] | PointChunks) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    pairs = [points] if isinstance(points, tuple) else points
    for xyz, rgb in pairs:
        if len(xyz) != len(rgb):
            raise ValueError(f"{len(xyz)} positions with {len(rgb)} colours")
        for at in range(0, len(xyz), _CHUNK):
            yield xyz[at : at + _CHUNK], rgb[at : at + _CHUNK]
