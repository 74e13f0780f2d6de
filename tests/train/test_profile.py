"""`tidegs train --profile` shows every thread, and changes nothing."""

import json

from tests.training import assert_same, settings, train
from tidegs import timeline


def test_a_profile_shows_all_threads_and_changes_nothing(city, tmp_path):
    changes = {"max_steps": 70, "device_memory": "15%", "host_memory": "30%", "data_factor": 4, "order": "shuffle"}
    train(city, tmp_path / "plain", settings(**changes))
    train(city, tmp_path / "shown", settings(**changes), profile=True)
    assert_same(tmp_path / "plain" / "store", tmp_path / "shown" / "store")
    assert not (tmp_path / "plain" / "stats" / "trace.json").exists()
    events = json.loads((tmp_path / "shown" / "stats" / "trace.json").read_text())["traceEvents"]
    threads = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    shown = [e for e in events if e["ph"] == "X"]
    assert {"kernels 0", "kernels 1", "MainThread"} <= set(threads.values())
    names = {e["name"] for e in shown}
    assert {"project", "blend", "differentiate", "update", "compute", "plan", "read", "upload", "download"} <= names
    assert sum(e["name"] == "wait for image" for e in shown) == 50  # one camera a step
    for tid in threads:  # what a thread does, it does one after the other, or one within the other
        row = sorted((e["ts"], -e["dur"]) for e in shown if e["tid"] == tid)
        open_until: list[float] = []
        for begin, duration in row:
            while open_until and open_until[-1] <= begin + 1e-3:
                open_until.pop()
            assert not open_until or begin - duration <= open_until[-1] + 1e-3, threads[tid]
            open_until.append(begin - duration)


def test_a_run_that_ends_early_leaves_what_it_saw(city, tmp_path):
    train(city, tmp_path / "r", settings(max_steps=15, data_factor=4), profile=True)
    assert json.loads((tmp_path / "r" / "stats" / "trace.json").read_text())["traceEvents"]


def test_nothing_is_kept_while_nobody_records():
    with timeline.span("unseen"):
        pass
    timeline.add("unseen", 0.0, 1.0)
    timeline.start()
    with timeline.span("seen"):
        pass
    assert [s.name for s in timeline.stop()] == ["seen"]
    timeline.add("unseen", 0.0, 1.0)
    assert timeline.stop() == []
