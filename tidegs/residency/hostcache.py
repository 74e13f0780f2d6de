"""The memory of the host tier: one region of equal slots, allocated once from the budget.

Invariant: `slots[i]` is page-aligned and never moves, so a device may register the whole region.
"""

from __future__ import annotations

import mmap

import numpy as np


class HostCache:
    """`count` slots of `nbytes` (a multiple of 4 KiB) each; zero at first, so that files never hold stray memory."""

    def __init__(self, count: int, nbytes: int) -> None:
        self.region = np.frombuffer(mmap.mmap(-1, max(1, count) * nbytes), np.uint8)
        self.slots: list[np.ndarray] = list(self.region.reshape(-1, nbytes)[:count])
