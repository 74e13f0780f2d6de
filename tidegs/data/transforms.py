"""Reads transforms.json as nerfstudio, instant-ngp, Blender (NeRF synthetic) and MatrixCity write it. Invariant: the
world frame is the file's; cameras turn from OpenGL axes (y up, z back) to OpenCV's (y down, z forward)."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from tidegs.data.colmap_model import CAMERA_MODELS, MODEL_IDS, ColmapCamera
from tidegs.data.image_file import read_size
from tidegs.data.image_folder import ImageFolder
from tidegs.data.inputs import Chunks, Input, View
from tidegs.data.point_cloud import count_ply_points, read_ply_points
from tidegs.errors import SceneError

_SPLITS = ("transforms_train.json", "transforms_test.json", "transforms_val.json")
_POINTS = ("sparse_pc.ply", "points3d.ply", "points3D.ply")
_PERSPECTIVE = ("SIMPLE_PINHOLE", "PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV", "FULL_OPENCV")

Json = dict[str, Any]


def find_transforms(root: Path) -> list[Path]:
    """The files that describe the scene: transforms.json, or the train file and that of the held-out images (test
    before val); empty where there are none."""
    whole, train, test, val = root / "transforms.json", *(root / name for name in _SPLITS)
    if train.is_file():
        return [train, *[p for p in (test, val) if p.is_file()][:1]]
    return [whole] if whole.is_file() else []


def transforms_input(root: Path, files: list[Path]) -> Input:
    """The scene of `find_transforms`' files as input. Raises SceneError."""
    documents = [_load(path) for path in files]
    views: dict[str, View] = {}
    held_out: set[str] = set()
    reader = _Cameras(root)
    for n, (path, document) in enumerate(zip(files, documents, strict=True)):
        chosen, tested = _listed(document)
        for i, frame in enumerate(document["frames"]):
            where = f"{path}: frame {i + 1}"
            name = _name(where, frame)
            if name in views:
                raise SceneError(f"{where} names the image {name!r} a second time; remove one of the two frames")
            if chosen and name not in chosen:
                continue
            mask = frame.get("mask_path", document.get("mask_path"))
            camera = reader.camera(where, {**document, **frame}, name)
            views[name] = View(name, camera, _viewmat(where, frame), None if mask is None else str(mask))
            if n == 1 or name in tested:
                held_out.add(name)
    warnings: list[str] = []
    points = _points_path(root, files[0], documents[0], warnings)
    folders = (root, root / "images", root / "input", root / "rgb")
    ordered = tuple(views[name] for name in sorted(views))
    split = frozenset(held_out) if held_out else None
    count = count_ply_points(points) if points else 0

    def stream() -> Chunks:
        return read_ply_points(points) if points else ()

    return Input(files[0], ordered, stream, folders, tuple(warnings), split, count)


def _load(path: Path) -> Json:
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig", errors="surrogateescape"))
    except json.JSONDecodeError as error:
        raise SceneError(f"{path}: line {error.lineno} is not JSON ({error.msg}); correct it or export again") from None
    frames = document.get("frames") if isinstance(document, dict) else None
    if not isinstance(frames, list) or not frames or not all(isinstance(f, dict) for f in frames):
        raise SceneError(f"{path}: the list 'frames' is missing or empty; export the cameras again")
    return dict(document)


def _listed(document: Json) -> tuple[set[str], set[str]]:
    """nerfstudio's lists of names: (all that are used, those held out); both empty where it has none."""
    lists = {key: {_plain(str(n)) for n in document.get(f"{key}_filenames", ())} for key in ("train", "val", "test")}
    tested = lists["test"] or lists["val"]
    return (lists["train"] | tested if lists["train"] else set()), tested


def _plain(name: str) -> str:
    return os.path.normpath(name.replace("\\", "/"))


def _name(where: str, frame: Json) -> str:
    name = frame.get("file_path")
    if name is None and isinstance(frame.get("frame_index"), int):  # MatrixCity as rendered
        return f"{frame['frame_index']:04d}.png"
    if not isinstance(name, str) or not name:
        raise SceneError(f"{where} has no 'file_path'; add the path of its image")
    return _plain(name)


def _viewmat(where: str, frame: Json) -> np.ndarray:
    """World to camera, float64 [4, 4], of a camera-to-world matrix whose axes may be scaled (MatrixCity's are)."""
    key = "transform_matrix" if "transform_matrix" in frame else "rot_mat"
    try:
        pose = np.array(frame.get(key), np.float64)
    except (TypeError, ValueError):
        pose = np.empty(0)
    if pose.shape not in ((4, 4), (3, 4)) or not np.isfinite(pose).all():
        raise SceneError(f"{where} has no 'transform_matrix' of 4x4 finite numbers; export the cameras again")
    axes = pose[:3, :3] * np.array([1.0, -1.0, -1.0])
    lengths = np.linalg.norm(axes, axis=0)
    unit = axes / np.maximum(lengths, 1e-300)
    if lengths.min() < 1e-12 or np.abs(unit.T @ unit - np.eye(3)).max() > 1e-2 or np.linalg.det(unit) < 0:
        raise SceneError(f"{where} has a '{key}' whose first three columns are no rotation; export the cameras again")
    u, _, vt = np.linalg.svd(unit)
    rotation = (u @ vt).T
    out = np.eye(4)
    out[:3, :3], out[:3, 3] = rotation, -rotation @ pose[:3, 3]
    return out


class _Cameras:
    """Builds cameras from keys of the document and its frames; equal ones share an id."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._ids: dict[tuple, int] = {}
        self._size: tuple[int, int] | None = None

    def camera(self, where: str, keys: Json, name: str) -> ColmapCamera:
        width, height = (self._number(where, keys, key, 0.0) for key in ("w", "h"))
        if width < 1 or height < 1:
            width, height = self._first_size(where, name)
        focal_x, focal_y = self._focal(where, keys, int(width), int(height))
        model = self._model(where, keys)
        values = {"fx": focal_x, "fy": focal_y}
        values["cx"] = self._number(where, keys, "cx", width / 2)
        values["cy"] = self._number(where, keys, "cy", height / 2)
        fields = CAMERA_MODELS[MODEL_IDS[model]][1]
        params = tuple(values[f] if f in values else self._number(where, keys, f, 0.0) for f in fields)
        key = (model, int(width), int(height), params)
        return ColmapCamera(self._ids.setdefault(key, len(self._ids) + 1), model, int(width), int(height), params)

    def _model(self, where: str, keys: Json) -> str:
        """COLMAP's name; a perspective camera gets the simplest model that has all its terms."""
        stated = str(keys.get("camera_model", "OPENCV")).upper()
        if keys.get("is_fisheye") or stated == "OPENCV_FISHEYE":
            return "OPENCV_FISHEYE"
        if stated not in _PERSPECTIVE:
            raise SceneError(
                f"{where} has the camera_model {stated!r}, which has no pinhole equivalent here; "
                "use OPENCV, OPENCV_FISHEYE or PINHOLE"
            )
        if any(self._number(where, keys, k, 0.0) for k in ("k3", "k4", "k5", "k6")):
            return "FULL_OPENCV"
        return "OPENCV" if any(self._number(where, keys, k, 0.0) for k in ("k1", "k2", "p1", "p2")) else "PINHOLE"

    def _focal(self, where: str, keys: Json, width: int, height: int) -> tuple[float, float]:
        """fl_x and fl_y in pixels, or fields of view in radians; one of each axis serves both."""
        found = []
        for length, angle, size in (("fl_x", "camera_angle_x", width), ("fl_y", "camera_angle_y", height)):
            value = self._number(where, keys, length, 0.0)
            field = self._number(where, keys, angle, 0.0)
            if not value and 0 < field < math.pi:
                value = 0.5 * size / math.tan(0.5 * field)
            found.append(value)
        x, y = found[0] or found[1], found[1] or found[0]
        if min(x, y) < 0.005 * max(width, height):
            raise SceneError(
                f"{where} has no usable focal length (fl_x = {x:g} pixels for an image of {width}x{height}); "
                "add fl_x or camera_angle_x"
            )
        return x, y

    def _number(self, where: str, keys: Json, key: str, default: float) -> float:
        value = keys.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise SceneError(f"{where} has {key} = {value!r}, which is not a number; correct it")
        return float(value)

    def _first_size(self, where: str, name: str) -> tuple[int, int]:
        """The size of the first image that is asked for: all frames share it where the document states none."""
        if self._size is None:
            path = ImageFolder(self._root).find(name)
            if path is None:
                raise SceneError(f"{where}: neither w and h are given nor is the image {name!r} there; add one of them")
            self._size = read_size(path)
        return self._size


def _points_path(root: Path, file: Path, document: Json, warnings: list[str]) -> Path | None:
    stated = document.get("ply_file_path")
    if stated is not None:
        if (root / str(stated)).is_file():
            return root / str(stated)
        warnings.append(f"{file}: ply_file_path {stated!r} does not exist")
    return next((root / name for name in _POINTS if (root / name).is_file()), None)
