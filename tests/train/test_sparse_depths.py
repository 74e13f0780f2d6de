"""Sparse depth in training: the same bits in core and out of core, nearer depths, and plain words where it cannot."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.data.test_observed import write_observations
from tests.training import assert_changed, assert_same, settings, train
from tidegs.cli.main import main
from tidegs.data.colmap import read_colmap
from tidegs.data.inputs import colmap_input
from tidegs.data.synth import SynthSettings
from tidegs.data.synth_city import generate_city
from tidegs.device.sparse_depth import disparity_l1
from tidegs.train.result import ResultFolder
from tidegs.train.session import Session, open_scene
from tidegs.train.sparse_depths import SparseDepths

SMALL = {"order": "shuffle", "depth_loss": True}


@pytest.fixture(scope="module")
def seen_city(city, tmp_path_factory) -> Path:
    """The generated city, with the points that each image shows."""
    root = tmp_path_factory.mktemp("scenes") / "seen"
    shutil.copytree(city, root)
    model = read_colmap(root)
    solid = generate_city(SynthSettings().seed, (300.0, 300.0))
    xyz = np.concatenate([chunk for chunk, _ in model.points()])
    seen = {}
    for view in colmap_input(root, model).views:
        fx, fy, cx, cy = view.camera.params
        K = np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]])
        shown = solid.visible(view.viewmat, K, view.camera.width, view.camera.height, xyz, 0.3)
        seen[view.name] = (np.flatnonzero(shown) + 1).tolist()
    assert min(map(len, seen.values())) > 100
    write_observations(root / "sparse" / "0", seen)
    return root


def error_of(scene_path: Path, out: Path) -> float:
    """The mean absolute error of disparities at the points of the test images, which were never trained on."""
    result = ResultFolder(out)
    config = result.config()
    scene = open_scene(scene_path, config, quiet=True)
    depths, errors = SparseDepths(scene, 1.0), []
    with Session(scene, result.store_path(), config, result, readonly=True) as session:
        for index, one in zip(scene.test, session.render(scene.test, config.max_steps, depth=True), strict=True):
            points = depths.target(index, None)
            alpha, depth = one.frame.alpha, one.frame.depth
            grads = np.empty_like(alpha), np.empty_like(alpha)
            errors.append(disparity_l1(depth, alpha, points.xy, points.disparity, 0.0, *grads))
    return float(np.mean(errors))


def test_out_of_core_and_resumed_runs_are_the_run_in_core(seen_city, tmp_path):
    for name, sizes in (("in", {"device_memory": "100%"}), ("out", {"device_memory": "15%", "host_memory": "30%"})):
        train(seen_city, tmp_path / name, settings(max_steps=15, **sizes, **SMALL))
        train(seen_city, tmp_path / name, settings(max_steps=25, **sizes, **SMALL), resume=True)
    assert_same(tmp_path / "in" / "store", tmp_path / "out" / "store")
    for steps in (15, 25):
        config = settings(max_steps=steps, device_memory="100%", order="shuffle")
        train(seen_city, tmp_path / "without", config, resume=steps == 25)
    assert_changed(tmp_path / "in" / "store", tmp_path / "without" / "store")


def test_depths_of_images_that_were_not_trained_on_are_nearer(seen_city, tmp_path):
    errors = []
    for depth_loss in (False, True):
        config = settings(max_steps=150, init_random=3000, init_scale=0.5, depth_loss=depth_loss, depth_lambda=0.1)
        train(seen_city, tmp_path / str(depth_loss), config)
        errors.append(error_of(seen_city, tmp_path / str(depth_loss)))
    assert errors[1] < 0.8 * errors[0]


def test_points_under_masks_do_not_count(seen_city):
    scene = open_scene(seen_city, settings(), quiet=True)
    depths = SparseDepths(scene, 2.0)
    mask = np.zeros((64, 96), np.uint8)
    mask[10:30, 20:50] = 255
    whole, part = depths.target(1, None), depths.target(1, mask)
    inside = ((whole.xy >= [20.5, 10.5]) & (whole.xy < [49.5, 29.5])).all(1)
    assert np.array_equal(part.xy, whole.xy[inside])
    assert np.array_equal(part.disparity, whole.disparity[inside])
    assert 0 < len(part.xy) < len(whole.xy)
    assert whole.weight == 2.0 * scene.extent
    assert depths.target(1, np.zeros_like(mask)) is None


def test_scenes_that_do_not_state_it_are_refused_and_leave_nothing(city, shared, tmp_path, capsys):
    for scene, sentence in (
        (city, "no image has 2D points"),
        (shared / "odd" / "nerfstudio_transforms", "needs a COLMAP model"),
    ):
        assert main(["train", str(scene), "--out", str(tmp_path / "o"), "--depth-loss", "--quiet"]) == 2
        assert sentence in capsys.readouterr().err
        assert not (tmp_path / "o").exists()
