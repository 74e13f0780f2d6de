"""`tidegs report` on a real run: ledger, bound, page, JSON, comparison."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest

from tidegs.cli.main import main
from tidegs.gaussians.layout import RECORD_PLANES
from tidegs.report.facts import owners_at
from tidegs.report.result import read_run
from tidegs.report.study import visits
from tidegs.store.block_store import BlockStore
from tidegs.store.format import SEEDS, planes_nbytes, seed_nbytes


@pytest.fixture
def facts(result, capsys):
    assert main(["report", str(result), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_byte_of_each_tier_has_an_owner(result):
    run = read_run(result)
    assert run.rows[-1]["step"] == 60
    for row in run.rows:
        for tier in ("arena", "host"):
            assert sum(owners_at(run, tier, row).values()) == row[f"{tier}_slots"] * run.ledger["slot_bytes"]
        process = owners_at(run, "rss", row)
        assert sum(process.values()) == row["rss"]
        assert process["other"] < row["rss"] / 2


def test_records_on_disk_are_counted_by_owner(result):
    found = read_run(result).last["memory"]["disk"]
    with BlockStore.open(result / "store", readonly=True) as store:
        table, layout = store.table, store.layout
        seeds = table["kind"] == SEEDS
        everything = planes_nbytes(layout, table["planes"][~seeds]).sum() + seeds.sum() * seed_nbytes(layout)
    assert sum(found.values()) == everything
    assert found["moments"] == 2 * found["parameters"]  # each record here has both moments of what it has
    assert set(RECORD_PLANES) > {"base", "rest"}


def test_the_bound_lies_below_what_was_loaded(facts):
    upload, read = facts["links"]["upload"], facts["links"]["read"]
    assert 0 < upload["bound_a_step"] <= upload["bytes_a_step"] <= upload["no_reuse_a_step"]
    assert 0 < read["bound_a_step"] <= read["bytes_a_step"]
    assert facts["working_set"]["mean"] <= facts["working_set"]["greatest"]


def test_the_order_of_visits_is_that_of_the_run(result, city):
    from tidegs.data.load import load_scene

    run, scene = read_run(result), load_scene(city)
    found = visits(run, scene.train)
    assert len(found) == 60
    assert set(found.tolist()) <= set(scene.train)
    epoch = len(scene.train)
    assert sorted(found[:epoch].tolist()) == sorted(scene.train)


def test_the_table_answers_where_memory_went(result, capsys):
    assert main(["report", str(result)]) == 0
    out = capsys.readouterr().out
    for text in ("arena", "moments", "host cache", "SSD to host", "full reload", "bottleneck", "PSNR"):
        assert text in out
    assert max(map(len, out.split("\n\nbottleneck")[0].splitlines())) <= 130


def test_the_page_stands_alone(result):
    assert main(["report", str(result), "--quiet"]) == 0
    page = (result / "report.html").read_text()
    assert not re.search(r"(?:src|href)=[\"'](?!data:)", page)
    assert "@import" not in page
    assert "url(" not in page
    assert page.count("data:image/jpeg") == 3 * 2  # truth, render and error map of the two test images
    assert page.count("data:image/png") == 1  # the map from above


def test_text_from_files_is_escaped(result, tmp_path):
    root = tmp_path / "<b>run"
    shutil.copytree(result, root, ignore=shutil.ignore_patterns("store", "ply"))
    run = json.loads((root / "run.json").read_text())
    (root / "run.json").write_text(json.dumps({**run, "machine": "</script><script>alert(1)</script>"}))
    assert main(["report", str(root), "--quiet"]) == 0
    page = (root / "report.html").read_text()
    assert "<script>alert" not in page
    assert "<b>run" not in page


def test_a_moved_scene_and_a_missing_store_are_said(result, tmp_path, capsys):
    root = tmp_path / "moved"
    shutil.copytree(result, root, ignore=shutil.ignore_patterns("ply"))
    run = json.loads((root / "run.json").read_text())
    (root / "run.json").write_text(json.dumps({**run, "scene": str(tmp_path / "gone")}))
    assert main(["report", str(root), "--quiet"]) == 0
    page = (root / "report.html").read_text()
    assert "--scene says where it is now" in page
    assert "times that a block was written" in page  # the map still shows what it can
    shutil.rmtree(root / "store")
    assert main(["report", str(root), "--quiet"]) == 0
    assert "need the block store" in (root / "report.html").read_text()


def test_comparison(result, tmp_path, capsys):
    other = tmp_path / "other"
    shutil.copytree(result, other, ignore=shutil.ignore_patterns("store", "ply"))
    page = tmp_path / "both.html"
    assert main(["report", str(result), str(other), "--html", str(page), "--quiet"]) == 0
    out = capsys.readouterr().out
    head = out.splitlines()[0].split()
    assert head == [result.name, "other"]
    psnr = next(line.split() for line in out.splitlines() if line.startswith("PSNR"))
    assert psnr[1] == psnr[2]
    assert page.exists()


def test_the_log_file_tells_the_story(result):
    lines = (result.parent / "log.txt").read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S", line) for line in lines)
    assert "training out of core" in lines[0]
    assert any("step 30: PSNR" in line for line in lines)
    assert "step 60/60" in lines[-1]


def test_the_map_shows_the_blocks_where_they_are(result, city):
    from tidegs.data.load import load_scene
    from tidegs.report.space import _splat
    from tidegs.store.base import TABLE_DTYPE

    rows = np.zeros(2, TABLE_DTYPE)
    rows["lo"], rows["hi"] = [[0, 0, 0], [6, 0, 0]], [[1.5, 3.5, 1], [7.5, 1.5, 1]]
    basis = np.array([[1.0, 0, 0], [0, 1.0, 0]])
    grid = _splat(rows, np.array([3.0, 5.0]), basis, np.zeros(2), 1.0, np.array([8, 4]))
    assert grid.shape == (4, 8)
    assert (grid[:, :2] == 3).all()
    assert (grid[:, 2:6] == -1).all()
    assert (grid[:2, 6:] == 5).all()
    assert (grid[2:, 6:] == -1).all()
    assert load_scene(city).train
