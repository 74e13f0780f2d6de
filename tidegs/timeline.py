"""Spans of time by thread, for `tidegs train --profile`.

Invariant: while nobody records, a span costs one comparison, and nothing is kept.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Span(NamedTuple):
    """What a thread did from when to when, in nanoseconds of time.perf_counter_ns."""

    name: str
    thread: str
    begin_ns: int
    end_ns: int


_kept: list[Span] | None = None  # None: nobody records


def start() -> None:
    """Keeps spans from now on."""
    global _kept
    _kept = []


def stop() -> list[Span]:
    """The spans that ended since `start`; keeps no more."""
    global _kept
    spans, _kept = _kept or [], None
    return spans


def add(name: str, begin: float, end: float) -> None:
    """A span of this thread, in seconds of time.perf_counter."""
    kept = _kept
    if kept is not None:
        kept.append(Span(name, threading.current_thread().name, int(begin * 1e9), int(end * 1e9)))


@contextmanager
def span(name: str) -> Iterator[None]:
    """Keeps how long the block took."""
    if _kept is None:
        yield
        return
    begin = time.perf_counter()
    try:
        yield
    finally:
        add(name, begin, time.perf_counter())
