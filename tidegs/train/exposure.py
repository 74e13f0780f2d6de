"""The exposure of each camera: colour transforms that are trained along with the scene, and forgotten at its export."""

from __future__ import annotations

import numpy as np

from tidegs.train.camera_values import CameraValues

DECAY = 0.1  # of the rate, reached at the last step


class Exposures(CameraValues):
    """[A | b] float32 [cameras, 3, 4], the identity at first: see tidegs.device.exposure."""

    def __init__(self, cameras: int, lr: float, max_steps: int) -> None:
        identity = np.tile(np.eye(3, 4, dtype=np.float32), (cameras, 1, 1))
        super().__init__("exposures", identity, lr, DECAY, max_steps)
