"""The arena: all slots in one allocation of device memory, and float32 views of their planes.

Invariant: nothing else of scene size is ever allocated on the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tidegs.errors import CapacityError
from tidegs.gaussians.layout import RECORD_PLANES, SCRATCH_PLANES, RecordLayout


class Arena:
    """`slots` slots of layout.slot_nbytes each, in the order of RecordLayout."""

    def __init__(self, layout: RecordLayout, slots: int, device: torch.device) -> None:
        """Raises CapacityError where the device has no room for it."""
        self.layout, self.slots, self.device = layout, slots, device
        nbytes = slots * layout.slot_nbytes
        try:
            self.memory = torch.empty(nbytes, dtype=torch.uint8, device=device)
        except RuntimeError as error:  # torch.cuda.OutOfMemoryError is one
            raise CapacityError(
                f"the device has no room for an arena of {nbytes / 2**30:.2f} GiB ({slots} slots): "
                f"lower --device-memory, or end what else runs on it ({str(error).splitlines()[0]})"
            ) from error
        self.floats = self.memory.view(torch.float32)
        self.slot_floats = layout.slot_nbytes // 4
        self._planes = {name: self._view(name) for name in RECORD_PLANES + SCRATCH_PLANES}

    def _view(self, name: str) -> Tensor:
        shape = (self.slots, self.layout.components(name), self.layout.capacity)
        return self.floats.as_strided(shape, (self.slot_floats, self.layout.capacity, 1), self.offset(name))

    def plane(self, name: str) -> Tensor:
        """A plane of all slots, float32 [slots, components, capacity], sharing the arena's memory."""
        return self._planes[name]

    def offset(self, name: str) -> int:
        """Floats from the start of a slot to the plane."""
        return self.layout.offsets[name] // 4

    def slot(self, index: int, count: int = 1) -> Tensor:
        """The bytes of `count` slots from `index`, uint8, sharing the arena's memory."""
        n = self.layout.slot_nbytes
        return self.memory[index * n : (index + count) * n]
