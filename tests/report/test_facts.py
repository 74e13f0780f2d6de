"""Figures of a run from its files: resumes, owners, rates, and files that are torn, old or missing."""

from __future__ import annotations

import json

import pytest

from tests.report.fake import BLOCKS, LAYOUT, SLOTS, row, write
from tidegs.errors import SceneError
from tidegs.gaussians.layout import RecordLayout
from tidegs.report.advice import advice, bottleneck
from tidegs.report.facts import TIERS, collect, owners_at
from tidegs.report.ledger import ProcessMemory, slot_owners
from tidegs.report.result import read_run, stitch
from tidegs.report.series import POINTS, curves
from tidegs.report.table import render

SLOT = LAYOUT.slot_nbytes


def lines(count: int, every: int = 10, **changes):
    return [row(step, **changes) for step in range(every, every * count + 1, every)]


@pytest.mark.parametrize("layout", [RecordLayout(64), RecordLayout(4096, 0, 2, True), RecordLayout(128, 2, 1)])
def test_owners_of_a_slot_add_up(layout):
    assert sum(slot_owners(layout).values()) == layout.slot_nbytes


def test_owners_of_each_tier_add_up_to_its_size(tmp_path):
    run = read_run(write(tmp_path / "r", lines(3)))
    for tier, slots in SLOTS.items():
        assert sum(owners_at(run, tier, run.last).values()) == slots * SLOT
    assert sum(owners_at(run, "rss", run.last).values()) == run.last["rss"]
    assert sum(owners_at(run, "disk", run.last).values()) == 77 + 12288 * 30


def test_rates_and_shares(tmp_path):
    facts = collect(read_run(write(tmp_path / "r", lines(10))))
    assert facts["state"] == "running or interrupted"
    assert facts["seconds_a_step"] == pytest.approx(0.1)
    upload, read = facts["links"]["upload"], facts["links"]["read"]
    assert upload["bytes_a_step"] == 5 * SLOT
    assert upload["full_reload_a_step"] == BLOCKS * SLOT
    assert upload["share_of_full_reload"] == pytest.approx(0.05)
    assert upload["no_reuse_a_step"] == 20 * SLOT
    assert read["bytes_a_second"] == pytest.approx(2 * SLOT / 0.05)
    assert facts["flow"]["stall_share"] == pytest.approx(0.1)
    assert facts["flow"]["hit_share"] == pytest.approx(0.9)
    assert facts["tiers"]["host"]["peak"] == 10 * SLOT
    assert facts["tiers"]["arena"]["budget"] == 40 * SLOT


def test_sums_go_on_over_resumes(tmp_path):
    again = [{**row(step), "step": step + 50} for step in range(10, 51, 10)]  # a new process counts from zero
    run = read_run(write(tmp_path / "r", [*lines(5), *again]))
    assert run.restarts == [50]
    facts = collect(run)
    assert facts["resumes"] == 1
    assert facts["seconds"] == pytest.approx(10.0)
    assert facts["links"]["upload"]["bytes"] == 5 * 100 * SLOT
    assert curves(run)["ms"] == pytest.approx([100.0] * 10)


def test_stitching_leaves_one_process_as_it_is():
    rows = lines(4)
    assert stitch(rows) == (rows, [])


def test_warming_up_does_not_count_as_stalls(tmp_path):
    rows = lines(5)
    for r in rows:
        r["seconds"] += 100.0  # before the first line
        r["stall_seconds"] += 50.0
    assert collect(read_run(write(tmp_path / "r", rows)))["flow"]["stall_share"] == pytest.approx(0.1)


def test_torn_lines_are_left_out(tmp_path):
    root = write(tmp_path / "r", lines(3))
    with open(root / "stats" / "train.jsonl", "a") as file:
        file.write('{"step": 40, "loss"')
    assert [r["step"] for r in read_run(root).rows] == [10, 20, 30]


def test_a_summary_older_than_the_log_is_ignored(tmp_path):
    root = write(tmp_path / "r", lines(5))
    summary = {"step": 20, "finished": False, "seconds": 2.0, "moved_bytes": {}, "peak_bytes": {}}
    (root / "stats" / "summary.json").write_text(json.dumps(summary))
    facts = collect(read_run(root))
    assert facts["step"] == 50
    assert facts["state"] == "running or interrupted"


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_run_that_has_hardly_begun(tmp_path, count):
    root = write(tmp_path / "r", lines(count))
    (root / "stats" / "ledger.json").unlink()
    run = read_run(root)
    text = render(collect(run))
    assert "not evaluated yet" in text
    assert ("not begun" in text) == (count == 0)
    assert len(curves(run).get("step", [])) == count


def test_long_runs_are_thinned(tmp_path):
    run = read_run(write(tmp_path / "r", lines(3000)))
    found = curves(run)
    assert len(found["step"]) == POINTS
    assert found["step"][-1] == 30_000
    assert found["links"]["upload"] == pytest.approx([5 * SLOT] * POINTS, rel=1e-5)  # means of spans, not samples


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(SceneError, match=r"run\.json"):
        read_run(tmp_path)


def test_a_damaged_file_is_named(tmp_path):
    root = write(tmp_path / "r", lines(1))
    (root / "stats" / "summary.json").write_text("{")
    with pytest.raises(SceneError, match=r"summary\.json"):
        read_run(root)


def test_the_bottleneck_follows_the_figures(tmp_path):
    waiting = collect(read_run(write(tmp_path / "a", lines(10))))
    assert bottleneck(waiting).startswith("moving blocks")
    assert "SSD to host" in bottleneck(waiting)  # not "host to SSD", which nobody waits for
    rows = [{**r, "stall_seconds": 0.0} for r in lines(10)]
    assert bottleneck(collect(read_run(write(tmp_path / "b", rows)))).startswith("compute")
    rows = [{**r, "stall_seconds": 0.0, "image_wait_seconds": 0.05 * r["step"]} for r in lines(10)]
    slow_images = collect(read_run(write(tmp_path / "c", rows)))
    assert bottleneck(slow_images).startswith("image decoding")
    assert any("--image-memory" in text for text in advice(slow_images))


def test_advice_names_a_budget_that_was_not_used(tmp_path):
    facts = collect(read_run(write(tmp_path / "r", lines(10))))
    assert any(text.startswith("--host-memory") and "would have done" in text for text in advice(facts))
    assert not any(text.startswith("--device-memory") for text in advice(facts))


def test_a_plan_is_set_beside_the_outcome(tmp_path):
    root = write(tmp_path / "r", lines(10))
    plan = {"seconds_a_step": 0.05, "peak_bytes": {"arena": 80 * SLOT}, "bytes_a_step": {"upload": 5 * SLOT}}
    (root / "stats" / "plan.json").write_text(json.dumps(plan))
    facts = collect(read_run(root))
    ratios = {one["name"]: one["ratio"] for one in facts["predicted"]}
    assert ratios == {
        "seconds a step": pytest.approx(2.0),
        "peak arena": pytest.approx(0.5),
        "host to device, a step": pytest.approx(1.0),
    }
    assert "actual / predicted" in render(facts)


def test_every_tier_has_a_name(tmp_path):
    assert set(collect(read_run(write(tmp_path / "r", lines(2))))["tiers"]) == set(TIERS)


def test_process_memory_adds_up():
    found = ProcessMemory.now()
    assert found.anonymous + found.code == found.resident > 0
