"""Plans: of scenes that exist only as a table, and beside what a run did."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.training import settings
from tidegs.cli.main import main
from tidegs.data.synth import PRESETS, write_scene
from tidegs.train.imagined import DENSITY, city_table, city_views, ground_for
from tidegs.train.run import RunRequest, run_training


def test_the_imagined_city_has_the_gaussians_asked_for() -> None:
    for n in (10**6, 10**8):
        ground = ground_for(n)
        table = city_table(*ground)
        assert table["count"].sum() == pytest.approx(n, rel=0.05)
        assert ground[0] * ground[1] * DENSITY == pytest.approx(n)
    low, high = table["lo"], table["hi"]
    assert len(np.unique(low[:, :2], axis=0)) == len(table)
    assert high[:, 0].max() == pytest.approx(ground[0], rel=0.05)
    assert len(city_views(*ground)) % 5 == 0


def test_synthetic_plans_need_no_scene(capsys: pytest.CaptureFixture[str]) -> None:
    budgets = ["--device-memory", "200MiB", "--host-memory", "200MiB"]
    assert main(["plan", "--synthetic", "1e6", "--json", *budgets]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mode"] == "SSD"
    assert found["blocks"] == pytest.approx(1e6 / 4096, rel=0.05)
    assert found["peak_bytes"]["arena"] <= 200 << 20
    for wrong in (["plan"], ["plan", "--synthetic", "0"], ["plan", "somewhere", "--synthetic", "1e6"]):
        assert main(wrong) != 0


def test_a_run_writes_what_it_will_move(tmp_path: Path) -> None:
    """With rates of zero the bounds stay, so that the plan is what happens."""
    write_scene(tmp_path / "scene", PRESETS["tiny"], progress=False)
    still = dict.fromkeys(["means_lr", "scales_lr", "quats_lr", "opacities_lr", "sh0_lr", "shN_lr"], 0.0)
    config = settings(max_steps=12, device_memory="50%", host_memory="30%", order="cache", **still)
    request = RunRequest(tmp_path / "scene", tmp_path / "out", None, config, False, evaluate=False, quiet=True)
    summary = run_training(request).summary
    plan = json.loads((tmp_path / "out" / "stats" / "plan.json").read_text())
    assert plan["steps_planned"] == 12
    assert plan["bytes_a_step"]["upload"] == pytest.approx(summary["moved_bytes"]["upload"] / 12, rel=0.1)
    assert summary["planning_seconds"] >= 0
