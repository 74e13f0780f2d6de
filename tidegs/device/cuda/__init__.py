"""The CUDA device. Importing this package needs neither CUDA nor Triton; opening the device does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegs.errors import CapacityError

if TYPE_CHECKING:
    from tidegs.device.cuda.device import CudaDevice
    from tidegs.gaussians.layout import RecordLayout


def auto_arena_slots(layout: RecordLayout, blocks: int, width: int, height: int) -> int:
    """Slots of an arena that leaves room on the GPU for cameras of this size. Raises DeviceError like open_cuda, and
    CapacityError where there is no room at all."""
    from tidegs.device.cuda import versions

    versions.require()
    import torch

    from tidegs.device.cuda import memory

    free = memory.free_memory(torch.device("cuda"))
    slots = memory.arena_slots(free, layout, blocks, width, height)
    if slots < 1:
        raise CapacityError(
            f"the {free / 2**30:.1f} GiB that are free on the GPU do not hold what images of {width}x{height} need: "
            "end what else runs on it, or use smaller images (--data-factor)"
        )
    return slots


def open_cuda() -> CudaDevice:
    """The CUDA device. Raises DeviceError where versions do not fit or there is no GPU."""
    from tidegs.device.cuda import versions

    versions.require()
    from tidegs.device.cuda.device import CudaDevice

    return CudaDevice()
