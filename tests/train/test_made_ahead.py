"""Stores made ahead of a run: a generated city streams into one, and a run of its scene begins there."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.training import settings
from tidegs.data.load import load_scene
from tidegs.data.synth import PRESETS, SynthSettings
from tidegs.data.synth_city import generate_city
from tidegs.errors import ConfigError
from tidegs.store.block_store import BlockStore
from tidegs.store.spatial import Neighbours
from tidegs.train import run as run_module
from tidegs.train.made_ahead import write_city
from tidegs.train.run import RunRequest, run_training
from tidegs.train.state import made_ahead

CITY: SynthSettings = replace(PRESETS["tiny"], points=9000, aerial=6, street=0, oblique=0.0, district=60.0, width=48)


@pytest.fixture(scope="module")
def city(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("city")
    write_city(folder / "scene", folder / "store", CITY, settings(), memory=1 << 20)
    return folder / "scene", folder / "store"


def request(scene: Path, store: Path, out: Path, evaluate: bool = False, **changes) -> RunRequest:
    return RunRequest(scene, out, store, settings(**changes), resume=False, evaluate=evaluate, quiet=True)


def test_the_store_holds_all_points_in_the_frame_of_the_scene(city: tuple[Path, Path]) -> None:
    scene = load_scene(city[0])
    with BlockStore.open(city[1], readonly=True) as store:
        ahead = made_ahead(store)
        assert ahead is not None
        assert ahead.frame.scale == scene.transform.scale
        assert int(store.table["count"].sum()) == CITY.points
        low, high = store.table["lo"].min(axis=0), store.table["hi"].max(axis=0)
    shown = scene.points.gather().xyz
    assert (low <= shown.min(axis=0) + 1e-6).all()
    assert (high >= shown.max(axis=0) - 1e-6).all()


def test_a_run_begins_there_and_only_once(city: tuple[Path, Path], tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(city[1], store)
    outcome = run_training(request(city[0], store, tmp_path / "a", max_steps=3))
    assert outcome.finished
    assert outcome.summary["num_gaussians"] == CITY.points
    with pytest.raises(ConfigError, match="already holds a block store"):
        run_training(request(city[0], store, tmp_path / "b", max_steps=3))
    assert not (tmp_path / "b").exists()


def test_another_scene_or_layout_is_refused(city: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="blocks of 64 and SH degree 3"):
        run_training(request(city[0], city[1], tmp_path / "a", block_capacity=128))
    write_city(tmp_path / "other", tmp_path / "s", replace(CITY, district=90.0), settings())
    with pytest.raises(ConfigError, match="made for another scene"):
        run_training(request(tmp_path / "other", city[1], tmp_path / "a"))


def test_a_ply_that_the_disk_cannot_hold_is_left_out(
    city: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(city[1], tmp_path / "store")
    monkeypatch.setattr(run_module, "short_of_space", lambda folder, nbytes: f"it needs {nbytes}")
    made = request(city[0], tmp_path / "store", tmp_path / "out", evaluate=True, max_steps=2)
    run_training(replace(made, quiet=False))
    assert f"it needs {9000 * 62 * 4}" in capsys.readouterr().err
    assert not list((tmp_path / "out" / "ply").iterdir())


def test_the_points_lie_as_far_apart_as_it_says() -> None:
    city = generate_city(0, 100.0)
    xyz = np.concatenate([x for x, _ in city.sample_points(200_000)]).astype(np.float32)
    with Neighbours(xyz) as near:
        found = np.sqrt(near.of_themselves().mean(axis=1))
    assert abs(np.log(np.median(found) / city.spacing(200_000))) < 0.3
