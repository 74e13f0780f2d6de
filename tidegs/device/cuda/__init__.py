"""The CUDA device. Importing this package needs neither CUDA nor Triton; opening the device does."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegs.device.cuda.device import CudaDevice


def open_cuda() -> CudaDevice:
    """The CUDA device. Raises DeviceError where versions do not fit or there is no GPU."""
    from tidegs.device.cuda import versions

    versions.require()
    from tidegs.device.cuda.device import CudaDevice

    return CudaDevice()
