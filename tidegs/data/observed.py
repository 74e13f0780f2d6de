"""Which points each image of a COLMAP model shows: what depths are compared with.

Invariant: the 2D points stay in images.bin, and are read for one image at a time. In memory are the points' places and
ids (20 bytes a point), and where the 2D points of each image begin.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tidegs.data.colmap import ColmapModel
from tidegs.data.colmap_binary import read_points_with_ids
from tidegs.data.points import to_scene
from tidegs.data.scene import WorldTransform
from tidegs.errors import SceneError

_ROW = np.dtype([("xy", "<f8", 2), ("id", "<u8")])  # a 2D point; the id is 2^64 - 1 where it is of no 3D point


@dataclass(frozen=True)
class Observed:
    """See the top of the file."""

    path: Path  # images.bin
    places: dict[str, tuple[int, int]]  # by image name: place and number of its 2D points
    ids: np.ndarray  # uint64 [n], ascending
    xyz: np.ndarray  # float32 [n, 3], scene frame

    def points(self, name: str) -> np.ndarray:
        """The points that an image shows, float32 [n, 3], scene frame. Raises SceneError."""
        place, count = self.places[name]
        with open(self.path, "rb", buffering=0) as f:
            f.seek(place)
            data = f.read(count * _ROW.itemsize)
        if len(data) < count * _ROW.itemsize:
            raise SceneError(f"{self.path}: the file became shorter while tidegs ran; copy or export it again")
        wanted = np.unique(np.frombuffer(data, _ROW)["id"])
        at = np.searchsorted(self.ids, wanted)
        at[at == len(self.ids)] = 0
        return self.xyz[at[self.ids[at] == wanted]] if len(self.ids) else self.xyz


def colmap_observed(model: ColmapModel, transform: WorldTransform) -> Observed:
    """Of a binary model. Raises SceneError where the model is text, or no image has a 2D point."""
    images = model.folder / "images.bin"
    if model.cameras_path.suffix != ".bin" or model.points_path is None or model.points_path.suffix != ".bin":
        raise SceneError(
            f"{model.folder}: --depth-loss reads binary models with points3D.bin alone; "
            "write one with `colmap model_converter --output_type BIN`, or leave it out"
        )
    places = {i.name: i.seen for i in model.images}
    if not any(count for _, count in places.values()):
        raise SceneError(
            f"{images}: no image has 2D points, so the depth of none is known; "
            "export the model again with them, or leave out --depth-loss"
        )
    ids, xyz = [np.empty(0, np.uint64)], [np.empty((0, 3), np.float32)]
    for numbers, world, rgb in read_points_with_ids(model.points_path):
        for points, good in to_scene([(world, rgb)], transform):
            ids.append(numbers[good])
            xyz.append(points.xyz)
    all_ids, all_xyz = np.concatenate(ids), np.concatenate(xyz)
    order = np.argsort(all_ids, kind="stable")
    return Observed(images, places, all_ids[order], all_xyz[order])
