"""`tidegs train --profile`: what every thread did in some steps, as a file for chrome://tracing or ui.perfetto.dev.

Invariant: it only observes; a run computes the same with and without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tidegs import timeline
from tidegs.device import trace
from tidegs.device.base import Device
from tidegs.files import write_json

WARM_UP, STEPS = 10, 50  # steps that are not shown, since caches fill and code is compiled; steps that are


class Profile:
    """Shows STEPS steps after the first ones, in Chrome's trace event format."""

    def __init__(self, path: Path, device: Device) -> None:
        self._path, self._seen = path, 0
        self._kernels = device.name == "cpu"
        self._stages: list[trace.StageEvent] = []
        self._recording = False

    def between_steps(self) -> None:
        """To be called after each step, while no kernel runs."""
        self._seen += 1
        if self._recording and self._kernels:
            self._stages += trace.take()
        if self._seen == WARM_UP:
            self._start()
        elif self._seen == WARM_UP + STEPS:
            self.close()

    def _start(self) -> None:
        self._recording = True
        timeline.start()
        if self._kernels:
            trace.start()

    def close(self) -> None:
        """Writes what was recorded so far, once; nothing where the run ended before."""
        if not self._recording:
            return
        self._recording = False
        spans = timeline.stop()
        if self._kernels:
            trace.stop()
        write_json(self._path, {"displayTimeUnit": "ms", "traceEvents": chrome_events(spans, self._stages)})


def chrome_events(spans: list[timeline.Span], stages: list[trace.StageEvent]) -> list[dict[str, Any]]:
    """Complete ("X") events in microseconds, one row a thread, the threads' names first."""
    shown: list[tuple[str, str, int, int, dict[str, Any]]]
    shown = [(s.thread, s.name, s.begin_ns, s.end_ns, {}) for s in spans]
    shown += [
        (f"kernels {e.thread}", e.stage, e.begin_ns, e.end_ns, {"cpu_us": round(e.cpu_ns * 1e-3, 1)}) for e in stages
    ]
    rows = {thread: i for i, thread in enumerate(sorted({one[0] for one in shown}))}
    names = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": i, "args": {"name": thread}} for thread, i in rows.items()
    ]
    first = min((one[2] for one in shown), default=0)
    return names + [
        {
            "ph": "X",
            "name": name,
            "pid": 0,
            "tid": rows[thread],
            "ts": (begin - first) * 1e-3,
            "dur": (end - begin) * 1e-3,
            "args": args,
        }
        for thread, name, begin, end, args in sorted(shown, key=lambda one: one[2])
    ]
