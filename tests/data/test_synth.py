"""`tidegs synth`: what it writes is a COLMAP scene that others read, the same bytes every time."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pycolmap
import pytest
from plyfile import PlyData

from tidegs.cli import synth as command
from tidegs.data import synth, synth_city
from tidegs.data.synth import PRESETS, scene_views, write_scene
from tidegs.data.synth_city import generate_city, render_view
from tidegs.data.synth_ply import write_point_shards
from tidegs.errors import ConfigError, SceneError

TINY = replace(PRESETS["tiny"], aerial=4, street=2, points=500)


def _run(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(argv))


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("synth") / "tiny"
    write_scene(out, TINY, progress=False)
    return out


def _files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("suffix", ["bin", "txt"])
def test_colmap_reads_it_back(scene: Path, tmp_path: Path, suffix: str) -> None:
    for name in ("cameras", "images", "points3D"):
        (tmp_path / f"{name}.{suffix}").write_bytes((scene / "sparse/0" / f"{name}.{suffix}").read_bytes())
    model = pycolmap.Reconstruction(tmp_path)
    views = scene_views(generate_city(TINY.seed, TINY.extent), TINY)
    assert len(model.images) == len(views) == 6
    assert len(model.cameras) == 2
    assert len(model.points3D) == 500
    xyz = np.array([p.xyz for p in model.points3D.values()])
    by_name = {i.name: i for i in model.images.values()}
    for view in views:
        image = by_name[view.name]
        cam = xyz @ view.viewmat[:3, :3].T + view.viewmat[:3, 3]
        ahead = np.flatnonzero(cam[:, 2] > 1.0)
        uv = cam[ahead, :2] / cam[ahead, 2:] * [view.K[0, 0], view.K[1, 1]] + view.K[:2, 2]
        theirs = [model.cameras[image.camera_id].img_from_cam(image.cam_from_world() * xyz[i]) for i in ahead]
        np.testing.assert_allclose(theirs, uv, atol=1e-6)


def test_images_are_the_rendered_views(scene: Path) -> None:
    city = generate_city(TINY.seed, TINY.extent)
    for view in scene_views(city, TINY):
        stored = cv2.imread(str(scene / "images" / view.name))[..., ::-1].astype(int)
        truth = render_view(city, view.viewmat, view.K, TINY.width, TINY.height)
        assert np.abs(stored - truth).mean() < 2.5
        assert truth.std() > 20.0


def test_seen_points_are_seen(scene: Path) -> None:
    model = pycolmap.Reconstruction(scene / "sparse/0")
    xyz = np.array([p.xyz for p in model.points3D.values()])
    city = generate_city(TINY.seed, TINY.extent)
    size = (TINY.width, TINY.height)
    seen = sum(city.visible(v.viewmat, v.K, *size, xyz, 0.1).astype(int) for v in scene_views(city, TINY))
    assert (seen >= 2).all()


def test_same_settings_same_bytes_for_any_number_of_threads(
    scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synth_city, "available_cores", lambda: 1)
    write_scene(tmp_path / "again", TINY, progress=False)
    assert _files(tmp_path / "again") == _files(scene)
    assert len(_files(scene)) == 6 + 6


def test_png_is_lossless(tmp_path: Path) -> None:
    s = replace(TINY, aerial=1, street=0, points=0, image_format="png")
    write_scene(tmp_path / "png", s, progress=False)
    city = generate_city(s.seed, s.extent)
    (view,) = scene_views(city, s)
    stored = cv2.imread(str(tmp_path / "png" / "images" / view.name))[..., ::-1]
    np.testing.assert_array_equal(stored, render_view(city, view.viewmat, view.K, s.width, s.height))


def test_origin_moves_everything_alike(scene: Path, tmp_path: Path) -> None:
    origin = (500_000.0, 5_400_000.0, 120.0)
    write_scene(tmp_path / "far", replace(TINY, origin=origin), progress=False)
    here, far = (pycolmap.Reconstruction(p / "sparse/0") for p in (scene, tmp_path / "far"))
    for i in (1, 250, 500):
        np.testing.assert_allclose(far.points3D[i].xyz - here.points3D[i].xyz, origin, atol=1e-8)
    for i in here.images:
        a, b = here.images[i].projection_center(), far.images[i].projection_center()
        np.testing.assert_allclose(b - a, origin, atol=1e-6)


@pytest.mark.parametrize("origin", [(0.0, 0.0, 0.0), (4e6, 5e5, 10.0)])
def test_shards_hold_the_points_in_order(tmp_path: Path, origin: tuple[float, float, float]) -> None:
    s = replace(TINY, points=10_001, origin=origin)
    write_point_shards(tmp_path / "ply", s, 3, progress=False)
    parts = [PlyData.read(str(p))["vertex"].data for p in sorted((tmp_path / "ply").iterdir())]
    assert [len(p) for p in parts] == [3333, 3334, 3334]
    rows = np.concatenate(parts)
    xyz, rgb = next(generate_city(s.seed, s.extent).sample_points(s.points, s.seed, noise=s.point_noise))
    kind = np.float64 if any(origin) else np.float32
    np.testing.assert_array_equal(np.stack([rows[a] for a in "xyz"], 1), (xyz + origin).astype(kind))
    np.testing.assert_array_equal(np.stack([rows[a] for a in ("red", "green", "blue")], 1), rgb)


def test_the_command_writes_a_scene(tmp_path: Path) -> None:
    out = str(tmp_path / "city")
    assert _run(out, "--preset", "tiny", "--aerial", "2", "--street", "1", "--size", "32", "24", "--points", "1e2") == 0
    assert len(list((tmp_path / "city" / "images").iterdir())) == 3
    assert cv2.imread(str(tmp_path / "city" / "images" / "aerial_0000.jpg")).shape == (24, 32, 3)
    assert len(pycolmap.Reconstruction(tmp_path / "city/sparse/0").points3D) == 100


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["--altitude", "10"], "altitude"),
        (["--altitude", "1e5"], "altitude"),
        (["--ply-shards", "2"], "--points-only"),
        (["--points-only", "--points", "3", "--ply-shards", "4"], "--ply-shards"),
        (["--extent", "100", "100", "100"], "--extent"),
        (["--extent", "5"], "extent"),
        (["--aerial", "0", "--street", "0"], "camera"),
        (["--size", "4", "4"], "--size"),
        (["--point-noise", "-1"], "--point-noise"),
        (["--aerial", "1", "--street", "1", "--extent", "4000"], "--points-from all"),
    ],
)
def test_bad_settings_say_what_to_change_and_leave_nothing(tmp_path: Path, argv: list[str], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        _run(str(tmp_path / "out"), "--preset", "tiny", *argv)
    assert not list(tmp_path.iterdir())


def test_does_not_write_over_a_folder(scene: Path) -> None:
    before = _files(scene)
    with pytest.raises(ConfigError, match="not an empty folder"):
        write_scene(scene, TINY, progress=False)
    assert _files(scene) == before


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_half_way_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(synth, "write_model", fail)
    with pytest.raises(SceneError if isinstance(error, OSError) else KeyboardInterrupt):
        write_scene(tmp_path / "out", TINY, progress=False)
    assert not list(tmp_path.iterdir())
