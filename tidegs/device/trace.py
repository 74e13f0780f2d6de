"""What the kernels did when: stages by thread, as events that `tidegs train --profile` and the benchmarks read.

Invariant: nothing is kept, and no clock is read, unless tracing is on.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from tidegs.device import native


@dataclass(frozen=True)
class StageEvent:
    """A stage of a kernel on one thread. Times in nanoseconds of time.perf_counter_ns."""

    stage: str
    thread: int
    begin_ns: int
    end_ns: int
    cpu_ns: int  # processor time of the thread between the two: less where it waited for a core


class _CEvent(ctypes.Structure):
    _fields_ = [
        ("stage", ctypes.c_char_p),
        *((name, ctypes.c_int64) for name in ("thread", "begin_ns", "end_ns", "cpu_ns")),
    ]


def start(library: ctypes.CDLL | None = None) -> None:
    """Forgets what was kept and keeps events from now on. Not to be called while a kernel runs."""
    (library or native.kernels()).tidegs_trace(1)


def stop(library: ctypes.CDLL | None = None) -> None:
    """Forgets what was kept and keeps no more."""
    (library or native.kernels()).tidegs_trace(0)


def take(library: ctypes.CDLL | None = None) -> list[StageEvent]:
    """Returns the events kept since the last call, oldest first, and forgets them."""
    library = library or native.kernels()
    room = (_CEvent * 4096)()
    out: list[StageEvent] = []
    while n := library.tidegs_trace_take(room, len(room)):
        out += [StageEvent(e.stage.decode(), e.thread, e.begin_ns, e.end_ns, e.cpu_ns) for e in room[:n]]
    return sorted(out, key=lambda e: e.begin_ns)
