"""The memory of the host tier: one region of equal slots, allocated once from the budget.

Invariant: `slots[i]` is page-aligned and never moves; the device gives the region, so it may register it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


class HostCache:
    """`count` slots of `nbytes` (a multiple of 4 KiB) each; zero at first, so that files never hold stray memory."""

    def __init__(self, count: int, nbytes: int, allocate: Callable[[int], np.ndarray]) -> None:
        """`allocate`: Device.host_region."""
        self.region = allocate(max(1, count) * nbytes)
        self.slots: list[np.ndarray] = list(self.region.reshape(-1, nbytes)[:count])
