"""The poses of the training cameras, refined along with the scene.

Invariant: a pose changes between steps only, after a step that showed its camera. So the blocks that a step needs,
which are found when it starts, are found from the poses that it renders.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, overload

import numpy as np

from tidegs.config import TrainConfig
from tidegs.data.scene import Scene
from tidegs.device.base import View
from tidegs.errors import ConfigError
from tidegs.train.camera_values import CameraValues
from tidegs.train.rigid import motion, motion_gradient

DECAY = 0.01  # of the rate, reached at the last step


class Poses(Sequence[View]):
    """The views of a scene's cameras as they are refined: `views`, and the motion of each in its own frame.

    A motion has six numbers: a translation in extents of the scene, so that rates and weight decay mean the same in any
    unit, and a rotation vector in radians. The view matrix is the motion times the scene's.
    """

    def __init__(self, scene: Scene, views: Sequence[View], config: TrainConfig) -> None:
        self._scene, self._views = scene, list(views)
        rate = config.pose_opt_lr * math.sqrt(config.batch_size)
        none = np.zeros((len(views), 6), np.float32)
        self._motions = CameraValues("poses", none, rate, DECAY, config.max_steps, config.pose_opt_reg)
        self._grads: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self._views)

    @overload
    def __getitem__(self, camera: int) -> View: ...
    @overload
    def __getitem__(self, camera: slice) -> list[View]: ...
    def __getitem__(self, camera: int | slice) -> View | list[View]:
        """A view as it is now: the same object until it changes."""
        return self._views[camera]

    def viewmat(self, camera: int) -> np.ndarray:
        """Refined, float64 [4, 4]."""
        return motion(*self._motion(camera)) @ self._scene.cameras[camera].viewmat

    def _motion(self, camera: int) -> tuple[np.ndarray, np.ndarray]:
        """Rotation vector, and translation in scene units."""
        numbers = self._motions.values[camera].astype(np.float64)
        return numbers[3:], numbers[:3] * self._scene.extent

    def collect(self, camera: int, grad: np.ndarray) -> None:
        """A step's gradient of one showing of a camera: BlockUpdates.pose, summed."""
        self._grads[camera] = self._grads.get(camera, 0.0) + grad

    def step_done(self, step: int) -> None:
        """Moves the cameras that the step showed; one whose gradient overflowed stays."""
        for camera, grad in self._grads.items():
            by_w, by_d = motion_gradient(*self._motion(camera), grad)
            together = np.concatenate([by_d * self._scene.extent, by_w])
            if (np.abs(together) < 1e18).all():
                self._motions.update(camera, together, step)
                self._renew(camera)
        self._grads.clear()

    def _renew(self, camera: int) -> None:
        self._views[camera] = replace(self._views[camera], viewmat=self.viewmat(camera).astype(np.float32))

    def dump(self) -> str:
        """For a snapshot."""
        return self._motions.dump()

    def load(self, text: str, path: str) -> None:
        """What `dump` gave. Raises StoreError where it is of another number of cameras."""
        self._motions.load(text, path)
        for camera in np.flatnonzero(self._motions.values.any(1)).tolist():
            self._renew(camera)

    def as_json(self) -> dict[str, Any]:
        """The training cameras in the frame of the input, for `poses.json`."""
        return {
            "frame": "the input's; cameras look along +z, y is down",
            "poses": [self._described(camera) for camera in self._scene.train],
        }

    def _described(self, camera: int) -> dict[str, Any]:
        before, viewmat = self._scene.cameras[camera], self.viewmat(camera)
        turn = float(np.linalg.norm(self._motion(camera)[0]))
        places = self._scene.transform.to_world(np.stack([np.linalg.inv(m)[:3, 3] for m in (before.viewmat, viewmat)]))
        pose = np.eye(4)
        pose[:3, :3], pose[:3, 3] = viewmat[:3, :3].T, places[1]
        return {
            "name": before.name,
            "camera_to_world": pose.tolist(),
            "moved": float(np.linalg.norm(places[1] - places[0])),
            "turned_degrees": math.degrees(turn),
        }


def check_resumed(config: TrainConfig, before: TrainConfig) -> None:
    """Raises ConfigError where a resume would lose the poses of the run."""
    if before.pose_opt and not config.pose_opt:
        raise ConfigError(
            "the run was begun with --pose-opt, and without it its Gaussians would be trained on other poses: resume "
            "with --pose-opt, and with --pose-opt-lr 0 to leave the poses as they are"
        )
