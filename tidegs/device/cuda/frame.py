"""A frame that lives on the device and comes to the host when it is looked at; and what a step learned, likewise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from tidegs.device.base import BlockUpdates, Frame, LossValue, View
from tidegs.device.cuda.staging import Pending, to_device
from tidegs.device.cuda.windows import Window
from tidegs.errors import DeviceError


class CudaFrame(Frame):
    """One whole image on the device: rgb float32 [H, W, 3], alpha and depth [H, W], and the gradient of rgb."""

    def __init__(self, view: View, with_depth: bool, device: torch.device) -> None:
        self.rgb = torch.zeros(view.height, view.width, 3, device=device)
        self.coverage = torch.zeros(view.height, view.width, device=device)
        self.distance = torch.zeros(view.height, view.width, device=device) if with_depth else None
        self.grad: Tensor | None = None
        self.grads_of_depth: tuple[Tensor, Tensor] | None = None  # by coverage and by distance

    def clear(self, background: tuple[float, float, float]) -> None:
        """An image of nothing."""
        self.rgb = to_device(np.array(background, np.float32), self.rgb.device).expand_as(self.rgb).contiguous()
        self.coverage = torch.zeros_like(self.coverage)
        self.distance = None if self.distance is None else torch.zeros_like(self.distance)

    @torch.no_grad()
    def put(self, window: Window, rgb: Tensor, alpha: Tensor, depth: Tensor | None) -> None:
        """What was drawn in a window; taken as it is where the window is the image."""
        if rgb.shape == self.rgb.shape:
            self.rgb, self.coverage = rgb.contiguous(), alpha
            self.distance = None if self.distance is None else depth
            return
        self.rgb[window.there] = rgb
        self.coverage[window.there] = alpha
        if self.distance is not None and depth is not None:
            self.distance[window.there] = depth

    def check_size(self, height: int, width: int) -> None:
        """Raises DeviceError where a view is of another size."""
        if self.rgb.shape[:2] != (height, width):
            raise DeviceError(f"the frame is {list(self.rgb.shape[:2])}, the view {[height, width]} pixels")

    def check_target(self, target: np.ndarray) -> None:
        """Raises DeviceError where an image to compare with is not one."""
        if target.shape != tuple(self.rgb.shape) or target.dtype != np.uint8:
            wanted = list(self.rgb.shape)
            raise DeviceError(f"the target image is {target.dtype} {list(target.shape)}: give uint8 {wanted}")

    @property
    def image(self) -> np.ndarray:  # type: ignore[override]
        """float32 [3, height, width]; waits for the device."""
        return self.rgb.permute(2, 0, 1).contiguous().cpu().numpy()

    @property
    def alpha(self) -> np.ndarray:  # type: ignore[override]
        """float32 [height, width]; waits for the device."""
        return self.coverage.cpu().numpy()

    @property
    def depth(self) -> np.ndarray | None:  # type: ignore[override]
        """float32 [height, width], where it was asked for; waits for the device."""
        return None if self.distance is None else self.distance.cpu().numpy()


class PendingLoss(LossValue):
    """A loss that is fetched when one of its numbers is first read."""

    def __init__(self, pending: Pending, ssim_lambda: float, depth_weight: float | None = None) -> None:
        self.__dict__.update(_pending=pending, _lambda=ssim_lambda, _depth_weight=depth_weight)

    def __getattr__(self, name: str) -> float:
        if name not in LossValue.__dataclass_fields__:
            raise AttributeError(name)
        values = self.__dict__["_pending"].get()
        l1, ssim = float(values[0]), float(values[1])
        by_exposure = np.asarray(values[2:14]).reshape(3, 4) if len(values) > 13 else None
        weight, depth_weight = self.__dict__["_lambda"], self.__dict__["_depth_weight"]
        total = (1.0 - weight) * l1 + weight * (1.0 - ssim)
        total += 0.0 if depth_weight is None else depth_weight * float(values[-1])
        self.__dict__.update(l1=l1, ssim=ssim, total=total, exposure_grad=by_exposure)
        return self.__dict__[name]


class PendingUpdates(BlockUpdates):
    """Bounds and counts that are fetched when one of them is first read."""

    def __init__(self, fetch: Callable[[], BlockUpdates]) -> None:
        self.__dict__["_fetch"] = fetch

    def __getattr__(self, name: str) -> np.ndarray:
        if name not in BlockUpdates.__dataclass_fields__:
            raise AttributeError(name)
        self.__dict__.update(vars(self.__dict__["_fetch"]()))
        return self.__dict__[name]
