"""The CUDA device: gsplat over an arena of slots, by packed rows.

Invariant: slots are changed by uploads and by `update` alone. A device whose update failed half way refuses all further
work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from tidegs.device.base import (
    AdamSettings,
    BlockUpdates,
    Frame,
    LossValue,
    MeanNoise,
    NoisedBlocks,
    PassBlocks,
    RenderSettings,
    SparseDepth,
    View,
)
from tidegs.device.cuda import depth, memory, ssim, twins
from tidegs.device.cuda.arena import Arena
from tidegs.device.cuda.copies import CopyEngine, SlotOrder, slot_names
from tidegs.device.cuda.direct import DirectSlots
from tidegs.device.cuda.frame import CudaFrame, PendingLoss
from tidegs.device.cuda.memory import OutOfMemory
from tidegs.device.cuda.picture import Picture
from tidegs.device.cuda.pinned import PinnedRegions
from tidegs.device.cuda.rows import Blocks
from tidegs.device.cuda.staging import Pending, Targets, to_device
from tidegs.device.cuda.streams import CudaStreams, Streams
from tidegs.device.cuda.update import Updater
from tidegs.device.masking import check_mask
from tidegs.errors import DeviceError
from tidegs.gaussians.layout import RecordLayout

HOPE = 64  # cameras after which an image is drawn in larger windows again


class CudaDevice:
    """See tidegs.device.base.Device. `torch_device` is "cpu" in tests, which then bring streams of their own.

    Losses and updates are on their way when they are returned: reading one waits for it.
    """

    name = "cuda"

    def __init__(self, torch_device: str = "cuda", streams: Streams | None = None) -> None:
        self.torch_device = torch.device(torch_device)
        self.streams = streams or CudaStreams(self.torch_device)
        self._ops, self._l1_ssim = _kernels(self.torch_device)
        self._regions = PinnedRegions(self.torch_device.type == "cuda")
        self._targets = Targets(self.streams, self.torch_device)
        self._picture: Picture | None = None
        self._splits = self._halvings = self._cameras = 0
        self._failure: str | None = None

    # -- memory -------------------------------------------------------------------------------------------------------

    def open_arena(self, layout: RecordLayout, slots: int) -> None:
        """Allocates the arena: `slots` slots of layout.slot_nbytes, once. Raises CapacityError."""
        self.arena = Arena(layout, slots, self.torch_device)
        self.copies = CopyEngine(self.arena, self.streams, SlotOrder(self.streams, slots))
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

    @contextmanager
    def edit(self, slots: list[int]) -> Iterator[list[np.ndarray]]:
        """Copies of the slots, which go back afterwards; in order with the kernels. Waits for the device."""
        names = slot_names(slots)
        with self.streams.on("compute"):
            self.copies.order.begin("compute", slots)
            self.streams.reads("compute", names)
            host = [self.arena.slot(s).to("cpu", copy=True) for s in slots]
            yield [h.numpy() for h in host]
            self.streams.writes("compute", names)
            for slot, changed in zip(slots, host, strict=True):
                self.arena.slot(slot).copy_(changed)
            self.copies.order.end("compute", slots)

    def direct_slots(self) -> DirectSlots:
        """The arena as files see it that read and write device memory themselves."""
        return DirectSlots(self.arena, self.streams, self.copies.order)

    @property
    def splits(self) -> int:
        """How often work was done again in smaller pieces because device memory ran out."""
        return self._splits + (self._picture.splits if self._picture else 0)

    def close(self) -> None:
        """Gives the memory back, once everything that was issued is finished."""
        self.streams.finish(self.streams.record("compute"))
        self._end_picture()
        for name in ("arena", "copies", "_updater"):
            self.__dict__.pop(name, None)
        self._targets = Targets(self.streams, self.torch_device)
        self._regions.close()

    # -- a camera -----------------------------------------------------------------------------------------------------

    def new_frame(self, view: View, depth: bool = False) -> Frame:
        """An empty frame, on the device until it is looked at."""
        return CudaFrame(view, depth, self.torch_device)

    def begin(self, view: View, settings: RenderSettings, frame: Frame) -> None:
        """Starts a camera; what was kept of the last one is void."""
        self._check()
        if not 0 <= settings.sh_degree <= self.arena.layout.sh_degree:
            degree = self.arena.layout.sh_degree
            raise DeviceError(f"sh_degree {settings.sh_degree} is not between 0 and the layout's {degree}")
        _cuda_frame(frame).check_size(view.height, view.width)
        self._end_picture()
        with self.streams.on("compute"):
            self._picture = Picture(self.arena, self._ops, view, settings, self._halvings)

    def add(self, blocks: PassBlocks) -> None:
        """Projects the next part of the camera's blocks, and keeps what the image needs of their visible rows."""
        picture, slots = self._current(), blocks.slots.tolist()
        with self.streams.on("compute"):
            self.copies.order.begin("compute", slots)
            self.streams.reads("compute", slot_names(slots))
            picture.add(_blocks_on(self.torch_device, blocks))
            self.copies.order.end("compute", slots)

    def finish(self, frame: Frame) -> None:
        """Renders the whole image from all parts into the frame; in smaller windows where memory runs out."""
        with self.streams.on("compute"):
            self._current().draw(_cuda_frame(frame))

    def loss(
        self,
        frame: Frame,
        target: np.ndarray,
        ssim_lambda: float,
        scale: float = 1.0,
        mask: np.ndarray | None = None,
        exposure: np.ndarray | None = None,
        points: SparseDepth | None = None,
    ) -> LossValue:
        """See the seam. The numbers are fetched when one of them is first read."""
        cuda_frame = _cuda_frame(frame)
        cuda_frame.check_target(target)
        if mask is not None:
            check_mask(mask, target.shape[:2])
        with self.streams.on("compute"):
            number, image = self._targets.put(target)
            rgb, transform = cuda_frame.rgb, None
            if exposure is not None:
                transform = to_device(exposure, self.torch_device)
                rgb = rgb @ transform[:, :3].T + transform[:, 3]
            try:
                if mask is None:
                    grad, sums = self._compare(rgb, image, ssim_lambda, scale)
                else:
                    counts = to_device(mask, self.torch_device)[..., None] != 0
                    same = (rgb.detach().clamp(0, 1) * 255 + 0.5).to(torch.uint8)
                    grad, sums = self._compare(rgb, torch.where(counts, image, same), ssim_lambda, scale)
                    grad = grad * counts
            finally:
                self._targets.done(number)
            if transform is not None:
                by_colour = torch.einsum("hwc,hwk->ck", grad, cuda_frame.rgb)
                by_exposure = torch.cat([by_colour, grad.sum((0, 1))[:, None]], dim=1)
                sums = torch.cat([sums, by_exposure.flatten()])
                grad = grad @ transform[:, :3]
            cuda_frame.grad, cuda_frame.grads_of_depth = grad, None
            if points is not None:
                mean, cuda_frame.grads_of_depth = depth.disparity_l1(cuda_frame, points, scale)
                sums = torch.cat([sums, mean[None]])
            return PendingLoss(Pending(self.streams, sums), ssim_lambda, points.weight if points else None)

    def _compare(self, image: Tensor, target: Tensor, ssim_lambda: float, scale: float) -> tuple[Tensor, Tensor]:
        """The loss; where memory runs out, the picture's graph makes room, to be drawn again."""
        while True:
            try:
                return memory.attempt(lambda: self._l1_ssim(image, target, ssim_lambda, scale))
            except OutOfMemory as error:
                why = str(error)
            self._current().shrink(why)

    def differentiate(self, frame: Frame) -> None:
        """The loss's gradient in image space, for every visible row; kept for `update`."""
        cuda_frame = _cuda_frame(frame)
        if cuda_frame.grad is None:
            raise DeviceError("differentiate was called without a loss before it")
        with self.streams.on("compute"):
            self._current().differentiate(cuda_frame.grad, cuda_frame.grads_of_depth)

    def update(self, part: int, blocks: PassBlocks, adam: AdamSettings) -> BlockUpdates:
        """See the seam."""
        picture, slots = self._current(), blocks.slots.tolist()
        on_device = _blocks_on(self.torch_device, blocks)
        if not on_device.all_alone and not self.arena.layout.with_grads:
            raise DeviceError(
                "a step has several cameras, but slots have no `grads` plane: set with_grads in the layout"
            )
        with self.streams.on("compute"):
            self.copies.order.begin("compute", slots)
            self.streams.writes("compute", slot_names(slots))
            try:
                updates = self._updater.update(picture, picture.parts[part], on_device, adam)
            except BaseException as error:
                self._failure = (str(error).splitlines() or [type(error).__name__])[0]
                raise
            self.copies.order.end("compute", slots)
        return updates

    def add_noise(self, blocks: PassBlocks, noise: MeanNoise, adam: AdamSettings) -> NoisedBlocks:
        """See the seam."""
        self._check()
        slots = blocks.slots.tolist()
        with self.streams.on("compute"):
            self.copies.order.begin("compute", slots)
            self.streams.writes("compute", slot_names(slots))
            noised = self._updater.add_noise(_blocks_on(self.torch_device, blocks), noise, adam)
            self.copies.order.end("compute", slots)
        return noised

    def _end_picture(self) -> None:
        """The next image is halved as often as this one had to be, and from time to time once less."""
        if self._picture is not None:
            self._splits, self._halvings, self._picture = self.splits, self._picture.halvings, None
        self._cameras += 1
        if self._halvings and self._cameras % HOPE == 0:
            self._halvings -= 1

    def _current(self) -> Picture:
        self._check()
        if self._picture is None:
            raise DeviceError("a camera was used before `begin`")
        return self._picture

    def _check(self) -> None:
        if self._failure:
            raise DeviceError(
                f"the device failed in the middle of an update ({self._failure}): resume from the last snapshot"
            )


def _cuda_frame(frame: Frame) -> CudaFrame:
    if not isinstance(frame, CudaFrame):
        raise DeviceError(f"a {type(frame).__name__} was given to the CUDA device: make frames with its new_frame")
    return frame


def _blocks_on(device: torch.device, blocks: PassBlocks) -> Blocks:
    both = to_device(np.stack([blocks.slots, blocks.counts]).astype(np.int32), device)
    return Blocks(both[0], both[1], np.asarray(blocks.flags, np.uint8))


def _kernels(device: torch.device) -> tuple[ModuleType, Callable[..., tuple[Tensor, Tensor]]]:
    """Triton kernels on CUDA, their twins on a CPU."""
    if device.type != "cuda":
        return twins, ssim.l1_ssim_twin
    from tidegs.device.cuda import launch

    return launch, ssim.l1_ssim
