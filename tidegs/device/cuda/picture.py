"""One camera from its blocks to its image and back to gradients in image space.

Invariant: what is kept of a part between `add` and its update are its visible rows in image space, never its slots:
those may hold other blocks meanwhile. Nothing here changes a slot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType

import torch
from torch import Tensor

from tidegs.device.base import RenderSettings, View
from tidegs.device.cuda import memory, render
from tidegs.device.cuda.arena import Arena
from tidegs.device.cuda.frame import CudaFrame
from tidegs.device.cuda.memory import OutOfMemory
from tidegs.device.cuda.rows import Blocks, Params, camera_of, culling_of
from tidegs.device.cuda.windows import Window


@dataclass
class Part:
    """A part of the camera's blocks: which rows of it were packed, and where they stand among those of all parts."""

    first: int
    rows: Tensor  # int64 [R], packed rows
    block_of_row: Tensor  # int64 [R], within the part
    params: Params | None = None  # of the part that was added last: the graph is still there
    projected: render.Projected | None = None

    def forget_graph(self) -> None:
        """Frees it; it is made again from the slots."""
        self.params = self.projected = None


@dataclass
class Picture:
    """A camera that is being rendered, with the kernels of `ops` (launch.py or twins.py)."""

    arena: Arena
    ops: ModuleType
    view: View
    settings: RenderSettings
    halvings: int = 0  # of the image, to begin with; in the end, of how many there had to be
    parts: list[Part] = field(default_factory=list)
    splits: int = 0  # how often work was split because memory ran out
    leaves: render.Projected | None = None  # rows of all parts, once the image was drawn
    absolute: Tensor | None = None  # [R, 2]: sums over pixels of |d loss / d means2d| (AbsGS), where asked for
    _pieces: list[render.Projected] = field(default_factory=list)
    _windows: list[Window] = field(default_factory=list)
    _drawn: render.Drawn | None = None  # with its graph, where the image was drawn in one piece
    _shares: tuple[Tensor, ...] = ()  # gradients of leaves.differentiable()

    def __post_init__(self) -> None:
        self._camera = render.camera_tensors(self.view, self.arena.device, self.settings.pose_grad)
        self._windows = [Window(0, 0, self.view.width, self.view.height)]
        for _ in range(self.halvings):
            self._windows = [half for window in self._windows for half in window.halves()]

    def add(self, blocks: Blocks) -> None:
        """Culls, packs and projects the next part."""
        if self.parts:
            self.parts[-1].forget_graph()
        rows = torch.empty(0, dtype=torch.int64, device=self.arena.device)
        if len(blocks):
            rows = self.ops.cull(self.arena, blocks, camera_of(self.view), culling_of(self.settings))
        first = self.parts[-1].first + len(self.parts[-1].rows) if self.parts else 0
        part = Part(first, rows, rows // self.arena.layout.capacity)
        self.parts.append(part)

        def project(a: int, b: int) -> tuple[Params, render.Projected]:
            return self._project(blocks, rows[a:b])

        def keep(made: tuple[Params, render.Projected]) -> None:
            params, projected = made
            if len(params.opacities) == len(rows):
                part.params, part.projected = params, projected
            self._pieces.append(projected.leaves())

        if len(rows):
            self.splits += memory.in_pieces(len(rows), project, keep)

    def _project(self, blocks: Blocks, rows: Tensor) -> tuple[Params, render.Projected]:
        params: Params = self.ops.gather(self.arena, blocks, rows, self.settings.sh_degree)
        for tensor in params.tensors():
            tensor.requires_grad_()
        return params, render.project(params, self._camera, self.settings)

    def draw(self, frame: CudaFrame) -> None:
        """Draws the image of all parts into the frame."""
        if not self._pieces:
            frame.clear(self.settings.background)
            return
        self.leaves = render.joined(self._pieces)
        self._pieces.clear()
        self._until_it_fits(lambda: self._draw(frame))

    def _draw(self, frame: CudaFrame) -> None:
        keep = len(self._windows) == 1  # more of them mean that memory is short: graphs are made again, one by one
        with_depth = frame.distance is not None
        for window in self._windows:
            with torch.set_grad_enabled(keep):
                drawn = self._draw_window(window, with_depth)
            depth = None if drawn.depth is None else drawn.depth.detach()
            frame.put(window, drawn.rgb.detach(), drawn.alpha.detach(), depth)
            self._drawn = drawn if keep else None

    def _draw_window(self, window: Window, with_depth: bool) -> render.Drawn:
        assert self.leaves is not None
        return render.draw(self.leaves, window, self.settings, with_depth, self.settings.absgrad)

    def differentiate(self, image_grad: Tensor, grads_of_depth: tuple[Tensor, Tensor] | None = None) -> None:
        """From the gradient of the image (float32 [H, W, 3]), and those of alpha and depth ([H, W]) where the loss
        compares depth, to that of every row in image space."""
        if self.leaves is not None:
            self._until_it_fits(lambda: self._differentiate(image_grad, grads_of_depth))
            self._drawn = None

    def _differentiate(self, image_grad: Tensor, grads_of_depth: tuple[Tensor, Tensor] | None) -> None:
        assert self.leaves is not None
        with_depth = grads_of_depth is not None
        wanted = self.leaves.differentiable(with_depth)
        self._shares, self.absolute = (), None
        for window in self._windows:
            drawn = self._drawn or self._draw_window(window, with_depth)
            outputs, grads = [drawn.rgb], [image_grad[window.there]]
            if grads_of_depth is not None:
                assert drawn.depth is not None
                outputs += [drawn.alpha, drawn.depth]
                grads += [grad[window.there] for grad in grads_of_depth]
            shares = torch.autograd.grad(outputs, wanted, grads)
            self._shares = tuple(map(torch.add, self._shares, shares)) if self._shares else shares
            if self.settings.absgrad:
                absolute: Tensor = drawn.means2d.absgrad[0]  # type: ignore[attr-defined]
                self.absolute = absolute if self.absolute is None else self.absolute + absolute

    def shrink(self, why: str) -> None:
        """Halves the windows and frees what they hold. Raises CapacityError where they are single tiles."""
        self._drawn = None
        halves = [half for window in self._windows for half in window.halves()]
        if len(halves) == len(self._windows):
            raise memory.too_little(why)
        self._windows = halves
        self.halvings += 1
        self.splits += 1

    def _until_it_fits(self, work: Callable[[], None]) -> None:
        while True:
            try:
                return memory.attempt(work)
            except OutOfMemory as error:
                why = str(error)
            self.shrink(why)

    def gradients(self, part: Part, blocks: Blocks, a: int, b: int) -> tuple[Params, Params, Tensor | None]:
        """Rows a to b of a part, the gradients of their (activated) parameters, and their share of the pose's [3, 4],
        where the settings ask for it. The part's blocks are resident again, unchanged since `add`."""
        params, projected = part.params, part.projected
        if params is None or projected is None or b - a != len(part.rows):
            params, projected = self._project(blocks, part.rows[a:b])
        shares = [share[:, part.first + a : part.first + b] for share in self._shares]
        outputs = projected.differentiable(depth=len(shares) > 4)
        if not self.settings.pose_grad:
            return params, Params(*torch.autograd.grad(outputs, params.tensors(), shares)), None
        camera = self._camera
        *grads, by_viewmats, by_position = torch.autograd.grad(
            outputs, (*params.tensors(), camera.viewmats, camera.position), shares
        )
        return params, Params(*grads), render.pose_gradient(camera, by_viewmats, by_position)

    def motion(self, part: Part, a: int, b: int) -> tuple[Tensor, Tensor]:
        """What densification goes by, of rows of a part: gradients of the loss by means2d [b - a, 2], per pixel (sums
        of absolute ones where the settings say so); and radii, int32 [b - a, 2]."""
        assert self.leaves is not None
        rows = slice(part.first + a, part.first + b)
        gradient = self._shares[0][0] if self.absolute is None else self.absolute
        return gradient[rows], self.leaves.radii[0, rows]

    def visible(self, part: Part, a: int, b: int) -> Tensor:
        """bool [b - a]: which rows of a part have a radius in the whole image."""
        assert self.leaves is not None
        return self.leaves.visible[part.first + a : part.first + b]
