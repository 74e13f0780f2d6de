"""Values of each camera that are trained along with the scene, each camera with an Adam of its own.

Invariant: a camera's values change only when a step shows that camera, so they do not depend on how a step is split.
"""

from __future__ import annotations

import base64

import numpy as np

from tidegs.errors import StoreError
from tidegs.train.rates import BETA1, BETA2

EPS = 1e-8  # of Adam


class CameraValues:
    """`values` float32 [cameras, ...]. The rate decays exponentially to `decay` of itself at the last step; `reg` is a
    weight decay."""

    def __init__(self, what: str, values: np.ndarray, lr: float, decay: float, max_steps: int, reg: float = 0) -> None:
        """`what`: the values' name in sentences."""
        self._what, self._lr, self._decay, self._reg = what, lr, decay, np.float32(reg)
        self._max_steps = max(1, max_steps)
        self.values = values
        self._m, self._v = np.zeros_like(values), np.zeros_like(values)
        self._seen = np.zeros(len(values), np.int32)

    def update(self, camera: int, grad: np.ndarray, step: int) -> None:
        """One step of Adam (Kingma and Ba 2015, algorithm 1), counted for this camera alone."""
        g = grad.astype(np.float32) + self._reg * self.values[camera]
        m, v = self._m[camera], self._v[camera]
        m += np.float32(1 - BETA1) * (g - m)
        v += np.float32(1 - BETA2) * (g * g - v)
        self._seen[camera] += 1
        n = int(self._seen[camera])
        rate = self._lr * self._decay ** (step / self._max_steps) / (1 - BETA1**n)
        self.values[camera] -= np.float32(rate) * m / (np.sqrt(v / np.float32(1 - BETA2**n)) + np.float32(EPS))

    def dump(self) -> str:
        """All of it as text, for a snapshot."""
        planes = [self.values, self._m, self._v, self._seen]
        return base64.b64encode(b"".join(p.tobytes() for p in planes)).decode()

    def load(self, text: str, path: str) -> None:
        """What `dump` gave. Raises StoreError where it is of another number of cameras."""
        data = base64.b64decode(text)
        planes = [self.values, self._m, self._v, self._seen]
        if len(data) != sum(p.nbytes for p in planes):
            raise StoreError(
                f"{path}: the snapshot's {self._what} are not those of {len(self._seen)} cameras; resume with the "
                "scene that the run was begun with"
            )
        at = 0
        for plane in planes:
            plane[...] = np.frombuffer(data, plane.dtype, plane.size, at).reshape(plane.shape)
            at += plane.nbytes
