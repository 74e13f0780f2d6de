"""Opens a scene folder: model, images, splits, world transform. Invariant: no image is decoded here; headers only."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from tidegs.data.colmap import find_models, read_colmap
from tidegs.data.files import FileOptions, join_files
from tidegs.data.image_source import ImageSource
from tidegs.data.inputs import Input, View, colmap_input
from tidegs.data.points import PointStream, gather, typical_depth
from tidegs.data.scene import Camera, PointSource, Scene, WorldTransform
from tidegs.data.transforms import find_transforms, transforms_input
from tidegs.data.undistort import pinhole_of, rescale
from tidegs.data.world import fit_transform, positions_of, to_scene_frame
from tidegs.errors import SceneError

EXTENT_MARGIN = 1.1  # gsplat's trainer: scene_scale = 1.1 x greatest distance of a camera from their mean

STREAM_POINTS = 1 << 24  # points beyond which they stay in their file: 250 MB in memory


def load_scene(
    root: Path,
    *,
    factor: int = 1,
    test_every: int = 8,
    images: str | None = None,
    masks: str | None = None,
    invert_masks: bool = False,
    background: tuple[int, int, int] | None = None,
    need_images: bool = True,
) -> Scene:
    """Opens the scene in folder `root`.

    `factor` N > 1 trains on images N times smaller: those of the folder `<images>_N`, found by name, or downscaled by
    area where a file is not there. Every `test_every`-th image by name is held out for testing (0: none). `images` and
    `masks` name folders below the root; masks are found by image name, with or without ".png" appended, and the folder
    "masks" is used where it exists. Alpha is a mask too, unless a `background` (rgb, 0 to 255) is given to blend it
    over. With `need_images` unset, no file is looked for and sizes are the model's.
    Raises SceneError or ImageError.
    """
    root = Path(root)
    if factor < 1 or test_every < 0:
        raise SceneError(f"factor {factor} must be at least 1 and test_every {test_every} at least 0")
    if not root.is_dir():
        raise SceneError(f"{root}: there is no such folder; give the scene folder that holds images and model")
    try:
        return _open(root, FileOptions(factor, images, masks, invert_masks, background), test_every, need_images)
    except OSError as error:
        raise SceneError(
            f"{error.filename or root}: cannot be read ({error.strerror}); check disk and rights"
        ) from None


def _open(root: Path, options: FileOptions, test_every: int, need_images: bool) -> Scene:
    source = _read_input(root)
    warnings = list(source.warnings)
    transform = _transform(root, source, warnings)
    if need_images:
        joined = join_files(root, source, options, warnings)
        cameras = tuple(_camera(view, file, transform) for view, file in joined)
    else:
        cameras = tuple(_bare_camera(source, view, options.factor, transform) for view in source.views)
    points = _points(root, source, transform, warnings)
    train, test = _split(source, cameras, test_every, warnings)
    observed = None if source.observed is None else partial(source.observed, transform)
    return Scene(root, cameras, points, transform, train, test, EXTENT_MARGIN, tuple(warnings), observed)


def _read_input(root: Path) -> Input:
    files = find_transforms(root)
    if files and not find_models(root, deep=False):
        return transforms_input(root, files)
    return colmap_input(root, read_colmap(root))


def _transform(root: Path, source: Input, warnings: list[str]) -> WorldTransform:
    positions = positions_of(np.stack([v.viewmat for v in source.views]))
    transform, stray = fit_transform(positions, lambda at: typical_depth(source.points(), at))
    if stray.any():
        first = source.views[int(np.flatnonzero(stray)[0])].name
        warnings.append(
            f"{root}: {np.count_nonzero(stray)} cameras lie far from all others (first: {first!r}) and do not count "
            "in the scene extent"
        )
    return transform


def _points(root: Path, source: Input, transform: WorldTransform, warnings: list[str]) -> PointSource:
    """In memory where they are few or their number is unknown, else a stream."""
    if source.point_count is not None and source.point_count > STREAM_POINTS:
        return PointStream(source.points, transform, source.point_count)
    points, dropped = gather(source.points(), transform)
    if dropped:
        warnings.append(f"{root}: {dropped} points with coordinates that are not finite or absurdly far were dropped")
    if points.count == 0:
        warnings.append(f"{root}: the scene has no 3D points")
    return points


def _camera(view: View, file: ImageSource, transform: WorldTransform) -> Camera:
    fx, fy, cx, cy = file.pinhole.params
    K = np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1.0]])
    viewmat = to_scene_frame(view.viewmat, transform)
    return Camera(view.name, file.path, viewmat, K, file.pinhole.width, file.pinhole.height, file)


def _bare_camera(source: Input, view: View, factor: int, transform: WorldTransform) -> Camera:
    size = (view.camera.width, view.camera.height)
    target = (max(1, round(size[0] / factor)), max(1, round(size[1] / factor)))
    camera = rescale(view.camera, *target)
    path = source.folders[0] / view.name
    return _camera(view, ImageSource(path, size, camera, pinhole_of(camera), False), transform)


def _split(
    source: Input, cameras: tuple[Camera, ...], test_every: int, warnings: list[str]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Indices (train, test): the format's own split where it has one, else every test_every-th by name is test."""
    if test_every == 0:
        return tuple(range(len(cameras))), ()
    if source.test is not None:
        held_out = {i for i, c in enumerate(cameras) if c.name in source.test}
    else:
        held_out = set(range(0, len(cameras), test_every))
    train = tuple(i for i in range(len(cameras)) if i not in held_out)
    if not train:
        warnings.append(f"{source.where}: no image is left to train on beside the test images; all are trained on")
        train = tuple(range(len(cameras)))
    return train, tuple(sorted(held_out))
