"""The end of a camera: gradients of a part's rows to their sums or to Adam, in place in the slots.

Invariant: this is the only code that writes slots by kernels. Rows whose gradients run out of memory have not been
touched; the others are done with.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from tidegs.device.base import AdamSettings, BlockFlags, BlockUpdates
from tidegs.device.cuda import memory
from tidegs.device.cuda.arena import Arena
from tidegs.device.cuda.frame import PendingUpdates
from tidegs.device.cuda.picture import Part, Picture
from tidegs.device.cuda.rows import AdamNumbers, Blocks, Params, adam_numbers
from tidegs.device.cuda.staging import Pending, to_device
from tidegs.device.cuda.streams import Streams


@dataclass(frozen=True)
class Updater:
    """Applies gradients to the slots of a part, with the kernels of `ops` (launch.py or twins.py)."""

    arena: Arena
    ops: ModuleType
    streams: Streams

    def update(self, picture: Picture, part: Part, blocks: Blocks, adam: AdamSettings) -> BlockUpdates:
        """See Device.update.

        A block that one camera alone sees in the step goes straight to Adam. Others sum their gradients in the `grads`
        plane, where the marks say which rows hold any.
        """
        first, last = blocks.flagged(BlockFlags.FIRST_OF_STEP), blocks.flagged(BlockFlags.LAST_OF_STEP)
        summing = ~(first & last)
        numbers = adam_numbers(adam)
        visible = torch.zeros(len(last), dtype=torch.int32, device=self.arena.device)
        if (summing & first).any():
            self.ops.clear_marks(self.arena, blocks.slots[self._where(summing & first)])
        if len(part.rows):
            self._rows(picture, part, blocks, summing, numbers, visible)
        part.forget_graph()
        if (summing & last).any():
            where = self._where(summing & last)
            slots, counts = blocks.slots[where], blocks.counts[where]
            visible[where] = self.ops.adam_marked(self.arena, slots, counts, picture.settings.sh_degree, numbers)
        return self._learn(blocks, visible, scratch=summing & ~last)

    def _where(self, blocks: np.ndarray) -> Tensor:
        return to_device(np.flatnonzero(blocks), self.arena.device)

    def _rows(
        self,
        picture: Picture,
        part: Part,
        blocks: Blocks,
        summing: np.ndarray,
        numbers: AdamNumbers,
        visible: Tensor,
    ) -> None:
        """Sums or updates the part's rows, and counts those that were updated."""
        straight = to_device(~summing, self.arena.device)

        def prepare(a: int, b: int) -> tuple[int, int, Params, Params]:
            return a, b, *picture.gradients(part, blocks, a, b)

        @torch.no_grad()
        def commit(made: tuple[int, int, Params, Params]) -> None:
            a, b, params, grads = made
            rows, block_of_row = part.rows[a:b], part.block_of_row[a:b]
            seen, alone = picture.visible(part, a, b), straight[block_of_row]
            if not summing.all():
                self.ops.adam_rows(self.arena, blocks, rows, seen & alone, params, grads, numbers)
                visible.index_add_(0, block_of_row, (seen & alone).to(torch.int32))
            if summing.any():
                self.ops.add_grads(self.arena, blocks, rows, seen & ~alone, params, grads)

        picture.splits += memory.in_pieces(len(part.rows), prepare, commit)

    def _learn(self, blocks: Blocks, visible: Tensor, scratch: np.ndarray) -> BlockUpdates:
        """Bounds and counts, on their way to the host. `scratch` (bool [n]): blocks whose scratch planes changed."""
        if not len(blocks):
            none = np.zeros((0, 3), np.float32)
            return BlockUpdates(none, none, none[:, 0], np.zeros(0, np.int32), np.zeros(0, bool))
        learned = torch.cat([self.ops.bounds(self.arena, blocks), visible.to(torch.float32)[:, None]], 1)
        pending = Pending(self.streams, learned)

        def fetch() -> BlockUpdates:
            numbers = pending.get()
            seen = numbers[:, 7].astype(np.int32)
            return BlockUpdates(numbers[:, 0:3], numbers[:, 3:6], numbers[:, 6], seen, (seen > 0) | scratch)

        return PendingUpdates(fetch)
