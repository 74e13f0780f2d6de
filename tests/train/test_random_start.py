"""A start from random points: for scenes without any, as gsplat draws them, the same for the same seed."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from tests.training import assert_changed, assert_same, contents, settings, train
from tidegs.cli.main import main
from tidegs.data import points as points_module
from tidegs.data.points import RandomPoints
from tidegs.train.session import open_scene


def test_points_fill_the_cube_and_do_not_depend_on_the_chunks(monkeypatch):
    points = RandomPoints(20_000, 3.0, 7)
    whole = points.gather()
    assert whole.count == points.count == 20_000
    assert np.abs(whole.xyz).max() <= 3
    np.testing.assert_allclose(whole.xyz.mean(0), 0, atol=0.1)
    np.testing.assert_allclose(whole.xyz.std(0), 3 / np.sqrt(3), rtol=0.03)
    np.testing.assert_allclose(whole.rgb.mean(0), 127.5, atol=3)
    chunks = list(points.chunks(777))
    assert max(c.count for c in chunks) == 777
    assert np.array_equal(np.concatenate([c.xyz for c in chunks]), whole.xyz)
    assert not np.array_equal(RandomPoints(20_000, 3.0, 8).gather().xyz, whole.xyz)
    monkeypatch.setattr(points_module, "_RANDOM_CHUNK", 5000)
    again = points.gather().xyz
    assert len(np.unique(again, axis=0)) == 20_000


def test_a_scene_without_points_trains_from_random_ones(city, tmp_path, capsys):
    scene = tmp_path / "scene"
    shutil.copytree(city, scene)
    for path in (scene / "sparse" / "0").glob("points3D.*"):
        path.unlink()
    argv = ["train", str(scene), "--max-steps", "3", "--no-eval", "--block-capacity", "64"]
    assert main([*argv, "--out", str(tmp_path / "none")]) == 2
    assert "start with --init-random 100000" in capsys.readouterr().err
    for name, seed in (("one", "1"), ("again", "1"), ("other", "2")):
        assert main([*argv, "--out", str(tmp_path / name), "--init-random", "2000", "--seed", seed]) == 0
    assert "ingesting 2,000 random points" in capsys.readouterr().err
    assert_same(tmp_path / "one" / "store", tmp_path / "again" / "store")
    assert_changed(tmp_path / "one" / "store", tmp_path / "other" / "store")
    assert int(contents(tmp_path / "one" / "store")[1]["count"].sum()) == 2000


def test_the_scenes_points_are_left_out(city, tmp_path):
    config = settings(max_steps=0, init_random=500)
    scene = open_scene(city, config, quiet=True)
    assert scene.points.count == 500
    assert np.abs(scene.points.gather().xyz).max() == pytest.approx(3 * scene.extent, rel=0.01)
    train(city, tmp_path / "o", config)
    assert int(contents(tmp_path / "o" / "store")[1]["count"].sum()) == 500


def test_a_blender_scene_trains(shared, tmp_path):
    scene = shared / "odd" / "nerfstudio_lego_tiny"
    argv = ["train", str(scene), "--out", str(tmp_path / "o"), "--max-steps", "2", "--init-random", "300", "--quiet"]
    assert main(argv) == 0
