"""What a scene folder holds once it is read: cameras, seed points and the transform to the scene frame."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class WorldTransform:
    """scene = (world - center) * scale, float64. Keeps exports in the input's frame."""

    center: np.ndarray  # float64 [3], world units
    scale: float  # scene units in a world unit

    def to_scene(self, xyz: np.ndarray) -> np.ndarray:
        """World points [n, 3] to the scene frame, float64."""
        return (np.asarray(xyz, np.float64) - self.center) * self.scale

    def to_world(self, xyz: np.ndarray) -> np.ndarray:
        """Scene points [n, 3] to the world frame, float64."""
        return np.asarray(xyz, np.float64) / self.scale + self.center


@dataclass(frozen=True)
class Camera:
    """One image and its pinhole camera after undistortion and downscaling; poses in the scene frame."""

    name: str  # image name, relative to the image folder, as in the model
    path: Path  # the image file
    viewmat: np.ndarray  # float64 [4, 4], scene frame to OpenCV camera frame
    K: np.ndarray  # float64 [3, 3], pixels
    width: int
    height: int
    source: object = None  # how to get from the file to the pinhole image (undistortion); owned by data/


@dataclass(frozen=True)
class Points:
    """Seed points in the scene frame."""

    xyz: np.ndarray  # float32 [n, 3]
    rgb: np.ndarray  # uint8 [n, 3]


@dataclass(frozen=True)
class Scene:
    """A whole input scene. Splits are tuples of indices into `cameras`, which are sorted by name."""

    root: Path
    cameras: tuple[Camera, ...]
    points: Points
    transform: WorldTransform
    train: tuple[int, ...]
    test: tuple[int, ...]
    extent: float  # 1.1 x greatest distance of a camera from their mean, scene units (gsplat's scene_scale, robust)
    warnings: tuple[str, ...] = ()
