"""The exposure of each camera: colour transforms that are trained along with the scene, and forgotten at its export.

Invariant: a camera's exposure changes only when a step shows that camera, so it does not depend on how a step is split.
"""

from __future__ import annotations

import base64

import numpy as np

from tidegs.errors import StoreError
from tidegs.train.rates import BETA1, BETA2

DECAY, EPS = 0.1, 1e-8  # of the rate, reached at the last step; of Adam


class Exposures:
    """[A | b] float32 [cameras, 3, 4], the identity at first, each with an Adam of its own."""

    def __init__(self, cameras: int, lr: float, max_steps: int) -> None:
        self._lr, self._max_steps = lr, max(1, max_steps)
        self.transforms = np.tile(np.eye(3, 4, dtype=np.float32), (cameras, 1, 1))
        self._m, self._v = np.zeros_like(self.transforms), np.zeros_like(self.transforms)
        self._seen = np.zeros(cameras, np.int32)

    def update(self, camera: int, grad: np.ndarray, step: int) -> None:
        """One step of Adam (Kingma and Ba 2015, algorithm 1), counted for this camera alone; `grad` [3, 4]."""
        g = grad.astype(np.float32)
        m, v = self._m[camera], self._v[camera]
        m += np.float32(1 - BETA1) * (g - m)
        v += np.float32(1 - BETA2) * (g * g - v)
        self._seen[camera] += 1
        n = int(self._seen[camera])
        rate = self._lr * DECAY ** (step / self._max_steps) / (1 - BETA1**n)
        self.transforms[camera] -= np.float32(rate) * m / (np.sqrt(v / np.float32(1 - BETA2**n)) + np.float32(EPS))

    def dump(self) -> str:
        """All of it as text, for a snapshot."""
        planes = [self.transforms, self._m, self._v, self._seen]
        return base64.b64encode(b"".join(p.tobytes() for p in planes)).decode()

    def load(self, text: str, path: str) -> None:
        """What `dump` gave. Raises StoreError where it is of another number of cameras."""
        data = base64.b64decode(text)
        planes = [self.transforms, self._m, self._v, self._seen]
        if len(data) != sum(p.nbytes for p in planes):
            raise StoreError(
                f"{path}: the snapshot's exposures are not those of {len(self._seen)} cameras; resume with the scene "
                "that the run was begun with"
            )
        at = 0
        for plane in planes:
            plane[...] = np.frombuffer(data, plane.dtype, plane.size, at).reshape(plane.shape)
            at += plane.nbytes
