"""Streams that do everything at once on a CPU, and check that a GPU, which does not, would see the same order.

Invariant: two uses of a resource, one of them a write, must be ordered by streams, events and host threads alone
(happens-before by vector clocks: Lamport 1978, Mattern 1989). That they happened in order here counts for nothing.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Hashable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

Clock = dict[Hashable, int]


class OrderingError(AssertionError):
    """Two uses of a resource are not ordered."""


@dataclass(frozen=True)
class RecordedEvent:
    """What lies before an event."""

    source: Hashable
    clock: Clock


@dataclass
class _Uses:
    """The last write of a resource, and the reads since: (agent, its time)."""

    write: tuple[Hashable, int] | None = None
    reads: list[tuple[Hashable, int]] = field(default_factory=list)


class RecordedStreams:
    """See tidegs.device.cuda.streams.Streams. Agents are streams and host threads; each has a vector clock.

    Issuing on a stream orders the stream after what the host thread knows. Host threads learn of each other only
    through streams here: what queues and locks between them order is not known, which makes the check stricter.
    """

    def __init__(self) -> None:
        self._clocks: dict[Hashable, Clock] = {}
        self._uses: dict[Hashable, _Uses] = {}
        self._lock = threading.RLock()
        self.checked = 0  # pairs of uses that were found to be ordered

    def on(self, stream: str) -> AbstractContextManager[None]:
        return nullcontext()

    def record(self, stream: str) -> RecordedEvent:
        with self._lock:
            return RecordedEvent(stream, dict(self._issue(stream)))

    def wait(self, stream: str, event: RecordedEvent) -> None:
        with self._lock:
            _merge(self._issue(stream), event.clock)

    def finish(self, event: RecordedEvent) -> None:
        with self._lock:
            _merge(self._clock(_thread()), event.clock)

    def reads(self, stream: str, resources: Iterable[Hashable]) -> None:
        with self._lock:
            clock = self._issue(stream)
            for resource in resources:
                self._read(stream, clock, resource)

    def writes(self, stream: str, resources: Iterable[Hashable]) -> None:
        with self._lock:
            clock = self._issue(stream)
            for resource in resources:
                self._write(stream, clock, resource)

    def host_touches(self, resources: Iterable[Hashable]) -> None:
        with self._lock:
            clock = self._step(_thread())
            for resource in resources:
                self._write(_thread(), clock, resource)
                del self._uses[resource]  # the host's again: who has it next is for the host's own locks

    def host_reads(self, resources: Iterable[Hashable]) -> None:
        with self._lock:
            clock = self._step(_thread())
            for resource in resources:
                self._read(_thread(), clock, resource)

    def host_writes(self, resources: Iterable[Hashable]) -> None:
        with self._lock:
            clock = self._step(_thread())
            for resource in resources:
                self._write(_thread(), clock, resource)

    def _clock(self, agent: Hashable) -> Clock:
        return self._clocks.setdefault(agent, {agent: 0})

    def _step(self, agent: Hashable) -> Clock:
        clock = self._clock(agent)
        clock[agent] += 1
        return clock

    def _issue(self, stream: str) -> Clock:
        """The stream's clock for something issued now."""
        clock = self._step(stream)
        _merge(clock, self._step(_thread()))
        return clock

    def _read(self, agent: Hashable, clock: Clock, resource: Hashable) -> None:
        uses = self._uses.setdefault(resource, _Uses())
        self._after("reads", agent, clock, resource, [uses.write])
        uses.reads.append((agent, clock[agent]))

    def _write(self, agent: Hashable, clock: Clock, resource: Hashable) -> None:
        uses = self._uses.setdefault(resource, _Uses())
        self._after("writes", agent, clock, resource, [uses.write, *uses.reads])
        uses.write, uses.reads = (agent, clock[agent]), []

    def _after(self, verb: str, agent: Hashable, clock: Clock, resource: Hashable, earlier: list) -> None:
        for use in earlier:
            if use is None:
                continue
            other, time = use
            if clock.get(other, 0) < time:
                raise OrderingError(f"{agent} {verb} {resource} without waiting for its earlier use by {other}")
            self.checked += other != agent


def _merge(into: Clock, other: Clock) -> None:
    for agent, time in other.items():
        into[agent] = max(into.get(agent, 0), time)


_threads, _local = itertools.count(), threading.local()


def _thread() -> Hashable:
    """This thread. Its ident would not do: the system gives that of a thread that ended to the next one."""
    if not hasattr(_local, "number"):
        _local.number = next(_threads)
    return ("thread", _local.number)
