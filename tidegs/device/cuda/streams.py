"""Streams and events: how work on the device is ordered without ever waiting for the whole device.

Invariant: whatever touches a slot or a buffer is issued on a named stream, after `wait` for the event of whoever
touched it last; `reads` and `writes` state what is touched, so that a checker can prove it (tests/cuda/ordering.py).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

import torch

Name = Literal["compute", "upload", "download", "image", "fetch", "stow"]
COPIES: tuple[Name, ...] = ("upload", "download", "image", "fetch", "stow")

Event = Any  # what `record` gave: a torch.cuda.Event, or a checker's


class Streams(Protocol):
    """The streams of one device. `compute` is that of the calling thread's torch operations."""

    def on(self, stream: Name) -> AbstractContextManager[Any]:
        """Torch operations inside go to this stream."""

    def record(self, stream: Name) -> Event:
        """An event after all that was issued on the stream so far."""

    def wait(self, stream: Name, event: Event) -> None:
        """What is issued on the stream from now on starts after the event; the host does not wait."""

    def finish(self, event: Event) -> None:
        """The host thread waits for the event."""

    def reads(self, stream: Name, resources: Iterable[Hashable]) -> None:
        """States that what is issued next on the stream reads these."""

    def writes(self, stream: Name, resources: Iterable[Hashable]) -> None:
        """States that what is issued next on the stream writes these."""

    def host_touches(self, resources: Iterable[Hashable]) -> None:
        """States that the host thread reads or overwrites these now."""

    def host_reads(self, resources: Iterable[Hashable]) -> None:
        """States that files read these (device memory) now, until the host thread goes on. Unlike after `host_touches`,
        whoever writes them next must know of it through an event."""

    def host_writes(self, resources: Iterable[Hashable]) -> None:
        """The same of files that write these now."""


class CudaStreams:
    """Streams of a CUDA device. Copies have streams of their own, so that they run beside the kernels."""

    def __init__(self, device: torch.device) -> None:
        self._streams: dict[Name, torch.cuda.Stream] = {"compute": torch.cuda.default_stream(device)}
        for name in COPIES:
            self._streams[name] = torch.cuda.Stream(device)

    def on(self, stream: Name) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._streams[stream])

    def record(self, stream: Name) -> Event:
        event = torch.cuda.Event(blocking=stream not in ("compute", "image"))  # copy threads sleep rather than spin
        event.record(self._streams[stream])
        return event

    def wait(self, stream: Name, event: Event) -> None:
        self._streams[stream].wait_event(event)

    def finish(self, event: Event) -> None:
        event.synchronize()

    def reads(self, stream: Name, resources: Iterable[Hashable]) -> None:
        """Nothing: CUDA needs no statement."""

    def writes(self, stream: Name, resources: Iterable[Hashable]) -> None:
        """Nothing: CUDA needs no statement."""

    def host_touches(self, resources: Iterable[Hashable]) -> None:
        """Nothing: CUDA needs no statement."""

    def host_reads(self, resources: Iterable[Hashable]) -> None:
        """Nothing: CUDA needs no statement."""

    def host_writes(self, resources: Iterable[Hashable]) -> None:
        """Nothing: CUDA needs no statement."""
