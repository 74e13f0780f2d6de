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

from tidegs.device.base import AdamSettings, BlockFlags, BlockUpdates, MeanNoise, NoisedBlocks
from tidegs.device.cuda import memory, statistics
from tidegs.device.cuda.arena import Arena
from tidegs.device.cuda.frame import PendingUpdates
from tidegs.device.cuda.picture import Part, Picture
from tidegs.device.cuda.rows import Blocks, Params, Reach, adam_numbers, reach_of
from tidegs.device.cuda.staging import Pending, to_device
from tidegs.device.cuda.streams import Streams
from tidegs.gaussians.layout import BASE_FIELDS

SCALES, OPACITIES = BASE_FIELDS["scales"], BASE_FIELDS["opacities"]


@dataclass(frozen=True)
class _Found:
    """What an update gathers on the device."""

    visible: Tensor  # int32 [n], rows that Adam updated
    took: Tensor | None  # bool [n, capacity], these rows, for dense Adam
    pose: Tensor | None  # float64 [3, 4], gradient of the pose


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
        found = self._nothing(len(last), adam.dense, picture.settings.pose_grad)
        if (summing & first).any():
            self.ops.clear_marks(self.arena, blocks.slots[self._where(summing & first)])
        if len(part.rows):
            self._rows(picture, part, blocks, summing, adam, found)
        part.forget_graph()
        if (summing & last).any():
            where = self._where(summing & last)
            slots, counts = blocks.slots[where], blocks.counts[where]
            self._regularise_sums(slots, adam)
            found.visible[where] = self.ops.adam_marked(self.arena, slots, counts, picture.settings.sh_degree, numbers)
            if found.took is not None:
                found.took[where] = self.arena.plane("grads")[slots.long(), -1] > 0.0
        if found.took is not None and last.any():
            where = self._where(last)
            slots, counts = blocks.slots[where], blocks.counts[where]
            self.ops.adam_rest(self.arena, slots, counts, found.took[where], picture.settings.sh_degree, numbers)
        return self._learn(blocks, found, (summing & ~last) | (last & adam.dense), reach_of(adam))

    def _nothing(self, blocks: int, dense: bool, pose_grad: bool) -> _Found:
        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=self.arena.device)

        return _Found(
            visible=zeros(blocks, dtype=torch.int32),
            took=zeros(blocks, self.arena.layout.capacity, dtype=torch.bool) if dense else None,
            pose=zeros(3, 4, dtype=torch.float64) if pose_grad else None,
        )

    @torch.no_grad()
    def add_noise(self, blocks: Blocks, noise: MeanNoise, adam: AdamSettings) -> NoisedBlocks:
        """See Device.add_noise; waits for the device."""
        keys, scales = (to_device(a, self.arena.device) for a in (noise.keys.view(np.int64), noise.scales))
        learned = self.ops.noise(self.arena, blocks, keys, scales, noise.min_opacity)
        bounds = self.ops.bounds(self.arena, blocks, reach_of(adam))
        numbers = Pending(self.streams, torch.cat([learned, bounds.double()], 1)).get()
        box = numbers[:, 2:].astype(np.float32)
        return NoisedBlocks(box[:, 0:3], box[:, 3:6], box[:, 6], numbers[:, 0], numbers[:, 1].astype(np.int32))

    def _where(self, blocks: np.ndarray) -> Tensor:
        return to_device(np.flatnonzero(blocks), self.arena.device)

    def _rows(
        self,
        picture: Picture,
        part: Part,
        blocks: Blocks,
        summing: np.ndarray,
        adam: AdamSettings,
        found: _Found,
    ) -> None:
        """Sums or updates the part's rows, and adds to what is `found`."""
        straight, numbers = to_device(~summing, self.arena.device), adam_numbers(adam)

        def prepare(a: int, b: int) -> tuple[int, int, Params, Params, Tensor | None]:
            return a, b, *picture.gradients(part, blocks, a, b)

        @torch.no_grad()
        def commit(made: tuple[int, int, Params, Params, Tensor | None]) -> None:
            a, b, params, grads, share = made
            if found.pose is not None and share is not None:
                found.pose.add_(share)
            rows, block_of_row = part.rows[a:b], part.block_of_row[a:b]
            seen, alone = picture.visible(part, a, b), straight[block_of_row]
            if adam.cameras and self.arena.layout.stat_components:
                statistics.collect(self.arena, blocks, rows, seen, *picture.motion(part, a, b), picture.view, adam)
            if not summing.all():
                statistics.regularise(grads, alone, adam)
                self.ops.adam_rows(self.arena, blocks, rows, seen & alone, params, grads, numbers)
                found.visible.index_add_(0, block_of_row, (seen & alone).to(torch.int32))
                if found.took is not None:
                    found.took.view(-1)[rows] = seen & alone
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

    def _learn(self, blocks: Blocks, found: _Found, touched: np.ndarray, reach: Reach | None) -> BlockUpdates:
        """Bounds, counts and the pose's gradient, on their way to the host. `touched` (bool [n]): blocks that changed,
        whatever was seen."""
        pose = found.pose
        if not len(blocks):
            none = np.zeros((0, 3), np.float32)
            of_pose = None if pose is None else np.zeros((0, 3, 4))
            return BlockUpdates(none, none, none[:, 0], np.zeros(0, np.int32), np.zeros(0, bool), of_pose)
        bounds = self.ops.bounds(self.arena, blocks, reach)
        learned = torch.cat([bounds, found.visible.to(torch.float32)[:, None]], 1)
        both = learned.flatten() if pose is None else torch.cat([learned.flatten(), pose.to(torch.float32).flatten()])
        pending, shape = Pending(self.streams, both), learned.shape

        def fetch() -> BlockUpdates:
            numbers, of_pose = np.split(pending.get(), [shape.numel()])
            numbers = numbers.reshape(shape)
            seen = numbers[:, 7].astype(np.int32)
            return BlockUpdates(
                numbers[:, 0:3],
                numbers[:, 3:6],
                numbers[:, 6],
                seen,
                (seen > 0) | touched,
                None if pose is None else of_pose.astype(np.float64).reshape(1, 3, 4),
            )

        return PendingUpdates(fetch)
