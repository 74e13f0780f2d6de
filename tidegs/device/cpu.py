"""The CPU device: the arena is ordinary memory, kernels are C++ on all cores (csrc/).

Invariant: a camera gives the same bits for any number of threads, any parts of its blocks, and any scratch budget.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from tidegs.device import abi
from tidegs.device.base import (
    AdamSettings,
    BlockFlags,
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
from tidegs.device.exposure import exposed, pull_back
from tidegs.device.masking import clear_masked, masked_target
from tidegs.device.sparse_depth import disparity_l1, need_depth
from tidegs.errors import DeviceError
from tidegs.gaussians.layout import RecordLayout

DEFAULT_SCRATCH = 1 << 30
STEP_ENDS = np.uint8(BlockFlags.FIRST_OF_STEP | BlockFlags.LAST_OF_STEP)


@dataclass
class CpuFrame(Frame):
    """A frame and the gradients that `loss` (or the caller) left for `differentiate`."""

    grad: np.ndarray | None = None  # float32 [3, height, width], dL/dimage
    grad_alpha: np.ndarray | None = None  # float32 [height, width]
    grad_depth: np.ndarray | None = None  # float32 [height, width]


@dataclass(frozen=True)
class PassCounts:
    """Of the last image."""

    splats: int  # rows with radius > 0
    visits: int  # pairs of a tile and a splat that can touch it
    ranges: int  # of tiles, one after the other, that the scratch budget made of the image
    evaluations: int  # pixels x splats of the last range: groups of pixels with at least one that the splat adds to


class CpuDevice:
    """See tidegs.device.base.Device.

    `scratch_budget` (bytes) bounds the lists and partial gradients of an image, 57 bytes for each pair of a splat and a
    tile; they are counted first, and an image that needs more is rendered in consecutive ranges of tiles.
    """

    name = "cpu"

    def __init__(self, scratch_budget: int = DEFAULT_SCRATCH, isa: str | None = None) -> None:
        self._lib = abi.library(isa)
        self.isa: str = self._lib.tidegs_isa().decode()
        self._budget = scratch_budget
        self._raster: int | None = None
        self._parts, self._stage, self._pose_grad = 0, "closed", False
        self.arena = np.empty((0, 0), np.uint8)

    def open_arena(self, layout: RecordLayout, slots: int) -> None:
        """Maps `slots` slots of anonymous memory, zero, aligned to pages, as `arena` (uint8 [slots, slot_nbytes])."""
        self.close()
        nbytes = max(slots * layout.slot_nbytes, mmap.PAGESIZE)
        try:
            memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError, OverflowError) as error:
            raise DeviceError(
                f"an arena of {nbytes} bytes cannot be allocated ({error}): lower --device-memory"
            ) from error
        self.layout = layout
        self.arena = np.frombuffer(memory, np.uint8)[: slots * layout.slot_nbytes].reshape(slots, layout.slot_nbytes)
        self._raster = self._lib.tidegs_raster_open(ctypes.byref(abi.layout(layout)), self._budget)

    def host_region(self, nbytes: int) -> np.ndarray:
        """Anonymous memory."""
        return np.frombuffer(mmap.mmap(-1, max(nbytes, 1)), np.uint8)[:nbytes]

    def upload(self, host: list[np.ndarray], slots: list[int]) -> None:
        for source, slot in zip(host, slots, strict=True):
            self._copy(self.arena[slot], source)

    def download(self, slots: list[int], host: list[np.ndarray]) -> None:
        for slot, target in zip(slots, host, strict=True):
            self._copy(target, self.arena[slot])

    def _copy(self, target: np.ndarray, source: np.ndarray) -> None:
        nbytes = self.layout.slot_nbytes
        if target.nbytes < nbytes or source.nbytes < nbytes:
            raise DeviceError(
                f"a slot of {min(target.nbytes, source.nbytes)} bytes is short of the {nbytes} of the layout"
            )
        self._lib.tidegs_copy(target.ctypes.data, source.ctypes.data, nbytes)

    @contextmanager
    def edit(self, slots: list[int]) -> Iterator[list[np.ndarray]]:
        """The arena itself."""
        yield [self.arena[s] for s in slots]

    def new_frame(self, view: View, depth: bool = False) -> CpuFrame:
        shape = (view.height, view.width)
        image, alpha = np.zeros((3, *shape), np.float32), np.zeros(shape, np.float32)
        return CpuFrame(image, alpha, np.zeros(shape, np.float32) if depth else None)

    def begin(self, view: View, settings: RenderSettings, frame: Frame) -> None:
        if frame.alpha.shape != (view.height, view.width):
            raise DeviceError(f"the frame is {list(frame.alpha.shape)}, the view {[view.height, view.width]} pixels")
        if not 0 <= settings.sh_degree <= self.layout.sh_degree:
            raise DeviceError(
                f"sh_degree {settings.sh_degree} is not between 0 and the layout's {self.layout.sh_degree}"
            )
        camera = abi.camera(view, settings)
        self._pose_grad = settings.pose_grad
        self._lib.tidegs_raster_begin(self._opened(), ctypes.byref(camera))
        self._parts, self._stage = 0, "begun"

    def add(self, blocks: PassBlocks) -> None:
        passed, _kept = self._blocks(blocks)
        self._expect("add", "begun")
        self._call("add", self._opened(), ctypes.byref(passed))
        self._parts += 1

    def finish(self, frame: Frame) -> None:
        self._expect("finish", "begun")
        height = frame.alpha.shape[0]
        planes = abi.CPlanes(abi.address(frame.image), abi.address(frame.alpha), abi.address(frame.depth), height)
        self._call("finish", self._opened(), ctypes.byref(planes))
        self._stage = "rendered"

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
        assert isinstance(frame, CpuFrame)
        height, width = frame.alpha.shape
        if target.shape != (height, width, 3) or target.dtype != np.uint8:
            raise DeviceError(
                f"the target image is {target.dtype} {list(target.shape)}: give uint8 {[height, width, 3]}"
            )
        image = frame.image if exposure is None else exposed(frame.image, exposure)
        target = np.ascontiguousarray(target if mask is None else masked_target(image, target, mask))
        if frame.grad is None:
            frame.grad = np.empty_like(frame.image)
        out = np.zeros(3, np.float64)
        self._lib.tidegs_ssim_l1(
            image.ctypes.data, target.ctypes.data, width, height, ssim_lambda, scale, frame.grad.ctypes.data,
            out.ctypes.data,
        )  # fmt: skip
        if mask is not None:
            clear_masked(frame.grad, mask)
        by_exposure = None if exposure is None else pull_back(frame.image, frame.grad, exposure)
        total = float(out[2]) + self._compare_depth(frame, points, scale)
        return LossValue(total, float(out[0]), float(out[1]), by_exposure)

    def _compare_depth(self, frame: CpuFrame, points: SparseDepth | None, scale: float) -> float:
        """The term of `points`; its gradient times `scale` becomes the frame's."""
        if points is None:
            frame.grad_alpha = frame.grad_depth = None
            return 0.0
        depth = need_depth(frame.depth)
        if frame.grad_alpha is None or frame.grad_depth is None:
            frame.grad_alpha, frame.grad_depth = np.empty_like(frame.alpha), np.empty_like(depth)
        factor = points.weight * scale
        mean = disparity_l1(depth, frame.alpha, points.xy, points.disparity, factor, frame.grad_depth, frame.grad_alpha)
        return points.weight * float(mean)

    def differentiate(self, frame: Frame) -> None:
        """See Device.differentiate. The gradient is frame.grad, where `loss` left it; frame.grad_alpha and
        frame.grad_depth (the latter only of a frame with depth) join in where they are set."""
        assert isinstance(frame, CpuFrame)
        self._expect("differentiate", "rendered")
        if frame.grad is None:
            raise DeviceError("differentiate was called without a loss before it")
        grads = [frame.grad, frame.grad_alpha, frame.grad_depth]
        grads = [None if g is None else np.ascontiguousarray(g, np.float32) for g in grads]
        planes = abi.CPlanes(*(abi.address(g) for g in grads), frame.alpha.shape[0])
        self._call("differentiate", self._opened(), ctypes.byref(planes))
        self._stage = "differentiated"

    def update(self, part: int, blocks: PassBlocks, adam: AdamSettings) -> BlockUpdates:
        self._expect("update", "differentiated")
        if not 0 <= part < self._parts:
            raise DeviceError(f"part {part} was never added: the camera has {self._parts}")
        passed, _kept = self._blocks(blocks)
        n = len(blocks.slots)
        flags = np.ascontiguousarray(blocks.flags, np.uint8)
        if len(flags) != n:
            raise DeviceError(f"a pass has {n} blocks and {len(flags)} flags")
        if ((flags & STEP_ENDS) != STEP_ENDS).any() and not self.layout.with_grads:
            raise DeviceError(
                "a step has several cameras, but slots have no `grads` plane: set with_grads in the layout"
            )
        out = BlockUpdates(
            lo=np.empty((n, 3), np.float32),
            hi=np.empty((n, 3), np.float32),
            extent=np.empty(n, np.float32),
            visible=np.empty(n, np.int32),
            touched=np.empty(n, bool),
            pose=np.empty((n, 3, 4)) if self._pose_grad else None,
        )
        learned = (out.lo, out.hi, out.extent, out.visible, out.touched, out.pose)
        updates = abi.CUpdates(*(abi.address(a) for a in learned))
        step = abi.adam(adam)
        self._call(
            "update", self._opened(), part, ctypes.byref(passed), flags.ctypes.data, ctypes.byref(step),
            ctypes.byref(updates),
        )  # fmt: skip
        return out

    def add_noise(self, blocks: PassBlocks, noise: MeanNoise, adam: AdamSettings) -> NoisedBlocks:
        passed, _kept = self._blocks(blocks)
        n = len(blocks.slots)
        out = NoisedBlocks(
            lo=np.empty((n, 3), np.float32),
            hi=np.empty((n, 3), np.float32),
            extent=np.empty(n, np.float32),
            mass=np.empty(n, np.float64),
            dead=np.empty(n, np.int32),
        )
        learned = abi.CNoised(*(abi.address(a) for a in (out.lo, out.hi, out.extent, out.mass, out.dead)))
        layout, numbers = abi.layout(self.layout), abi.noise(noise, adam)
        self._call("add_noise", *(ctypes.byref(each) for each in (layout, passed, numbers, learned)))
        return out

    def _blocks(self, blocks: PassBlocks) -> tuple[abi.CBlocks, tuple[np.ndarray, np.ndarray]]:
        """The blocks for C++, and the arrays that it points to."""
        slots = np.ascontiguousarray(blocks.slots, np.int32)
        counts = np.ascontiguousarray(blocks.counts, np.int32)
        if len(slots) != len(counts):
            raise DeviceError(f"a pass has {len(slots)} slots and {len(counts)} counts")
        if len(slots) and (slots.min() < 0 or slots.max() >= len(self.arena)):
            raise DeviceError(f"a pass names slot {slots.max()} of an arena of {len(self.arena)}")
        if len(slots) and (counts.min() < 0 or counts.max() > self.layout.capacity):
            raise DeviceError(f"a block has {counts.max()} rows in use, more than its capacity {self.layout.capacity}")
        passed = abi.CBlocks(self.arena.ctypes.data, slots.ctypes.data, counts.ctypes.data, len(slots))
        return passed, (slots, counts)

    def counts(self) -> PassCounts:
        """Sizes of the last image."""
        out = (ctypes.c_int64 * 4)()
        self._lib.tidegs_raster_counts(self._opened(), out)
        return PassCounts(*out)

    def twin(self, image: np.ndarray, grad: np.ndarray, sums: np.ndarray) -> int:
        """The pixel stage of the last image by the plain scalar twin, for benchmarks and tests.

        Fills `image` [3, height, width], and adds to `sums` [splats, 10] the image-space gradients for `grad` (as
        `image`); all float32 in C order. Returns how many pairs of a pixel and a splat counted.
        """
        if self.counts().ranges != 1:
            raise DeviceError("the twin needs an image of one range: raise scratch_budget")
        return int(self._lib.tidegs_raster_twin(self._opened(), image.ctypes.data, grad.ctypes.data, sums.ctypes.data))

    def set_threads(self, threads: int) -> None:
        """Threads of the kernels, for this process; the result does not depend on them."""
        self._lib.tidegs_set_threads(threads)

    def close(self) -> None:
        if self._raster is not None:
            self._lib.tidegs_raster_close(self._raster)
        self._raster, self._stage = None, "closed"
        self.arena = np.empty((0, 0), np.uint8)

    def _opened(self) -> int:
        if self._raster is None:
            raise DeviceError("the CPU device has no arena: call open_arena first")
        return self._raster

    def _call(self, name: str, *args: object) -> None:
        if getattr(self._lib, f"tidegs_raster_{name}")(*args):
            raise DeviceError(f"memory ran out in a {name} pass on the CPU: lower --device-memory, or the image size")

    def _expect(self, call: str, stage: str) -> None:
        if self._stage != stage:
            raise DeviceError(f"{call} was called out of order: begin, add, finish, loss, differentiate, update")
