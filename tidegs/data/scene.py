"""What a scene folder holds once it is read: cameras, seed points and the transform to the scene frame."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tidegs.errors import SceneError

if TYPE_CHECKING:
    from tidegs.data.observed import Observed

Chunks = Iterable[tuple[np.ndarray, np.ndarray]]  # points: xyz float64 [n, 3] in the world frame, rgb uint8 [n, 3]


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


class PointSource(Protocol):
    """Seed points in the scene frame, in memory or on their way from a file."""

    @property
    def count(self) -> int:
        """Number of points; of a file that is not read yet, what it states, points without a place included."""

    def chunks(self, rows: int = 1 << 20) -> Iterator[Points]:
        """The points in file order, at most `rows` at a time. May be called again, and yields the same."""

    def gather(self) -> Points:
        """All points in memory."""


@dataclass(frozen=True)
class Points:
    """Seed points in the scene frame, in memory."""

    xyz: np.ndarray  # float32 [n, 3]
    rgb: np.ndarray  # uint8 [n, 3]

    @property
    def count(self) -> int:
        """Number of points."""
        return len(self.xyz)

    def chunks(self, rows: int = 1 << 20) -> Iterator[Points]:
        """The points in order, at most `rows` at a time."""
        for at in range(0, len(self.xyz), rows):
            yield Points(self.xyz[at : at + rows], self.rgb[at : at + rows])

    def gather(self) -> Points:
        """Itself."""
        return self


@dataclass(frozen=True)
class Scene:
    """A whole input scene. Splits are tuples of indices into `cameras`, which are sorted by name."""

    root: Path
    cameras: tuple[Camera, ...]
    points: PointSource
    transform: WorldTransform
    train: tuple[int, ...]
    test: tuple[int, ...]
    extent: float  # 1.1 x greatest distance of a camera from their mean, scene units (gsplat's scene_scale, robust)
    warnings: tuple[str, ...] = ()
    observed: Callable[[], Observed] | None = None  # reads which points each image shows, where the input states it

    def require_points(self) -> PointSource:
        """The seed points. Raises SceneError where there are none, as training has nothing to start from."""
        if self.points.count == 0:
            raise SceneError(
                f"{self.root}: the scene has no 3D points to start from (points3D is absent or empty); "
                "export points3D from COLMAP, or start with --init-random 100000 or from a file with --init"
            )
        return self.points
