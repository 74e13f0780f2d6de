"""Finds the COLMAP model of a scene folder and reads it. Invariant: what is returned is consistent: every image has a
camera, a finite pose and a name of its own, every camera a positive size and focal length."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tidegs.data import colmap_binary, colmap_text
from tidegs.data.colmap_model import CAMERA_MODELS, MODEL_IDS, ColmapCamera, ColmapImage
from tidegs.errors import SceneError

_DEPTH = 3  # folders below the root that are searched for a model
_LIMIT = 256  # entries of a folder beyond which its sub-folders are not searched: it holds images


@dataclass(frozen=True)
class ColmapModel:
    """A model as read: poses and ids of the files, points left on disk."""

    folder: Path
    cameras_path: Path
    cameras: dict[int, ColmapCamera]
    images: tuple[ColmapImage, ...]  # sorted by name
    points_path: Path | None
    warnings: tuple[str, ...]

    def point_count(self) -> int | None:
        """The number of points that the file's head states; None for a text file, which has to be read to know."""
        if self.points_path is None:
            return 0
        return colmap_binary.count_points_bin(self.points_path) if self.points_path.suffix == ".bin" else None

    def points(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Chunks (xyz float64 [n, 3], rgb uint8 [n, 3]), world frame, NaN and Inf as they are; none without a file."""
        if self.points_path is None:
            return iter(())
        if self.points_path.suffix == ".bin":
            return colmap_binary.read_points_bin(self.points_path)
        return colmap_text.read_points_txt(self.points_path)


def find_models(root: Path, deep: bool = True) -> list[Path]:
    """Folders with both cameras and images files, those of the first place that has any: sparse/, colmap/sparse/, the
    root itself and, where `deep` is set, any folder down to three levels below the root."""
    for place, depth in ((root / "sparse", 2), (root / "colmap" / "sparse", 2), (root, _DEPTH if deep else 0)):
        found = [f for f in _folders(place, depth) if _suffix(f)]
        if found:
            return found
    return []


def read_colmap(root: Path) -> ColmapModel:
    """Reads the scene's model, that of most images where there are several. Raises SceneError."""
    folder, warnings = _choose(root)
    suffix = _suffix(folder)
    cameras_path, images_path = folder / f"cameras{suffix}", folder / f"images{suffix}"
    if suffix == ".bin":
        cameras, images = colmap_binary.read_cameras_bin(cameras_path), colmap_binary.read_images_bin(images_path)
    else:
        cameras, images = colmap_text.read_cameras_txt(cameras_path), colmap_text.read_images_txt(images_path)
    by_id: dict[int, ColmapCamera] = {}
    for camera in cameras:
        if camera.camera_id in by_id:
            raise SceneError(f"{cameras_path}: camera id {camera.camera_id} occurs twice; remove one of the two")
        by_id[camera.camera_id] = camera
    _check_images(images_path, images, by_id)
    for camera_id in {i.camera_id for i in images}:
        _check_camera(cameras_path, by_id[camera_id])
    points_path = next((p for s in (suffix, ".bin", ".txt") if (p := folder / f"points3D{s}").is_file()), None)
    return ColmapModel(
        folder, cameras_path, by_id, tuple(sorted(images, key=lambda i: i.name)), points_path, tuple(warnings)
    )


def _folders(root: Path, depth: int) -> Iterator[Path]:
    if not root.is_dir():
        return
    yield root
    if depth == 0:
        return
    entries = sorted(os.listdir(root))
    if len(entries) <= _LIMIT:
        for name in entries:
            if not name.startswith(".") and (root / name).is_dir():
                yield from _folders(root / name, depth - 1)


def _suffix(folder: Path) -> str:
    """ ".bin" or ".txt", whichever is complete, binary first; empty where neither is."""
    for suffix in (".bin", ".txt"):
        if all((folder / f"{stem}{suffix}").is_file() for stem in ("cameras", "images")):
            return suffix
    return ""


def _choose(root: Path) -> tuple[Path, list[str]]:
    folders = find_models(root)
    if not folders:
        raise SceneError(_not_found(root))
    if len(folders) == 1:
        return folders[0], []
    counts = [_count(f) for f in folders]
    best = counts.index(max(counts))
    others = ", ".join(
        f"{f.relative_to(root)} ({c})" for f, c in zip(folders, counts, strict=True) if f != folders[best]
    )
    chosen = f"{folders[best].relative_to(root)} ({counts[best]} images)"
    return folders[best], [f"{root}: {len(folders)} COLMAP models were found; using {chosen}, not {others}"]


def _count(folder: Path) -> int:
    """Registered images; 0 of a damaged model, which must not keep its neighbours from being used."""
    suffix = _suffix(folder)
    count = colmap_binary.count_images_bin if suffix == ".bin" else colmap_text.count_images_txt
    try:
        return count(folder / f"images{suffix}")
    except SceneError:
        return 0


def _not_found(root: Path) -> str:
    for folder in _folders(root, _DEPTH):
        have = sorted(p.name for s in (".bin", ".txt") for p in folder.glob(f"*{s}"))
        parts = [n for n in have if n.split(".")[0] in ("cameras", "images", "points3D", "frames", "rigs")]
        if parts:
            lacking = "images" if any(n.startswith("cameras.") for n in parts) else "cameras"
            suffix = Path(parts[0]).suffix
            return (
                f"{folder}: the COLMAP model is incomplete: {', '.join(parts)} but no {lacking}{suffix}; "
                "export the whole model again (cameras, images, points3D)"
            )
    return (
        f"{root}: no scene was found: neither a COLMAP model (cameras and images as .bin or .txt in sparse/0, sparse, "
        "colmap/sparse/0, the folder itself or below) nor transforms.json or transforms_train.json"
    )


def _check_images(path: Path, images: list[ColmapImage], cameras: dict[int, ColmapCamera]) -> None:
    if not images:
        raise SceneError(f"{path}: the model has no registered image; run COLMAP's mapper on more overlapping photos")
    seen: dict[str, int] = {}
    for image in images:
        if not image.name:
            raise SceneError(f"{path}: image id {image.image_id} has an empty name; export the model again")
        if image.name in seen:
            raise SceneError(
                f"{path}: the name {image.name!r} occurs twice, as image ids {seen[image.name]} and "
                f"{image.image_id}; remove one of the two"
            )
        seen[image.name] = image.image_id
        if image.camera_id not in cameras:
            raise SceneError(
                f"{path}: image {image.name!r} refers to camera id {image.camera_id}, which is not in "
                f"cameras{path.suffix}; export both files from the same reconstruction"
            )
        norm = math.sqrt(sum(v * v for v in image.qvec))
        if not (math.isfinite(norm) and norm > 1e-12 and all(map(math.isfinite, image.tvec))):
            raise SceneError(
                f"{path}: image {image.name!r} has no valid pose (QW QX QY QZ TX TY TZ = "
                f"{' '.join(f'{v:g}' for v in (*image.qvec, *image.tvec))}); remove the image from the model"
            )


def _check_camera(path: Path, camera: ColmapCamera) -> None:
    where = f"{path}: camera {camera.camera_id} ({camera.model})"
    if camera.width < 1 or camera.height < 1 or max(camera.width, camera.height) > 1 << 20:
        raise SceneError(
            f"{where} has the size {camera.width}x{camera.height}; correct width and height or export again"
        )
    if camera.model == "EQUIRECTANGULAR":
        raise SceneError(f"{where} cannot become a pinhole camera; cut the panoramas into perspective images first")
    fields = CAMERA_MODELS[MODEL_IDS[camera.model]][1]
    for name, value in zip(fields, camera.params, strict=True):
        if not math.isfinite(value):
            raise SceneError(f"{where} has {name} = {value}; calibrate the camera again or correct the value")
        if name in ("f", "fx", "fy") and value < 0.005 * max(camera.width, camera.height):
            raise SceneError(
                f"{where} has the focal length {name} = {value:g} pixels for an image of {camera.width}x"
                f"{camera.height}; calibrate the camera again or correct the value"
            )
