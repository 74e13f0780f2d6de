"""Gaussians out of a result in every format, and training that starts from such files."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

from tests.training import contents, settings, train
from tidegs.cli.main import main
from tidegs.data.load import load_scene
from tidegs.gaussians.open import open_gaussians
from tidegs.gaussians.packing import field
from tidegs.gaussians.select import importance
from tidegs.gaussians.write import FORMATS
from tidegs.train.result import ResultFolder

BOX = ["-60", "-60", "-5", "60", "60", "40"]


@pytest.fixture(scope="module")
def result(city, tmp_path_factory):
    """A result of a few steps, so that Gaussians differ from each other in all attributes."""
    out = tmp_path_factory.mktemp("results") / "city"
    train(city, out, settings(max_steps=12, sh_degree=1, sh_degree_interval=1))
    return out


def read(path):
    return np.concatenate(list(open_gaussians(path).chunks()))


def exported(result, path, *options):
    assert main(["export", str(result), "--out", str(path), "--quiet", *options]) == 0
    return read(path)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_holds_the_scene_in_the_input_frame(kind, result, tmp_path):
    truth = exported(result, tmp_path / "a.ply")
    rows = exported(result, tmp_path / f"b.{'compressed.ply' if kind == 'compressed-ply' else kind}")
    assert len(rows) == len(truth) == 12_000
    np.testing.assert_allclose(rows[:, :3].min(0), truth[:, :3].min(0), atol=0.2)  # metres, of 300
    np.testing.assert_allclose(rows[:, :3].max(0), truth[:, :3].max(0), atol=0.2)
    np.testing.assert_allclose(rows[:, 7:14].mean(0), truth[:, 7:14].mean(0), atol=0.02)
    assert open_gaussians(tmp_path / "a.ply").sh_degree == 1


def test_crop_and_count(result, tmp_path):
    truth = exported(result, tmp_path / "all.ply")
    low, high = np.array(BOX[:3], float), np.array(BOX[3:], float)
    inside = truth[((truth[:, :3] >= low) & (truth[:, :3] <= high)).all(1)]
    assert 0 < len(inside) < len(truth)
    assert np.array_equal(exported(result, tmp_path / "crop.ply", "--crop", *BOX), inside)
    few = exported(result, tmp_path / "few.ply", "--crop", *BOX, "--max-count", "100")
    best = np.sort(np.argsort(-importance(inside), kind="stable")[:100])
    assert np.array_equal(few, inside[best])


def test_the_format_may_be_named_or_is_told_by_the_suffix(result, tmp_path, capsys):
    exported(result, tmp_path / "a.bin.splat", "--format", "spz")
    assert open_gaussians(tmp_path / "a.bin.splat").format == "spz"
    assert main(["export", str(result), "--format", "sog", "--max-count", "50", "--quiet"]) == 0
    assert open_gaussians(result / "ply" / "point_cloud_12.sog").count == 50
    assert main(["export", str(result), "--out", str(tmp_path / "a.obj")]) == 2
    assert "name the format with --format" in capsys.readouterr().err
    assert main(["export", str(result), "--out", str(tmp_path / "b.ply"), "--crop", "1", "0", "0", "0", "1", "1"]) == 2
    assert "give least x y z, then greatest" in capsys.readouterr().err


def test_a_start_from_an_exported_ply_is_the_same_scene(city, result, tmp_path, capsys):
    truth = exported(result, tmp_path / "a.ply")
    out = tmp_path / "again"
    argv = ["train", str(city), "--out", str(out), "--init", str(tmp_path / "a.ply"), "--max-steps", "0", "--no-eval"]
    assert main([*argv, "--sh-degree", "2", "--block-capacity", "64"]) == 0
    said = capsys.readouterr().err
    assert "ingesting 12,000 Gaussians of SH degree 1 (ply)" in said
    assert "optimizer's state starts anew" in said
    again = exported(out, tmp_path / "b.ply")
    assert again.shape == (12_000, 14 + 24)
    assert not again[:, 14 + 9 :].any()
    order, other = (np.lexsort(rows[:, 11:14].T) for rows in (truth, again))
    np.testing.assert_allclose(again[other][:, : 14 + 9], truth[order], rtol=1e-5, atol=2e-5)
    assert ResultFolder(out).config().sh_degree_interval == 1
    assert ResultFolder(out).config().sh_degree == 2


@pytest.mark.parametrize("kind", ["spz", "sog", "compressed.ply", "splat"])
def test_training_goes_on_from_any_format(kind, city, result, tmp_path):
    path = tmp_path / f"a.{kind}"
    exported(result, path, "--max-count", "3000")
    argv = ["train", str(city), "--out", str(tmp_path / "on"), "--init", str(path), "--max-steps", "3", "--no-eval"]
    assert main([*argv, "--block-capacity", "64", "--quiet"]) == 0
    summary = json.loads((tmp_path / "on" / "stats" / "summary.json").read_text())
    assert (summary["step"], summary["num_gaussians"]) == (3, 3000)


def test_a_run_that_ended_while_it_ingested_goes_on_from_its_file(city, result, tmp_path):
    exported(result, tmp_path / "a.ply", "--max-count", "500")
    out = tmp_path / "on"
    scene = load_scene(city)
    ResultFolder(out).begin(settings(max_steps=1, sh_degree=1), scene, out / "store", tmp_path / "a.ply")
    assert main(["train", "--resume", str(out), "--no-eval", "--quiet"]) == 0
    assert contents(out / "store")[1]["count"].sum() == 500


def test_bad_starts_are_one_sentence_and_leave_nothing(city, tmp_path, capsys):
    (tmp_path / "a.spz").write_bytes(b"NGSPxx")
    assert main(["train", str(city), "--out", str(tmp_path / "o"), "--init", str(tmp_path / "a.spz")]) == 2
    assert "does not begin with NGSP" in capsys.readouterr().err
    assert main(["train", "--resume", str(tmp_path / "o"), "--init", str(tmp_path / "a.spz")]) == 2
    assert "--init" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["a.spz"]


def test_info_describes_a_file(result, tmp_path, capsys):
    rows = exported(result, tmp_path / "a.spz", "--max-count", "77")
    assert main(["info", str(tmp_path / "a.spz"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["kind"], facts["format"], facts["gaussians"], facts["sh_degree"]) == ("gaussians", "spz", 77, 1)
    assert facts["low"] == pytest.approx(field(rows, "means").min(0).tolist())
    assert facts["infinite_opacities"] == 0


def test_a_result_states_what_produced_it(city, result):
    run = json.loads((result / "run.json").read_text())
    assert run["numpy"] == np.__version__
    assert run["kernels"] in ("avx512", "avx2", "portable")
    assert run["init"] == ""
    cameras = city / "sparse" / "0" / "cameras.bin"
    fact = run["inputs"]["sparse/0/cameras.bin"]
    assert fact["sha256"] == hashlib.sha256(cameras.read_bytes()).hexdigest()
    assert fact["bytes"] == cameras.stat().st_size
    assert "sha256" not in run["inputs"]["sparse/0/points3D.bin"]
    assert run["inputs"]["sparse/0/images.bin"]["sha256"] != fact["sha256"]


def test_run_files_of_older_versions_are_read(result, tmp_path):
    run = json.loads((result / "run.json").read_text())
    for name in ("numpy", "kernels", "init", "inputs"):
        del run[name]
    (tmp_path / "run.json").write_text(json.dumps(run))
    assert ResultFolder(tmp_path).read_run().inputs == {}
