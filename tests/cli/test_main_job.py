"""The main job as a user does it: every command on one small scene, and what each leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image
from plyfile import PlyData

from tidegs.cli.main import COMMANDS, main
from tidegs.data.load import load_scene


@pytest.fixture(scope="module")
def result(city, tmp_path_factory) -> Path:
    """A result of 80 steps, out of core."""
    out = tmp_path_factory.mktemp("results") / "city"
    budgets = ["--device-memory", "25%", "--host-memory", "30%", "--block-capacity", "64"]
    steps = ["--max-steps", "80", "--eval-steps", "40", "--sh-degree-interval", "20"]
    assert main(["train", str(city), "--out", str(out), *budgets, *steps, "--quiet"]) == 0
    return out


def test_the_summary_has_the_promised_figures(result):
    summary = json.loads((result / "stats" / "summary.json").read_text())
    for key in ("psnr", "ssim", "num_gaussians", "dropped_blocks", "peak_bytes", "moved_bytes", "overlap", "seconds"):
        assert summary[key] is not None, key
    assert summary["num_gaussians"] == 12_000
    assert summary["dropped_blocks"] == 0
    assert 0 <= summary["overlap"] <= 1
    assert set(summary["moved_bytes"]) == {"read", "upload", "download", "write"}
    assert all(n > 0 for n in summary["moved_bytes"].values())


def test_training_learns_and_says_how_it_was_measured(result):
    early = json.loads((result / "stats" / "val_step0040.json").read_text())
    late = json.loads((result / "stats" / "val_step0080.json").read_text())
    assert late["psnr"] > early["psnr"] > 10
    assert late["protocol"]["split"] == "every 8th image by name"
    assert late["num_GS"] == 12_000
    assert len(late["per_view"]) == late["protocol"]["images"] == 2
    with Image.open(result / "renders" / "val_step0080_0000.png") as image:
        assert image.size == (2 * 96, 64)


def test_eval_gives_the_numbers_of_the_run(result, capsys):
    during = json.loads((result / "stats" / "val_step0080.json").read_text())
    assert main(["eval", str(result), "--device-memory", "10%", "--host-memory", "10%", "--quiet", "--no-images"]) == 0
    after = json.loads((result / "stats" / "val_step0080.json").read_text())
    assert after["psnr"] == during["psnr"]
    assert after["per_view"] == during["per_view"]
    assert f"{during['psnr']:.3f}" in capsys.readouterr().out


def test_export_is_in_the_frame_of_the_input(result, city):
    (path,) = (result / "ply").glob("*.ply")
    vertices = PlyData.read(path)["vertex"]
    assert vertices.count == 12_000
    scene = load_scene(city)
    truth = scene.transform.to_world(scene.points.gather().xyz)
    xyz = np.stack([vertices[k] for k in "xyz"], 1)
    assert np.allclose(np.median(xyz, 0), np.median(truth, 0), atol=2)
    assert np.allclose(np.ptp(xyz, 0), np.ptp(truth, 0), rtol=0.05, atol=2)
    sigma = np.exp(np.stack([vertices[f"scale_{i}"] for i in range(3)], 1))
    assert 0.1 < np.median(sigma) < 20  # metres


def test_render_views_and_a_flight(result, tmp_path, city):
    assert main(["render", str(result), "--out", str(tmp_path / "test"), "--quiet"]) == 0
    assert len(list((tmp_path / "test").rglob("*.png"))) == 2
    assert main(["render", str(result), "--views", "train", "--depth", "--out", str(tmp_path / "d"), "--quiet"]) == 0
    assert len(list((tmp_path / "d").rglob("*.png"))) == 14
    flight = ["--views", "path", "--mp4", "--frames", "5", "--out", str(tmp_path / "path"), "--quiet"]
    assert main(["render", str(result), *flight]) == 0
    with av.open(str(tmp_path / "path" / "path.mp4")) as video:
        assert sum(1 for _ in video.decode(video=0)) == 5


def test_info_describes_scene_store_and_result(result, city, capsys):
    for path, kind in ((city, "scene"), (result, "result"), (result / "store", "store")):
        assert main(["info", str(path), "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert facts["kind"] == kind
    assert facts["gaussians"] == 12_000
    assert facts["step"] == 80


def test_report_reads_the_run(result, capsys):
    assert main(["report", str(result)]) == 0
    assert "arena" in capsys.readouterr().out


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as done:
        main([command, "--help"])
    assert done.value.code == 0
    assert len(capsys.readouterr().out) > 200


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["train"], "give a scene folder"),
        (["train", "nowhere"], "nowhere"),
        (["train", "nowhere", "--max-steps", "-5"], "max_steps"),
        (["eval", "nowhere"], "nowhere"),
        (["render", "nowhere"], "nowhere"),
        (["export", "nowhere"], "nowhere"),
        (["info", "nowhere"], "nowhere"),
    ],
)
def test_bad_use_gets_one_sentence(argv, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    message = capsys.readouterr().err.strip()
    assert sentence in message
    assert "\n" not in message
    assert list(tmp_path.iterdir()) == []
