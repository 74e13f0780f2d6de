"""`tidegs store make`: points or Gaussians of a file become a store, in which a run of the scene begins."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from plyfile import PlyData, PlyElement

from tests.training import assert_same, contents
from tidegs.cli.main import main
from tidegs.config import load_config
from tidegs.data.load import load_scene
from tidegs.gaussians.ply import write_ply
from tidegs.store import unfinished

SIZE = ["--block-capacity", "64", "--sh-degree", "1"]


def make(scene: Path, store: Path, *options: str) -> int:
    return main(["store", "make", str(scene), "--store", str(store), "--quiet", *SIZE, *options])


def train(scene: Path, out: Path, *options: str) -> int:
    quick = ["--max-steps", "2", "--no-eval", "--quiet", *SIZE]
    return main(["train", str(scene), "--out", str(out), *quick, *options])


def points_ply(scene: Path, path: Path, byte_order: str = "<", text: bool = False) -> None:
    """The points of a scene, in its frame, as a PLY."""
    opened = load_scene(scene)
    points = opened.points.gather()
    rows = np.zeros(points.count, [(k, "f8") for k in "xyz"] + [(k, "u1") for k in ("red", "green", "blue")])
    rows["x"], rows["y"], rows["z"] = opened.transform.to_world(points.xyz).T
    rows["red"], rows["green"], rows["blue"] = points.rgb.T
    PlyData([PlyElement.describe(rows, "vertex")], text=text, byte_order=byte_order).write(path)


def gaussians_ply(scene: Path, path: Path, n: int = 500) -> None:
    rng, opened = np.random.default_rng(0), load_scene(scene)
    rows = rng.normal(size=(n, 23)).astype(np.float32)
    rows[:, :3] = opened.transform.to_world(opened.points.gather().xyz[:n])
    write_ply(path, [rows], 1)


def test_a_run_of_a_made_store_is_the_run_of_the_scene(city: Path, tmp_path: Path) -> None:
    assert make(city, tmp_path / "s", "--host-memory", "2MiB") == 0
    assert train(city, tmp_path / "a", "--store", str(tmp_path / "s")) == 0
    assert train(city, tmp_path / "b") == 0
    assert_same(tmp_path / "s", tmp_path / "b" / "store")
    strategies = [load_config(tmp_path / out / "cfg.yml").strategy for out in ("a", "b")]
    assert strategies == ["default", "default"]


@pytest.mark.parametrize(("byte_order", "text"), [("<", False), (">", False), ("=", True)])
def test_points_of_a_ply_are_those_of_the_scene(city: Path, tmp_path: Path, byte_order: str, text: bool) -> None:
    points_ply(city, tmp_path / "a.ply", byte_order, text)
    assert make(city, tmp_path / "s") == 0
    assert make(city, tmp_path / "p", "--init", str(tmp_path / "a.ply"), "--host-memory", "2MiB") == 0
    for records, table in (contents(tmp_path / "s"), contents(tmp_path / "p")):
        assert records.any()
        assert table["count"].sum() == 12_000
    (ours, _), (theirs, _) = contents(tmp_path / "p"), contents(tmp_path / "s")
    np.testing.assert_allclose(
        np.sort(ours[:, :3].view(np.float32), axis=None), np.sort(theirs[:, :3].view(np.float32), axis=None), atol=1e-4
    )


def test_gaussians_begin_with_all_their_harmonics(city: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    gaussians_ply(city, tmp_path / "a.ply")
    assert make(city, tmp_path / "s", "--init", str(tmp_path / "a.ply")) == 0
    assert "500 Gaussians" in capsys.readouterr().out
    assert train(city, tmp_path / "a", "--store", str(tmp_path / "s"), "--init", str(tmp_path / "a.ply")) == 2
    assert "leave out --init" in capsys.readouterr().err
    assert train(city, tmp_path / "a", "--store", str(tmp_path / "s")) == 0
    assert train(city, tmp_path / "b", "--init", str(tmp_path / "a.ply")) == 0
    assert_same(tmp_path / "s", tmp_path / "b" / "store")
    config = load_config(tmp_path / "a" / "cfg.yml")
    assert (config.sh_degree_interval, config.strategy) == (1, "none")


def test_points_without_a_place_are_left_out_and_counted(
    city: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    points_ply(city, tmp_path / "a.ply")
    ply = PlyData.read(tmp_path / "a.ply", mmap=False)
    ply["vertex"].data["x"][[3, 8]] = np.nan, np.inf
    ply.write(tmp_path / "b.ply")
    argv = ["store", "make", str(city), "--store", str(tmp_path / "s"), "--init", str(tmp_path / "b.ply"), *SIZE]
    assert main(argv) == 0
    said = capsys.readouterr()
    assert "2 of 12,000 points were left out" in said.err
    assert "11,998 Gaussians" in said.out


def test_a_store_without_statistics_cannot_grow(city: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert make(city, tmp_path / "s", "--strategy", "none") == 0
    assert train(city, tmp_path / "a", "--store", str(tmp_path / "s"), "--strategy", "default") == 2
    assert "make it with --strategy default" in capsys.readouterr().err
    assert train(city, tmp_path / "a", "--store", str(tmp_path / "s")) == 0
    assert load_config(tmp_path / "a" / "cfg.yml").strategy == "none"


def test_bad_files_are_one_sentence_and_leave_nothing(
    city: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "a.ply").write_bytes(b"ply\nformat ascii 1.0\nelement vertex 0\nproperty float x\nend_header\n")
    for name, message in (("a.ply", "no x, y and z"), ("none.ply", "cannot be read: No such file")):
        assert make(city, tmp_path / "s", "--init", str(tmp_path / name)) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("changed", [False, True])
def test_an_interrupted_one_goes_on_unless_its_file_has_changed(
    city: Path, tmp_path: Path, monkeypatch, changed
) -> None:
    monkeypatch.setattr(unfinished, "KEEP_NBYTES", 1 << 15)
    ply, save, calls, told = tmp_path / "a.ply", unfinished.Unfinished.save, iter(range(99)), []
    points_ply(city, ply)
    asked = [city, tmp_path / "s", "--init", str(ply), "--host-memory", "1MiB"]

    def interrupted(self: unfinished.Unfinished, state: dict[str, np.ndarray]) -> None:
        save(self, state)
        if next(calls) == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(unfinished.Unfinished, "save", interrupted)
        assert make(*asked) == 130
    if changed:
        os.utime(ply, (0, 0))
    load = unfinished.Unfinished.load
    monkeypatch.setattr(unfinished.Unfinished, "load", lambda self: told.append(load(self)) or told[-1])
    assert make(*asked) == 0
    assert (told[0] is None) == changed
    assert make(city, tmp_path / "whole", *asked[2:]) == 0
    assert_same(tmp_path / "s", tmp_path / "whole")
