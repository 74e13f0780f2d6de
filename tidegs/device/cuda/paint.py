"""A pass: its rows packed, drawn into the frame, and differentiated. Nothing here changes a slot.

Invariant: whatever parts a region is drawn in, each row's gradient is the sum over the tiles of all parts; image-space
sums go on where the last pass of the camera stopped (`carry`), and lead to parameters once the camera is complete.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from tidegs.device.base import BlockFlags, PassBlocks, Region, RenderSettings, View
from tidegs.device.cuda import render
from tidegs.device.cuda.arena import Arena
from tidegs.device.cuda.frame import CudaFrame
from tidegs.device.cuda.rows import Blocks, Params, camera_of, culling_of
from tidegs.device.cuda.staging import to_device
from tidegs.device.cuda.windows import Window, windows_of
from tidegs.device.tiles import whole
from tidegs.gaussians.layout import CARRY_COMPONENTS


@dataclass(frozen=True)
class _Drawn:
    """A window with the graph from its pixels back to image-space leaves."""

    window: Window
    leaves: render.Projected
    rgb: Tensor
    means2d: Tensor  # carries absgrad after a backward pass


@dataclass
class Pass:
    """A pass that was drawn, until it is differentiated or the next one is drawn."""

    view: View
    blocks: Blocks
    settings: RenderSettings
    frame: CudaFrame
    region: Region | None  # None: the whole image
    parts: list[Region]  # drawn one by one; empty: the whole image at once, by gsplat's front end
    rows: Tensor  # int64 [R], packed rows
    block_of_row: Tensor  # int64 [R], within the pass
    camera: render.CameraTensors
    visible: Tensor  # bool [R], radius > 0 in the whole image
    params: Params | None = None  # leaves of the graph
    image: Tensor | None = None  # with its graph, where it was drawn at once
    projected: render.Projected | None = None  # with its graph to `params`
    drawn: list[_Drawn] = field(default_factory=list)

    def forget_graph(self) -> None:
        """Frees what differentiation would use; it is drawn again instead."""
        self.params = self.image = self.projected = None
        self.drawn.clear()

    def rows_where(self, blocks: np.ndarray) -> Tensor | None:
        """bool [R]: the rows of blocks for which `blocks` (bool [n]) is set; None where it is set for none."""
        if not blocks.any():
            return None
        return to_device(blocks, self.rows.device)[self.block_of_row]

    def flagged(self, flag: BlockFlags) -> np.ndarray:
        """bool [n]: blocks with the flag."""
        return (self.blocks.flags & flag) != 0


@dataclass(frozen=True)
class Painter:
    """Draws and differentiates passes over an arena, with the kernels of `ops` (launch.py or twins.py)."""

    arena: Arena
    ops: ModuleType

    def draw(
        self,
        view: View,
        blocks: PassBlocks,
        settings: RenderSettings,
        frame: CudaFrame,
        region: Region | None,
        parts: list[Region],
    ) -> Pass:
        """Draws a region into the frame, in `parts` that cover it (none: the whole image at once)."""
        device = self.arena.device
        on_device = _blocks_on(device, blocks)
        rows = torch.empty(0, dtype=torch.int64, device=device)
        if len(on_device):
            rows = self.ops.cull(self.arena, on_device, camera_of(view), culling_of(settings))
        current = Pass(
            view=view,
            blocks=on_device,
            settings=settings,
            frame=frame,
            region=region,
            parts=parts,
            rows=rows,
            block_of_row=rows // self.arena.layout.capacity,
            camera=render.camera_tensors(view, device),
            visible=torch.empty(0, dtype=torch.bool, device=device),
        )
        if len(rows) == 0:
            self._draw_nothing(current)
        elif parts:
            self._draw_parts(current)
        else:
            self._draw_whole(current)
        return current

    def _draw_whole(self, current: Pass) -> None:
        frame = current.frame
        current.params = self._gather(current)
        picture, current.visible = render.rasterize(
            current.params, current.camera, current.settings, frame.distance is not None
        )
        frame.rgb, frame.coverage, frame.distance = picture.rgb.detach(), picture.alpha.detach(), picture.depth
        current.image = picture.rgb

    def _draw_parts(self, current: Pass) -> None:
        keep = len(current.parts) == 1  # more parts mean that memory is short: their graphs are made anew, one by one
        with torch.set_grad_enabled(keep):
            params = self._gather(current)
            projected = render.project(params, current.camera, current.settings)
            current.visible = projected.visible
            for drawn in self._drawn(current, projected, current.frame):
                if keep:
                    current.drawn.append(drawn)
        if keep:
            current.params, current.projected = params, projected

    def _drawn(self, current: Pass, projected: render.Projected, frame: CudaFrame | None) -> Iterator[_Drawn]:
        """Draws each window of the parts, into the frame where one is given."""
        view, with_depth = current.view, frame is not None and frame.distance is not None
        for part in current.parts:
            for window in windows_of(view.width, view.height, part):
                leaves = projected.leaves()
                picture, means2d = render.draw(leaves, window, current.settings, with_depth)
                if frame is not None:
                    self._put(frame, window, picture)
                yield _Drawn(window, leaves, picture.rgb, means2d)

    @torch.no_grad()
    def _put(self, frame: CudaFrame, window: Window, picture: render.Picture) -> None:
        there = window.there
        mine = None if window.full else to_device(window.pixels(), self.arena.device)
        planes = ((frame.rgb, picture.rgb), (frame.coverage, picture.alpha), (frame.distance, picture.depth))
        for plane, values in planes:
            if plane is None or values is None:
                continue
            if mine is not None:
                values = torch.where(mine[..., None] if values.ndim == 3 else mine, values, plane[there])
            plane[there] = values

    def _draw_nothing(self, current: Pass) -> None:
        frame, view = current.frame, current.view
        background = to_device(np.array(current.settings.background, np.float32), self.arena.device)
        for window in windows_of(view.width, view.height, current.region or whole(view.width, view.height)):
            rgb = background.expand(window.height, window.width, 3)
            empty = torch.zeros(window.height, window.width, device=self.arena.device)
            self._put(frame, window, render.Picture(rgb, empty, empty))

    def _gather(self, current: Pass) -> Params:
        """The pass's rows as leaves of a graph."""
        params: Params = self.ops.gather(self.arena, current.blocks, current.rows, current.settings.sh_degree)
        for tensor in params.tensors():
            tensor.requires_grad_(torch.is_grad_enabled())
        return params

    def differentiate(self, current: Pass, image_grad: Tensor) -> tuple[Params | None, Tensor | None]:
        """Gradients of the rows whose camera is complete with this pass (of others: undefined; None: no such rows), and
        the image-space sums of the rows whose camera is not (float32 [R, 12]; None: not summed).

        image_grad: float32 [H, W, 3], of the whole image.
        """
        if len(current.rows) == 0:
            return None, None
        if not current.parts and current.image is not None and current.params is not None:
            return Params(*torch.autograd.grad(current.image, current.params.tensors(), image_grad)), None
        if current.params is None or current.projected is None:
            current.params = self._gather(current)
            current.projected = render.project(current.params, current.camera, current.settings)
        sums = self._image_gradients(current, current.projected, image_grad)
        goes_on = current.rows_where(~current.flagged(BlockFlags.FIRST_OF_CAMERA))
        if goes_on is not None:
            sums += self.ops.load_carry(self.arena, current.blocks, current.rows, goes_on)
        complete = current.rows_where(current.flagged(BlockFlags.LAST_OF_CAMERA))
        if complete is None:
            return None, sums
        asked = torch.where(complete[:, None], sums, 0.0)[None]
        shares = (asked[..., 0:2], asked[..., 2:5], asked[..., 5:8], asked[..., 8])
        return Params(*torch.autograd.grad(current.projected.differentiable(), current.params.tensors(), shares)), sums

    def _image_gradients(self, current: Pass, projected: render.Projected, image_grad: Tensor) -> Tensor:
        """Sums over the pass's tiles, in the order of `carry`, float32 [R, 12]."""
        sums = torch.zeros(len(current.rows), CARRY_COMPONENTS, device=self.arena.device)
        for drawn in current.drawn or self._drawn(current, projected, None):
            grad = image_grad[drawn.window.there]
            if not drawn.window.full:
                mine = to_device(drawn.window.pixels(), self.arena.device)
                grad = torch.where(mine[..., None], grad, 0.0)
            shares = torch.autograd.grad(drawn.rgb, drawn.leaves.differentiable(), grad)
            for at, share in zip((0, 2, 5, 8), shares, strict=True):
                share = share[0].reshape(len(sums), -1)
                sums[:, at : at + share.shape[1]] += share
            sums[:, 10:12] += drawn.means2d.absgrad[0]  # type: ignore[attr-defined]
        return sums


def _blocks_on(device: torch.device, blocks: PassBlocks) -> Blocks:
    both = to_device(np.stack([blocks.slots, blocks.counts]).astype(np.int32), device)
    return Blocks(both[0], both[1], np.asarray(blocks.flags, np.uint8), blocks)
