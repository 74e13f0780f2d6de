"""Stages of kernels as events, kept only on request."""

from __future__ import annotations

import time

from tests.device.harness import look, pack, random_scene, run
from tidegs.device import native, trace


def test_events_name_stages_threads_and_times():
    packed = pack(random_scene(600, 1))
    library = native.load(packed.device.isa)
    begin = time.perf_counter_ns()
    trace.start(library)
    run(packed, look(100, 80, 1))
    end = time.perf_counter_ns()
    events = trace.take(library)
    trace.stop(library)
    stages = list(dict.fromkeys(e.stage for e in events))
    assert stages == ["project", "count", "bin", "blend", "differentiate", "update"]
    assert [e.begin_ns for e in events] == sorted(e.begin_ns for e in events)
    for event in events:
        assert begin <= event.begin_ns <= event.end_ns <= end
        assert event.thread < native.thread_count()
        assert event.cpu_ns >= 0
    assert trace.take(library) == []


def test_nothing_is_kept_unless_asked_for():
    packed = pack(random_scene(100, 1))
    library = native.load(packed.device.isa)
    trace.stop(library)
    run(packed, look(50, 40, 1))
    assert trace.take(library) == []
