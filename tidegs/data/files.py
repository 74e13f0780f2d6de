"""Joins the views of a model with the files on disk: which file, of what size, with which mask. Reads headers only."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tidegs.data.colmap_model import ColmapCamera
from tidegs.data.image_file import read_size
from tidegs.data.image_folder import ImageFolder
from tidegs.data.image_source import ImageSource, make_source
from tidegs.data.inputs import Input, View
from tidegs.data.undistort import rescale
from tidegs.errors import SceneError

_THREADS = 8  # header reads wait for the disk, not for the CPU


@dataclass(frozen=True)
class FileOptions:
    """The part of load_scene's arguments that is about files."""

    factor: int = 1
    images: str | None = None
    masks: str | None = None
    invert_masks: bool = False
    background: tuple[int, int, int] | None = None


def join_files(root: Path, source: Input, options: FileOptions, warnings: list[str]) -> list[tuple[View, ImageSource]]:
    """The views whose file exists, each with how to load it. Raises SceneError where no file exists or one has another
    aspect than its camera, ImageError where a header cannot be read."""
    folder = _image_folder(root, source, options)
    found = _match(folder, _SmallImages(root, folder, options.factor), source.views)
    missing = [v.name for v in source.views if v.name not in found]
    if missing:
        warnings.append(
            f"{folder.root}: {len(missing)} of {len(source.views)} images are missing and left out ({_first(missing)})"
        )
    masks = _Masks(root, options)
    with ThreadPoolExecutor(_THREADS) as pool:
        sizes = list(pool.map(read_size, [path for path, _ in found.values()]))
    out, resized = [], []
    views = [v for v in source.views if v.name in found]
    for view, (path, is_small), size in zip(views, found.values(), sizes, strict=True):
        _check_aspect(source.where, view.camera, path, size)
        target = size if is_small else tuple(max(1, round(s / options.factor)) for s in size)
        if not is_small and size != (view.camera.width, view.camera.height):
            resized.append(view.name)
        camera = rescale(view.camera, *target)
        file = make_source(source.where, path, size, camera, masks.find(view), options.invert_masks, options.background)
        out.append((view, file))
    if resized:
        warnings.append(
            f"{folder.root}: {len(resized)} images are not of the size that {source.where.name} states; the cameras "
            f"were scaled to fit ({_first(resized)})"
        )
    warnings.extend(masks.warnings(len(out)))
    return out


def _match(folder: ImageFolder, small: _SmallImages, views: Sequence[View]) -> dict[str, tuple[Path, bool]]:
    """By name, in the order of the views: the file, and whether it is a downscaled one. A file that two names would
    share belongs to the one that names it exactly."""
    found: dict[str, tuple[Path, bool]] = {}
    owners: dict[Path, str] = {}
    for view in views:
        downscaled = small.find(view.name)
        path = downscaled or folder.find(view.name)
        if path is None:
            continue
        if path in owners:
            if path.name != Path(view.name).name:
                continue
            del found[owners[path]]
        owners[path] = view.name
        found[view.name] = (path, downscaled is not None)
    return {v.name: found[v.name] for v in views if v.name in found}


def _first(names: Sequence[str]) -> str:
    return "first: " + ", ".join(repr(n) for n in names[:3])


def _image_folder(root: Path, source: Input, options: FileOptions) -> ImageFolder:
    """The first folder that has a file for any view."""
    places = (root / options.images,) if options.images is not None else source.folders
    if options.factor > 1:
        places = tuple(q for p in places for q in (p, p.with_name(f"{p.name}_{options.factor}")))
    tried = []
    for place in dict.fromkeys(places):
        if place.is_dir():
            folder = ImageFolder(place)
            if any(folder.find(v.name) for v in source.views):
                return folder
            tried.append(place)
    looked = ", ".join(os.path.relpath(p, root) for p in tried if p != root) or "the scene folder"
    scaled = sorted(p.name for p in root.glob("images_*") if p.is_dir())
    hint = f" ({', '.join(scaled)} exist: set the factor)" if scaled and options.factor == 1 else ""
    raise SceneError(
        f"{root}: none of the model's {len(source.views)} images was found in {looked}{hint} "
        f"({_first([v.name for v in source.views])}); put them in {options.images or 'images'}/ or name their folder"
    )


class _SmallImages:
    """Images downscaled ahead by a factor: in the folder beside the images (images_4), or, where names start at the
    scene folder, in one beside the folder that they name (images/a.jpg: images_4/a.jpg)."""

    def __init__(self, root: Path, folder: ImageFolder, factor: int) -> None:
        self._factor, self._within = factor, folder.root == root
        self._folder = folder
        if not self._within and not folder.root.name.endswith(f"_{factor}"):
            self._folder = ImageFolder(folder.root.with_name(f"{folder.root.name}_{factor}"))

    def find(self, name: str) -> Path | None:
        if self._factor == 1:
            return None
        if not self._within:
            return self._folder.find(name)
        first, slash, rest = name.partition("/")
        return self._folder.find(f"{first}_{self._factor}/{rest}") if slash else None


def _check_aspect(where: Path, camera: ColmapCamera, path: Path, size: tuple[int, int]) -> None:
    """Sizes agree where the width follows from the height by the camera's aspect, but for the rounding of both."""
    width, height = size
    aspect = camera.width / camera.height
    if abs(width - height * aspect) <= max(1.0, aspect):
        return
    turned = abs(height - width * aspect) <= max(1.0, aspect)
    raise SceneError(
        f"{path}: the image is {width}x{height}, but camera {camera.camera_id} in {where} is "
        f"{camera.width}x{camera.height}"
        + (", so it was turned after the model was made" if turned else "")
        + "; use the images that the model was made from"
    )


class _Masks:
    """Finds masks: the file that the model names, else masks/<name>.png or masks/<name with another extension>."""

    def __init__(self, root: Path, options: FileOptions) -> None:
        place = root / (options.masks or "masks")
        if options.masks is not None and not place.is_dir():
            raise SceneError(f"{place}: there is no such mask folder; correct its name or leave it out")
        self._root, self._folder = root, ImageFolder(place) if place.is_dir() else None
        self._missing: list[str] = []
        self._found = 0

    def find(self, view: View) -> Path | None:
        if view.mask is not None:
            path: Path | None = self._root / view.mask
            if not path or not path.is_file():
                raise SceneError(
                    f"{path}: the mask of image {view.name!r} is missing; restore it or drop its mask_path"
                )
            return path
        if self._folder is None:
            return None
        path = self._folder.find(f"{view.name}.png") or self._folder.find(view.name)
        if path is None:
            self._missing.append(view.name)
        else:
            self._found += 1
        return path

    def warnings(self, images: int) -> list[str]:
        if self._folder is None or not self._missing:
            return []
        return [f"{self._folder.root}: {len(self._missing)} of {images} images have no mask ({_first(self._missing)})"]
