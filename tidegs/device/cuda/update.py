"""The end of a pass: gradients to carries, sums and parameters, in place in the slots.

Invariant: this is the only code that writes slots by kernels, and it allocates little: what may run out of memory came
before.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from tidegs.device.base import AdamSettings, BlockFlags, BlockUpdates
from tidegs.device.cuda.arena import Arena
from tidegs.device.cuda.frame import PendingUpdates
from tidegs.device.cuda.paint import Pass
from tidegs.device.cuda.rows import AdamNumbers, Params, adam_numbers
from tidegs.device.cuda.staging import Pending, to_device
from tidegs.device.cuda.streams import Streams


@dataclass(frozen=True)
class Updater:
    """Applies gradients to the slots of a pass, with the kernels of `ops` (launch.py or twins.py)."""

    arena: Arena
    ops: ModuleType
    streams: Streams

    @torch.no_grad()
    def apply(self, current: Pass, grads: Params | None, carry: Tensor | None, adam: AdamSettings) -> BlockUpdates:
        """Takes what Painter.differentiate gave; returns what was learned of each block.

        A block that one camera alone has seen in the step goes straight to Adam. Others sum their gradients in the
        `grads` plane, where the marks say which rows hold any.
        """
        complete, last = current.flagged(BlockFlags.LAST_OF_CAMERA), current.flagged(BlockFlags.LAST_OF_STEP)
        first = current.flagged(BlockFlags.FIRST_OF_STEP)
        summing = ~(first & last) if self.arena.layout.with_grads else np.zeros_like(last)
        numbers = adam_numbers(adam)
        visible = torch.zeros(len(last), dtype=torch.int32, device=self.arena.device)
        if (summing & first).any():
            self.ops.clear_marks(self.arena, self._slots(current, summing & first))
        if len(current.rows):
            self._store_carry(current, ~complete, carry)
            self._adam_rows(current, complete & last & ~summing, grads, numbers, visible)
            self._sum_rows(current, complete & summing, grads)
        self._adam_marked(current, summing & last, numbers, visible)
        return self._learn(current, visible, scratch=~complete | (summing & ~last))

    def _slots(self, current: Pass, blocks: np.ndarray) -> Tensor:
        return current.blocks.slots[to_device(np.flatnonzero(blocks), self.arena.device)]

    def _store_carry(self, current: Pass, blocks: np.ndarray, carry: Tensor | None) -> None:
        take = current.rows_where(blocks)
        if take is not None and carry is not None:
            self.ops.store_carry(self.arena, current.blocks, current.rows, take, carry)

    def _adam_rows(
        self, current: Pass, blocks: np.ndarray, grads: Params | None, numbers: AdamNumbers, visible: Tensor
    ) -> None:
        take = current.rows_where(blocks)
        if take is None or grads is None:
            return
        take &= current.visible
        self.ops.adam_rows(self.arena, current.blocks, current.rows, take, current.params, grads, numbers)
        visible.index_add_(0, current.block_of_row, take.to(torch.int32))

    def _sum_rows(self, current: Pass, blocks: np.ndarray, grads: Params | None) -> None:
        take = current.rows_where(blocks)
        if take is None or grads is None:
            return
        take &= current.visible
        self.ops.add_grads(self.arena, current.blocks, current.rows, take, current.params, grads)

    def _adam_marked(self, current: Pass, blocks: np.ndarray, numbers: AdamNumbers, visible: Tensor) -> None:
        """Adam on the rows that any camera of the step has seen."""
        if not blocks.any():
            return
        where = to_device(np.flatnonzero(blocks), self.arena.device)
        slots, counts = current.blocks.slots[where], current.blocks.counts[where]
        visible[where] = self.ops.adam_marked(self.arena, slots, counts, current.settings.sh_degree, numbers)

    def _learn(self, current: Pass, visible: Tensor, scratch: np.ndarray) -> BlockUpdates:
        """Bounds and counts, on their way to the host. `scratch` (bool [n]): blocks whose scratch planes changed."""
        if not len(current.blocks):
            none = np.zeros((0, 3), np.float32)
            return BlockUpdates(none, none, none[:, 0], np.zeros(0, np.int32), np.zeros(0, bool))
        learned = torch.cat([self.ops.bounds(self.arena, current.blocks), visible.to(torch.float32)[:, None]], 1)
        pending = Pending(self.streams, learned)

        def fetch() -> BlockUpdates:
            numbers = pending.get()
            seen = numbers[:, 7].astype(np.int32)
            return BlockUpdates(numbers[:, 0:3], numbers[:, 3:6], numbers[:, 6], seen, (seen > 0) | scratch)

        return PendingUpdates(fetch)
