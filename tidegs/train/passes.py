"""One pass on a device: what "whole", "forward", "backward" and "render" mean, in one place.

Invariant: a camera's frame is complete when its "whole" pass begins its loss, however the camera was split.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tidegs.data.images import Loaded
from tidegs.device.base import AdamSettings, BlockUpdates, Device, Frame, LossValue, RenderSettings, View
from tidegs.residency.passes import Pass
from tidegs.train.exposure import Exposures
from tidegs.train.poses import Poses
from tidegs.train.sparse_depths import SparseDepths


@dataclass(frozen=True)
class StepSettings:
    """How to render and optimise in a step."""

    render: RenderSettings
    adam: AdamSettings
    ssim_lambda: float
    batch_size: int
    step: int


class PassRunner:
    """Runs the passes of training, camera after camera."""

    def __init__(
        self,
        device: Device,
        view: Callable[[int], View],
        target: Callable[[int], Loaded],
        exposures: Exposures | None = None,
        depths: SparseDepths | None = None,
        poses: Poses | None = None,
    ) -> None:
        """`view` and `target` (uint8 [height, width, 3] and a mask or None) are those of a camera, by its index;
        `exposures` and `poses` are trained, and `depths` compared, where given."""
        self._device, self._view, self._target = device, view, target
        self._exposures, self._depths, self._poses = exposures, depths, poses
        self._pose_grads: list[np.ndarray] = []  # of the camera's parts, the last one first
        self._frame: Frame | None = None
        self._size = (0, 0)
        self.loss: LossValue | None = None  # of the last camera whose image was complete
        self.mse = 0.0  # of the same image; computed on request only

    def run(self, one: Pass, settings: StepSettings, with_mse: bool = False) -> BlockUpdates | None:
        """Runs a pass; the updates of its blocks where it had a backward."""
        device = self._device
        if one.first_of_camera:
            self._begin(self._view(one.camera), settings.render)
        frame = self._frame
        assert frame is not None
        if one.phase in ("forward", "whole"):
            device.add(one.blocks)
        if one.phase == "whole":
            device.finish(frame)
            target, mask = self._target(one.camera)
            exposures = self._exposures
            exposure = None if exposures is None else exposures.values[one.camera]
            points = self._depths.target(one.camera, mask) if self._depths else None
            share = 1.0 / settings.batch_size
            self.loss = device.loss(frame, target, settings.ssim_lambda, share, mask, exposure, points)
            if exposures is not None and self.loss.exposure_grad is not None:
                exposures.update(one.camera, self.loss.exposure_grad, settings.step)
            if with_mse:
                self.mse = mean_squared_error(frame.image, target, mask)
            device.differentiate(frame)
        if one.phase in ("whole", "backward"):
            updates = device.update(one.part, one.blocks, settings.adam)
            if self._poses is not None:
                self._refine(self._poses, one, updates, settings.step)
            return updates
        return None

    def _refine(self, poses: Poses, one: Pass, updates: BlockUpdates, step: int) -> None:
        """Gradients are summed over the camera's blocks in ascending order, so no bit depends on its parts."""
        assert updates.pose is not None
        self._pose_grads.append(updates.pose)
        if one.last_of_camera:
            poses.collect(one.camera, np.concatenate(self._pose_grads[::-1]).sum(axis=0))
            self._pose_grads.clear()
        if one.last_of_step:
            poses.step_done(step)

    def _begin(self, view: View, settings: RenderSettings) -> None:
        """Every pixel is rendered anew for each camera, so a frame of the same size serves again."""
        if self._frame is None or self._size != (view.width, view.height):
            with_depth = self._depths is not None
            self._frame, self._size = self._device.new_frame(view, with_depth), (view.width, view.height)
        self._device.begin(view, settings, self._frame)


def mean_squared_error(image: np.ndarray, target: np.ndarray, mask: np.ndarray | None = None) -> float:
    """Of an image (float32 [3, height, width], clamped to 0..1 here) against uint8 [height, width, 3], over the pixels
    that count; 0 where none does."""
    clamped = np.clip(image, 0, 1).transpose(1, 2, 0)
    squares = (clamped - target * np.float32(1 / 255)) ** 2
    if mask is not None:
        squares = squares[mask != 0]
    return float(np.mean(squares)) if squares.size else 0.0
