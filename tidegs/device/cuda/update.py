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
from tidegs.device.cuda import memory, statistics
from tidegs.device.cuda.arena import Arena
from tidegs.device.cuda.frame import PendingUpdates
from tidegs.device.cuda.picture import Part, Picture
from tidegs.device.cuda.rows import Blocks, Params, adam_numbers
from tidegs.device.cuda.staging import Pending, to_device
from tidegs.device.cuda.streams import Streams
from tidegs.gaussians.layout import BASE_FIELDS

SCALES, OPACITIES = BASE_FIELDS["scales"], BASE_FIELDS["opacities"]


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
        pose = torch.zeros(3, 4, dtype=torch.float64, device=self.arena.device) if picture.settings.pose_grad else None
        if len(part.rows):
            self._rows(picture, part, blocks, summing, adam, visible, pose)
        part.forget_graph()
        if (summing & last).any():
            where = self._where(summing & last)
            slots, counts = blocks.slots[where], blocks.counts[where]
            self._regularise_sums(slots, adam)
            visible[where] = self.ops.adam_marked(self.arena, slots, counts, picture.settings.sh_degree, numbers)
        return self._learn(blocks, visible, summing & ~last, pose)

    def _where(self, blocks: np.ndarray) -> Tensor:
        return to_device(np.flatnonzero(blocks), self.arena.device)

    def _rows(
        self,
        picture: Picture,
        part: Part,
        blocks: Blocks,
        summing: np.ndarray,
        adam: AdamSettings,
        visible: Tensor,
        pose: Tensor | None,
    ) -> None:
        """Sums or updates the part's rows, counts those that were updated, and adds to the gradient of the pose."""
        straight, numbers = to_device(~summing, self.arena.device), adam_numbers(adam)

        def prepare(a: int, b: int) -> tuple[int, int, Params, Params, Tensor | None]:
            return a, b, *picture.gradients(part, blocks, a, b)

        @torch.no_grad()
        def commit(made: tuple[int, int, Params, Params, Tensor | None]) -> None:
            a, b, params, grads, share = made
            if pose is not None and share is not None:
                pose.add_(share)
            rows, block_of_row = part.rows[a:b], part.block_of_row[a:b]
            seen, alone = picture.visible(part, a, b), straight[block_of_row]
            if adam.cameras and self.arena.layout.stat_components:
                statistics.collect(self.arena, blocks, rows, seen, *picture.motion(part, a, b), picture.view, adam)
            if not summing.all():
                statistics.regularise(grads, alone, adam)
                self.ops.adam_rows(self.arena, blocks, rows, seen & alone, params, grads, numbers)
                visible.index_add_(0, block_of_row, (seen & alone).to(torch.int32))
            if summing.any():
                self.ops.add_grads(self.arena, blocks, rows, seen & ~alone, params, grads)

        picture.splits += memory.in_pieces(len(part.rows), prepare, commit)

    @torch.no_grad()
    def _regularise_sums(self, slots: Tensor, adam: AdamSettings) -> None:
        """Adds the regularisation to the sums of marked rows, once a step."""
        if not (adam.scale_reg or adam.opacity_reg):
            return
        at, base, sums = slots.long(), self.arena.plane("base"), self.arena.plane("grads")
        marked = sums[at, -1:] > 0
        scales, opacities = base[at, SCALES].exp(), base[at, OPACITIES].sigmoid()
        sums[at, SCALES] += torch.where(marked, adam.scale_reg * scales, 0.0)
        sums[at, OPACITIES] += torch.where(marked, adam.opacity_reg * opacities * (1.0 - opacities), 0.0)

    def _learn(self, blocks: Blocks, visible: Tensor, scratch: np.ndarray, pose: Tensor | None) -> BlockUpdates:
        """Bounds, counts and the pose's gradient, on their way to the host. `scratch` (bool [n]): blocks whose scratch
        planes changed."""
        if not len(blocks):
            none = np.zeros((0, 3), np.float32)
            of_pose = None if pose is None else np.zeros((0, 3, 4))
            return BlockUpdates(none, none, none[:, 0], np.zeros(0, np.int32), np.zeros(0, bool), of_pose)
        learned = torch.cat([self.ops.bounds(self.arena, blocks), visible.to(torch.float32)[:, None]], 1)
        both = learned.flatten() if pose is None else torch.cat([learned.flatten(), pose.to(torch.float32).flatten()])
        pending, size = Pending(self.streams, both), learned.numel()

        def fetch() -> BlockUpdates:
            numbers, of_pose = np.split(pending.get(), [size])
            numbers = numbers.reshape(learned.shape)
            seen = numbers[:, 7].astype(np.int32)
            return BlockUpdates(
                numbers[:, 0:3],
                numbers[:, 3:6],
                numbers[:, 6],
                seen,
                (seen > 0) | scratch,
                None if pose is None else of_pose.astype(np.float64).reshape(1, 3, 4),
            )

        return PendingUpdates(fetch)
