"""Small things that cross the link each step: target images up, losses and bounds down, without a wait on the way.

Invariant: a pinned buffer is overwritten only after the copy that read it has finished; a result is read by the host
only after the event of its copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tidegs.device.cuda.streams import Event, Streams


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """A small array on the device, by the compute stream, without waiting. (torch keeps the pinned copy until then.)"""
    host = torch.from_numpy(np.ascontiguousarray(array))
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.clone()


class Pending:
    """A result on its way to the host."""

    def __init__(self, streams: Streams, result: Tensor) -> None:
        """Issues the copy behind what the compute stream does."""
        self._streams = streams
        self._host = torch.empty(result.shape, dtype=result.dtype, pin_memory=result.is_cuda)
        streams.writes("compute", [("result", id(self))])
        self._host.copy_(result, non_blocking=True)
        self._ready = streams.record("compute")

    def get(self) -> np.ndarray:
        """Waits for the copy, and for nothing behind it."""
        self._streams.finish(self._ready)
        self._streams.host_touches([("result", id(self))])
        return self._host.numpy()


@dataclass
class _Buffer:
    host: Tensor
    device: Tensor
    copied: Event = None  # the upload of the last image
    used: Event = None  # its last use by compute


class Targets:
    """Images go up through two pinned buffers on a stream of their own, beside the rasterizer's kernels."""

    def __init__(self, streams: Streams, device: torch.device) -> None:
        self._streams, self._device = streams, device
        self._buffers: list[_Buffer] = []
        self._next = 0

    def put(self, image: np.ndarray) -> tuple[int, Tensor]:
        """Starts the upload of uint8 [height, width, 3]; returns the buffer's number, and its tensor for compute."""
        i, self._next = self._next, 1 - self._next
        buffer = self._buffer(i, image.shape)
        if buffer.copied is not None:
            self._streams.finish(buffer.copied)
        self._streams.host_touches([("target host", i)])
        np.copyto(buffer.host.numpy(), image)
        with self._streams.on("image"):
            if buffer.used is not None:
                self._streams.wait("image", buffer.used)
            self._streams.reads("image", [("target host", i)])
            self._streams.writes("image", [("target", i)])
            buffer.device.copy_(buffer.host, non_blocking=True)
            buffer.copied = self._streams.record("image")
        self._streams.wait("compute", buffer.copied)
        self._streams.reads("compute", [("target", i)])
        return i, buffer.device

    def done(self, number: int) -> None:
        """Notes that compute has been told all it does with the buffer."""
        self._buffers[number].used = self._streams.record("compute")

    def _buffer(self, i: int, shape: tuple[int, ...]) -> _Buffer:
        if i == len(self._buffers):
            self._buffers.append(self._allocate(shape))
        elif self._buffers[i].host.shape != shape:
            old = self._buffers[i]
            self._buffers[i] = self._allocate(shape)
            self._buffers[i].copied, self._buffers[i].used = old.copied, old.used
            if old.copied is not None:
                self._streams.finish(old.copied)  # the old buffers may be freed: nothing else reads them
        return self._buffers[i]

    def _allocate(self, shape: tuple[int, ...]) -> _Buffer:
        host = torch.empty(shape, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        return _Buffer(host, torch.empty(shape, dtype=torch.uint8, device=self._device))
