"""The copy engine: slots between host and arena, on streams of their own, ordered with the kernels by events.

Invariant: each slot knows the event of its last use; whoever uses it next on another stream waits for that event, on
the device. The host waits only for its own copy, never for the device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from tidegs.device.cuda.arena import Arena
from tidegs.device.cuda.streams import Event, Name, Streams


class SlotOrder:
    """The event after which a slot may be used by another stream."""

    def __init__(self, streams: Streams, slots: int) -> None:
        self._streams = streams
        self._last: list[tuple[Name, Event] | None] = [None] * slots

    def begin(self, stream: Name, slots: Sequence[int]) -> None:
        """Makes the stream wait for what another stream last did with each slot. One event a slot is enough: who used
        it last had waited for the one before."""
        last = (self._last[s] for s in slots)
        for event in {id(used[1]): used[1] for used in last if used is not None and used[0] != stream}.values():
            self._streams.wait(stream, event)

    def begin_on_host(self, slots: Sequence[int]) -> None:
        """The same for the host thread, whose files know of no streams."""
        last = (self._last[s] for s in slots)
        for event in {id(used[1]): used[1] for used in last if used is not None}.values():
            self._streams.finish(event)

    def end(self, stream: Name, slots: Sequence[int]) -> Event:
        """Notes that what was issued on the stream so far uses the slots; returns the event after it."""
        event = self._streams.record(stream)
        for slot in slots:
            self._last[slot] = (stream, event)
        return event


@dataclass
class CopyCounts:
    """What was copied, for the report."""

    bytes: int = 0
    blocks: int = 0
    copies: int = 0


@dataclass
class CopyEngine:
    """Uploads and downloads. Each direction is used by one thread at a time."""

    arena: Arena
    streams: Streams
    order: SlotOrder
    up: CopyCounts = field(default_factory=CopyCounts)
    down: CopyCounts = field(default_factory=CopyCounts)

    def upload(self, host: Sequence[np.ndarray], slots: Sequence[int]) -> None:
        """Copies host slots (uint8) into arena slots; returns when the host slots may be overwritten."""
        self._copy("upload", host, slots, self.up)

    def download(self, slots: Sequence[int], host: Sequence[np.ndarray]) -> None:
        """Copies arena slots into host slots (uint8); returns when the host slots may be read."""
        self._copy("download", host, slots, self.down)

    def _copy(self, stream: Name, host: Sequence[np.ndarray], slots: Sequence[int], counts: CopyCounts) -> None:
        if not len(slots):
            return
        up = stream == "upload"
        with self.streams.on(stream):
            self.order.begin(stream, slots)
            touched, buffers = slot_names(slots), [host_name(h) for h in host]
            self.streams.reads(stream, buffers if up else touched)
            self.streams.writes(stream, touched if up else buffers)
            for first, bytes_, n in runs(host, slots, self.arena.layout.slot_nbytes):
                on_device, on_host = self.arena.slot(first, n)[: bytes_.nbytes], torch.from_numpy(bytes_)
                (on_device if up else on_host).copy_(on_host if up else on_device, non_blocking=True)
                counts.copies += 1
                counts.bytes += bytes_.nbytes
            done = self.order.end(stream, slots)
        counts.blocks += len(slots)
        self.streams.finish(done)
        self.streams.host_touches(buffers)


def slot_names(slots: Iterable[int]) -> list[Hashable]:
    """How a checker knows arena slots."""
    return [("slot", int(s)) for s in slots]


def host_name(array: np.ndarray) -> Hashable:
    """How a checker knows a host buffer."""
    return ("host", array.__array_interface__["data"][0])


def runs(host: Sequence[np.ndarray], slots: Sequence[int], slot_nbytes: int) -> list[tuple[int, np.ndarray, int]]:
    """Joins neighbours: (first slot, host bytes, number of slots) of each copy that covers adjacent whole slots on both
    sides. Small blocks would otherwise spend their time on the launch of each copy."""
    out: list[tuple[int, np.ndarray, int]] = []
    i = 0
    while i < len(slots):
        n, at = 1, host_name(host[i])[1]  # type: ignore[index]
        if host[i].nbytes == slot_nbytes:
            while (
                i + n < len(slots)
                and slots[i + n] == slots[i] + n
                and host[i + n].nbytes == slot_nbytes
                and host_name(host[i + n])[1] == at + n * slot_nbytes  # type: ignore[index]
            ):
                n += 1
        joined = host[i] if n == 1 else np.ctypeslib.as_array((ctypes.c_uint8 * (n * slot_nbytes)).from_address(at))
        out.append((int(slots[i]), joined, n))
        i += n
    return out
