"""The CUDA device: gsplat over an arena of slots, by packed rows.

Invariant: a pass changes slots only in its update, after everything that may run out of memory; before that it can be
split into smaller parts and tried again. A device whose update failed refuses all further work.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from tidegs.device.base import (
    AdamSettings,
    BlockUpdates,
    Frame,
    LossValue,
    PassBlocks,
    Region,
    RenderSettings,
    View,
)
from tidegs.device.cuda import memory, ssim, twins
from tidegs.device.cuda.arena import Arena
from tidegs.device.cuda.copies import CopyEngine, SlotOrder, slot_names
from tidegs.device.cuda.frame import CudaFrame, PendingLoss
from tidegs.device.cuda.memory import PassTooLarge
from tidegs.device.cuda.paint import Painter, Pass
from tidegs.device.cuda.pinned import PinnedRegions
from tidegs.device.cuda.staging import Pending, Targets
from tidegs.device.cuda.streams import CudaStreams, Streams
from tidegs.device.cuda.update import Updater
from tidegs.device.cuda.windows import finer
from tidegs.device.tiles import whole
from tidegs.errors import CapacityError, DeviceError
from tidegs.gaussians.layout import RecordLayout

T = TypeVar("T")


class CudaDevice:
    """See tidegs.device.base.Device. `torch_device` is "cpu" in tests, which then bring streams of their own.

    Losses and updates are on their way when they are returned: reading one waits for it.
    """

    name = "cuda"

    def __init__(self, torch_device: str = "cuda", streams: Streams | None = None) -> None:
        self.torch_device = torch.device(torch_device)
        self.streams = streams or CudaStreams(self.torch_device)
        self.splits = 0  # passes that were split because they ran out of memory
        self._ops, self._l1_ssim = _kernels(self.torch_device)
        self._regions = PinnedRegions(self.torch_device.type == "cuda")
        self._targets = Targets(self.streams, self.torch_device)
        self._pass: Pass | None = None
        self._failure: str | None = None

    # -- memory -------------------------------------------------------------------------------------------------------

    def open_arena(self, layout: RecordLayout, slots: int) -> None:
        """Allocates the arena: `slots` slots of layout.slot_nbytes, once. Raises CapacityError."""
        self.arena = Arena(layout, slots, self.torch_device)
        self.copies = CopyEngine(self.arena, self.streams, SlotOrder(self.streams, slots))
        self._painter = Painter(self.arena, self._ops)
        self._updater = Updater(self.arena, self._ops, self.streams)

    def host_region(self, nbytes: int) -> np.ndarray:
        """Pinned memory for the host cache; see the seam. Raises DeviceError where so much cannot be pinned."""
        return self._regions.allocate(nbytes)

    def upload(self, host: list[np.ndarray], slots: list[int]) -> None:
        """Copies host slots (uint8 [slot_nbytes] each) into arena slots; returns when they may be used."""
        self.copies.upload(host, slots)

    def download(self, slots: list[int], host: list[np.ndarray]) -> None:
        """Copies arena slots into host slots; returns when they may be used."""
        self.copies.download(slots, host)

    def close(self) -> None:
        """Gives the memory back, once everything that was issued is finished."""
        self.streams.finish(self.streams.record("compute"))
        for name in ("arena", "copies", "_painter", "_updater"):
            self.__dict__.pop(name, None)
        self._pass, self._targets = None, Targets(self.streams, self.torch_device)
        self._regions.close()

    # -- passes -------------------------------------------------------------------------------------------------------

    def new_frame(self, view: View, depth: bool = False) -> Frame:
        """An empty frame, on the device until it is looked at."""
        return CudaFrame(view, depth, self.torch_device)

    def forward(
        self, view: View, blocks: PassBlocks, settings: RenderSettings, frame: Frame, region: Region | None = None
    ) -> None:
        """Renders the region into the frame; keeps what `backward` of the same pass needs until the next forward.

        A pass that runs out of memory is split by tiles. Raises CapacityError where a single tile still does.
        """
        self._check()
        assert isinstance(frame, CudaFrame)
        self._pass = None
        slots = blocks.slots.tolist()
        with self.streams.on("compute"):
            self.copies.order.begin("compute", slots)
            self.streams.reads("compute", slot_names(slots))
            parts = [] if region is None else [region]

            def draw() -> Pass:
                return self._painter.draw(view, blocks, settings, frame, region, parts)

            def split(why: str) -> None:
                parts[:] = self._finer(view, region, parts, why)

            self._pass = self._attempt(draw, split)
            self.copies.order.end("compute", slots)

    def loss(self, frame: Frame, target: np.ndarray, ssim_lambda: float, scale: float = 1.0) -> LossValue:
        """See the seam. The numbers are fetched when one of them is first read."""
        self._check()
        assert isinstance(frame, CudaFrame)
        with self.streams.on("compute"):
            number, image = self._targets.put(target)
            frame.grad, sums = self._attempt(
                lambda: self._l1_ssim(frame.rgb, image, ssim_lambda, scale), self._split_current
            )
            self._targets.done(number)
            return PendingLoss(Pending(self.streams, sums), ssim_lambda)

    def backward(self, frame: Frame, adam: AdamSettings) -> BlockUpdates:
        """Differentiates the last forward pass, and updates each block whose LAST_OF_STEP flag is set."""
        self._check()
        assert isinstance(frame, CudaFrame)
        current, image_grad = self._pass, frame.grad
        if current is None or current.frame is not frame or image_grad is None:
            raise RuntimeError("backward needs a forward pass into this frame, and its loss, before it")
        slots = current.blocks.on_host.slots.tolist()
        with self.streams.on("compute"):
            self.copies.order.begin("compute", slots)
            self.streams.writes("compute", slot_names(slots))
            grads, carry = self._attempt(lambda: self._painter.differentiate(current, image_grad), self._split_current)
            try:
                updates = self._updater.apply(current, grads, carry, adam)
            except RuntimeError as error:
                self._failure = str(error).splitlines()[0]
                raise self._broken() from error
            self.copies.order.end("compute", slots)
        self._pass = None
        return updates

    def _check(self) -> None:
        if self._failure:
            raise self._broken()

    def _broken(self) -> DeviceError:
        return DeviceError(
            f"the device failed in the middle of an update ({self._failure}): resume from the last snapshot"
        )

    # -- short of memory ----------------------------------------------------------------------------------------------

    def _attempt(self, work: Callable[[], T], split: Callable[[str], None]) -> T:
        """Does work that changes no slot; when it runs out of memory, splits the pass and does it again."""
        while True:
            try:
                with memory.too_large():
                    return work()
            except PassTooLarge as error:
                why = str(error)
            # Only now, with the error and its frames gone, is what the work had allocated free.
            split(why)
            self.splits += 1
            if self.torch_device.type == "cuda":
                torch.cuda.empty_cache()

    def _split_current(self, why: str) -> None:
        current = self._pass
        assert current is not None
        current.forget_graph()
        current.parts = self._finer(current.view, current.region, current.parts, why)

    def _finer(self, view: View, region: Region | None, parts: list[Region], why: str) -> list[Region]:
        smaller = finer(view.width, view.height, parts or [region or whole(view.width, view.height)])
        if smaller is None:
            raise CapacityError(
                f"a pass of a single tile of {view.width}x{view.height} pixels runs out of device memory ({why}): "
                "leave more beside the arena with a smaller --device-memory"
            )
        return smaller


def _kernels(device: torch.device) -> tuple[ModuleType, Callable[..., tuple[Tensor, Tensor]]]:
    """Triton kernels on CUDA, their twins on a CPU."""
    if device.type != "cuda":
        return twins, ssim.l1_ssim_twin
    from tidegs.device.cuda import launch

    return launch, ssim.l1_ssim
