"""What every input format comes down to before image files are looked at: views and a stream of points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tidegs.data.colmap import ColmapModel
from tidegs.data.colmap_model import ColmapCamera
from tidegs.data.observed import Observed, colmap_observed
from tidegs.data.scene import Chunks, WorldTransform
from tidegs.data.world import rotation_of


@dataclass(frozen=True)
class View:
    """One image as the model states it."""

    name: str
    camera: ColmapCamera
    viewmat: np.ndarray  # float64 [4, 4], world to OpenCV camera frame
    mask: str | None = None  # a mask file that the model names


@dataclass(frozen=True)
class Input:
    """A scene as its format states it."""

    where: Path  # the file that states the cameras, for messages
    views: tuple[View, ...]  # sorted by name
    points: Callable[[], Chunks]
    folders: tuple[Path, ...]  # where image names may start, best first
    warnings: tuple[str, ...] = ()
    test: frozenset[str] | None = None  # names held out, where the format says so
    point_count: int | None = None  # number of points, where it is known without reading them
    observed: Callable[[WorldTransform], Observed] | None = None  # which points each image shows, where it is stated


def colmap_input(root: Path, model: ColmapModel) -> Input:
    """A COLMAP model as input; images are looked for beside the model's folders and in the root."""
    views = []
    for image in model.images:
        viewmat = np.eye(4)
        viewmat[:3, :3], viewmat[:3, 3] = rotation_of(image.qvec), image.tvec
        views.append(View(image.name, model.cameras[image.camera_id], viewmat))
    places = [root, *(p for p in (model.folder.parent, model.folder.parent.parent) if p != root)]
    folders = [p / name for name in ("images", "input", "rgb") for p in places] + [root]
    return Input(
        model.cameras_path,
        tuple(views),
        model.points,
        tuple(folders),
        model.warnings,
        None,
        model.point_count(),
        lambda transform: colmap_observed(model, transform),
    )
