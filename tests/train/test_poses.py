"""Refined poses: right gradients, the same bits in core and out of core, no block missed; disturbed ones come back."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.training import assert_changed, assert_same, settings, train
from tidegs.cli.main import main
from tidegs.data.load import load_scene
from tidegs.data.scene import Scene
from tidegs.data.synth import _quaternion
from tidegs.device.base import RenderSettings, View
from tidegs.errors import ConfigError, StoreError
from tidegs.residency.visibility import Bounds, needed_blocks, view_planes
from tidegs.store.block_store import BlockStore
from tidegs.train.passes import PassRunner, StepSettings
from tidegs.train.poses import Poses
from tidegs.train.rigid import motion, motion_gradient
from tidegs.train.run import RunRequest, run_training
from tidegs.train.session import view_of
from tidegs.train.state import restore

SMALL = {"data_factor": 4, "order": "shuffle", "pose_opt": True, "pose_opt_lr": 3e-3}
NOTHING_ELSE = {f"{name}_lr": 0 for name in ("means", "scales", "quats", "opacities", "sh0", "shN")}


def poses_of(scene: Path, store: Path) -> Poses:
    """As the snapshot has them."""
    loaded = load_scene(scene, factor=4)
    out = Poses(loaded, [view_of(c) for c in loaded.cameras], settings())
    with BlockStore.open(store, readonly=True) as opened:
        restore(opened, poses=out)
    return out


@given(seed=st.integers(0, 999), size=st.sampled_from([0.0, 1e-5, 1e-2, 1.0, 3.0]))
@hypothesis_settings(max_examples=30, deadline=None)
def test_motion_and_its_gradient_are_those_of_the_matrix_exponential(seed, size):
    rng = np.random.default_rng(seed)
    w, d = size * rng.normal(size=3), size * rng.normal(size=3)
    weights, view = rng.normal(size=(3, 4)), np.vstack([rng.normal(size=(3, 4)), [0, 0, 0, 1]])
    tw, td = (torch.tensor(a, requires_grad=True) for a in (w, d))
    zero = torch.zeros((), dtype=torch.float64)
    cross = torch.stack([zero, -tw[2], tw[1], tw[2], zero, -tw[0], -tw[1], tw[0], zero]).view(3, 3)
    made = torch.cat([torch.matrix_exp(cross), td[:, None]], 1) @ torch.tensor(view)
    np.testing.assert_allclose((motion(w, d) @ view)[:3], made.detach(), atol=1e-12)
    (made * torch.tensor(weights)).sum().backward()
    by_w, by_d = motion_gradient(w, d, weights @ (motion(w, d) @ view).T)
    np.testing.assert_allclose(by_w, tw.grad, atol=1e-9 * (1 + size))
    np.testing.assert_allclose(by_d, td.grad, atol=1e-12)


@pytest.mark.parametrize("changes", [{}, {"max_steps": 12, "batch_size": 3, "exposure": True}])
def test_out_of_core_and_resumed_runs_are_the_run_in_core(city, tmp_path, changes):
    steps = {"max_steps": 20, **SMALL, **changes}
    train(city, tmp_path / "in", settings(device_memory="100%", **steps))
    out = {"device_memory": "15%", "host_memory": "30%", "max_pass_blocks": 25, "save_steps": [7]}
    parted = train(city, tmp_path / "out", settings(**out, **steps))
    assert parted.summary["passes"] > 2 * steps["max_steps"] * steps.get("batch_size", 1)
    assert_same(tmp_path / "in" / "store", tmp_path / "out" / "store")
    texts = [(tmp_path / name / "poses.json").read_text() for name in ("in", "out")]
    assert texts[0] == texts[1]
    train(city, tmp_path / "without", settings(device_memory="100%", **{**steps, "pose_opt": False}))
    assert_changed(tmp_path / "in" / "store", tmp_path / "without" / "store")
    assert not (tmp_path / "without" / "poses.json").exists()


def test_a_resume_goes_on_with_its_poses(city, tmp_path):
    config = {"device_memory": "100%", **SMALL}
    train(city, tmp_path / "whole", settings(max_steps=30, **config))
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    train(city, tmp_path / "whole", settings(max_steps=45, **config), resume=True)
    train(city, tmp_path / "again", settings(max_steps=45, threads=3, **config), resume=True)
    assert_same(tmp_path / "whole" / "store", tmp_path / "again" / "store")
    one, other = (poses_of(city, tmp_path / name / "store") for name in ("whole", "again"))
    assert one.dump() == other.dump()
    moved = [
        camera for camera in range(len(one)) if (one[camera].viewmat != view_of(camera_of(city, camera)).viewmat).any()
    ]
    assert moved == list(load_scene(city).train)  # and no test image's
    with pytest.raises(ConfigError, match="begun with --pose-opt, and without it"):
        train(city, tmp_path / "again", settings(max_steps=50, **{**config, "pose_opt": False}), resume=True)


def camera_of(scene: Path, camera: int):
    return load_scene(scene, factor=4).cameras[camera]


def test_poses_of_another_scene_are_refused(city, tmp_path):
    train(city, tmp_path / "r", settings(max_steps=3, **SMALL))
    loaded = load_scene(city)
    fewer = replace(loaded, cameras=loaded.cameras[:5])
    with (
        BlockStore.open(tmp_path / "r" / "store", readonly=True) as store,
        pytest.raises(StoreError, match="poses are not those of 5 cameras"),
    ):
        restore(store, poses=Poses(fewer, [view_of(c) for c in fewer.cameras], settings()))


def test_each_pass_has_the_blocks_of_the_pose_that_it_renders(city, tmp_path, monkeypatch):
    """Poses that run far: what a step needs follows them, and is not what the scene's cameras need."""
    stores, elsewhere = [], []
    run, opened = PassRunner.run, BlockStore.open

    def checked(self, one, how, *args, **kwargs):
        table = stores[-1].table
        needed, given = (
            needed_blocks(Bounds(table), view_planes(view, how.render))
            for view in (self._view(one.camera), scene_views[one.camera])
        )
        assert one.phase == "whole"
        assert one.ids.tolist() == needed.tolist()
        elsewhere.append(needed.tolist() != given.tolist())
        return run(self, one, how, *args, **kwargs)

    def remembered(*args, **kwargs):
        stores.append(opened(*args, **kwargs))
        return stores[-1]

    scene_views = [view_of(c) for c in load_scene(city, factor=4).cameras]
    monkeypatch.setattr(PassRunner, "run", checked)
    monkeypatch.setattr(BlockStore, "open", remembered)
    train(city, tmp_path / "r", settings(max_steps=60, device_memory="100%", **{**SMALL, "pose_opt_lr": 0.1}))
    assert len(elsewhere) == 60
    assert sum(elsewhere) > 20


def test_gradients_are_summed_in_the_order_of_blocks():
    """A camera of three parts, the last of which comes first; another order would lose the 1."""
    device, poses = MagicMock(), MagicMock()
    device.update.side_effect = [SimpleNamespace(pose=np.full((1, 3, 4), x)) for x in (1.0, -1e30, 1e30)]
    target = np.zeros((2, 2, 3), np.uint8)
    view = View(np.eye(4, dtype=np.float32), np.eye(3, dtype=np.float32), 2, 2)
    runner = PassRunner(device, lambda _: view, lambda _: (target, None), poses=poses)
    phases = ["forward", "forward", "whole", "backward", "backward"]
    for i, (phase, part) in enumerate(zip(phases, (0, 1, 2, 1, 0), strict=True)):
        ends = {"first_of_camera": i == 0, "last_of_camera": i == 4, "last_of_step": i == 4}
        one = SimpleNamespace(phase=phase, part=part, camera=7, blocks=None, **ends)
        assert not poses.step_done.called
        runner.run(one, StepSettings(RenderSettings(), None, 0.2, 1, 3))
    camera, grad = poses.collect.call_args.args
    assert camera == 7
    assert (grad == 1).all()
    poses.step_done.assert_called_once_with(3)


def test_a_gradient_that_overflowed_moves_nothing(city):
    scene = load_scene(city, factor=4)
    views = [view_of(c) for c in scene.cameras]
    poses = Poses(scene, views, settings(pose_opt=True))
    before = poses.dump()
    for bad in (np.nan, 1e300):
        poses.collect(3, np.full((3, 4), bad))
        poses.step_done(0)
    assert poses.dump() == before
    assert poses[3] is views[3]
    poses.collect(3, np.ones((3, 4)))
    poses.step_done(0)
    assert poses[3] is not views[3]
    assert poses[4] is views[4]


@pytest.fixture(scope="module")
def close_city(tmp_path_factory) -> Path:
    """24 overlapping aerial views of 96x64, 6,000 points."""
    out = tmp_path_factory.mktemp("scenes") / "close"
    sizes = ["--aerial", "24", "--street", "0", "--size", "96", "64", "--points", "6000", "--points-from", "all"]
    assert main(["synth", str(out), "--preset", "tiny", "--extent", "100", *sizes]) == 0
    return out


def disturb(root: Path, out: Path, turn: float, move: float) -> None:
    """A copy of a scene whose training images have poses a little off: radians and units of the scene, one sigma."""
    shutil.copytree(root, out)
    for file in (out / "sparse" / "0").glob("*.bin"):
        file.unlink()
    rng, scene = np.random.default_rng(1), load_scene(root)
    poses = {scene.cameras[i].name: scene.cameras[i].viewmat[:3, :3] for i in scene.train}
    text = out / "sparse" / "0" / "images.txt"
    lines = text.read_text().splitlines()
    for i, words in enumerate(line.split() for line in lines):
        if words and words[-1] in poses:
            m = motion(rng.normal(0, turn, 3), rng.normal(0, move, 3))
            q = _quaternion(m[:3, :3] @ poses[words[-1]])
            t = m[:3, :3] @ np.array(words[5:8], float) + m[:3, 3]
            lines[i] = " ".join([words[0], *(repr(float(x)) for x in (*q, *t)), *words[8:]])
    text.write_text("\n".join(lines) + "\n")


def pixels_off(truth: Scene, poses: dict[str, np.ndarray]) -> float:
    """How far the scene's points are from where the true poses see them; the mean over the images of `poses`."""
    points, off = truth.transform.to_world(truth.points.gather().xyz), []
    for camera in (c for c in truth.cameras if c.name in poses):
        places = []
        for pose in (world_pose(truth, camera.viewmat), poses[camera.name]):
            at = (points - pose[:3, 3]) @ pose[:3, :3]
            places.append(at[:, :2] / at[:, 2:] * np.diag(camera.K)[:2] + camera.K[:2, 2])
        inside = ((places[0] > 0) & (places[0] < [camera.width, camera.height])).all(1)
        off.append(np.linalg.norm(places[0] - places[1], axis=1)[inside].mean())
    return float(np.mean(off))


def world_pose(scene: Scene, viewmat: np.ndarray) -> np.ndarray:
    out = np.linalg.inv(viewmat)
    out[:3, 3] = scene.transform.to_world(out[None, :3, 3])[0]
    return out


def test_disturbed_poses_come_back(close_city, tmp_path):
    """Before Gaussians that were trained with the true poses, whose own rates are zero here."""
    train(close_city, tmp_path / "good", settings(max_steps=300, order="shuffle"))
    assert main(["export", str(tmp_path / "good"), "--out", str(tmp_path / "good.ply"), "--quiet"]) == 0
    disturb(close_city, tmp_path / "scene", 0.01, 0.3)
    config = settings(max_steps=400, order="shuffle", pose_opt=True, pose_opt_lr=4e-3, **NOTHING_ELSE)
    out = tmp_path / "out"
    request = RunRequest(tmp_path / "scene", out, None, config, False, False, True, init=tmp_path / "good.ply")
    run_training(request)
    truth, begun = load_scene(close_city), load_scene(tmp_path / "scene")
    before = {begun.cameras[i].name: world_pose(begun, begun.cameras[i].viewmat) for i in begun.train}
    found = json.loads((out / "poses.json").read_text())["poses"]
    after = {p["name"]: np.array(p["camera_to_world"]) for p in found}
    assert after.keys() == before.keys()
    assert pixels_off(truth, before) > 0.8
    assert pixels_off(truth, after) < 0.5 * pixels_off(truth, before)
    for p in found:
        moved = np.linalg.norm(after[p["name"]][:3, 3] - before[p["name"]][:3, 3])
        assert p["moved"] == pytest.approx(moved, rel=1e-9)
        turned = before[p["name"]][:3, :3].T @ after[p["name"]][:3, :3]
        assert np.cos(np.radians(p["turned_degrees"])) == pytest.approx((np.trace(turned) - 1) / 2, abs=1e-9)
    psnr = [line["psnr"] for line in map(json.loads, (out / "stats" / "train.jsonl").open()) if "psnr" in line]
    assert np.mean(psnr[-10:]) > np.mean(psnr[:5]) + 0.3
