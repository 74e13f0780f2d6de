"""The points that each image shows, as the loss compares them: where they stand in the image, and how far away.

Invariant: what a camera's target is depends on scene and mask alone.
"""

from __future__ import annotations

import numpy as np

from tidegs.data.scene import Scene
from tidegs.device.base import SparseDepth
from tidegs.errors import SceneError


class SparseDepths:
    """Of a scene whose input states which points its images show. Raises SceneError where it does not."""

    def __init__(self, scene: Scene, depth_lambda: float) -> None:
        if scene.observed is None:
            raise SceneError(
                f"{scene.root}: --depth-loss needs a COLMAP model, which states the points that each image shows; "
                "leave it out for this scene"
            )
        self._cameras, self._observed = scene.cameras, scene.observed()
        self._weight = depth_lambda * scene.extent  # disparities are in units of 1 / length: gsplat scales alike

    def target(self, camera: int, mask: np.ndarray | None) -> SparseDepth | None:
        """Of the camera's image; None where it shows no point among the pixels that count."""
        view = self._cameras[camera]
        xyz = self._observed.points(view.name).astype(np.float64)
        local = xyz @ view.viewmat[:3, :3].T + view.viewmat[:3, 3]
        local = local[local[:, 2] > 1e-6]
        depth = local[:, 2]
        xy = local[:, :2] / depth[:, None] * np.diag(view.K)[:2] + view.K[:2, 2]
        inside = (xy >= 0.5).all(1) & (xy <= np.array([view.width, view.height]) - 0.5).all(1)
        if mask is not None:
            inside[inside] = _all_count(xy[inside], mask)
        if not inside.any():
            return None
        return SparseDepth(xy[inside].astype(np.float32), (1.0 / depth[inside]).astype(np.float32), self._weight)


def _all_count(xy: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """bool [n]: whether the four pixels around each place in the image count."""
    x0, y0 = (xy - 0.5).astype(np.int64).T
    x1, y1 = np.minimum(x0 + 1, mask.shape[1] - 1), np.minimum(y0 + 1, mask.shape[0] - 1)
    out: np.ndarray = (mask[y0, x0] != 0) & (mask[y0, x1] != 0) & (mask[y1, x0] != 0) & (mask[y1, x1] != 0)
    return out
