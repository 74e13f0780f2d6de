"""The gradient of the view matrix on the CUDA device: the CPU device's, in one part and in several."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from tests.cuda.harness import both, layout_for, step
from tests.cuda.test_training import train_on_cuda
from tests.device.harness import look, random_scene
from tests.training import settings, train
from tidegs.device.base import BlockFlags, RenderSettings

CUTS = [0, 50, 51, 115, 179, 200]


@pytest.mark.parametrize(
    ("mode", "sh_degree", "parts"),
    [
        ("classic", 3, [[0, 1, 2, 3, 4]]),
        ("antialiased", 3, [[0], [], [1, 2], [3, 4]]),
        ("classic", 0, [[0, 1, 2, 3, 4]]),
    ],
)
def test_both_devices_have_the_same(mode, sh_degree, parts):
    view = look(60, 44, seed=2)
    how = RenderSettings(sh_degree=sh_degree, rasterize_mode=mode, pose_grad=True)
    sums = []
    for held in both(random_scene(200, 4), layout_for(), cuts=CUTS):
        _, updates = step(held, view, how, parts=parts)
        sums.append(np.concatenate([u.pose for u in updates]).sum(0))
        assert held.rows("m_base").any()
    np.testing.assert_allclose(sums[0], sums[1], rtol=1e-4, atol=1e-5 * np.abs(sums[1]).max())
    assert (np.abs(sums[1]) > 1e-3 * np.abs(sums[1]).max()).all()


def test_nothing_else_depends_on_it():
    view, states = look(60, 44, seed=2), []
    for pose_grad in (True, False):
        held, _ = both(random_scene(150, 4), layout_for(), cuts=[0, 64, 128, 150])
        _, (updates,) = step(held, view, RenderSettings(pose_grad=pose_grad), BlockFlags.FIRST_OF_STEP)
        assert (updates.pose is not None) == pose_grad
        states.append(held.rows("grads")[:-1])
    np.testing.assert_array_equal(*states)


def test_a_camera_that_sees_no_block():
    held, _ = both(random_scene(50, 4), layout_for())
    _, (updates,) = step(held, look(20, 20), RenderSettings(pose_grad=True), parts=[[]])
    assert updates.pose.shape == (0, 3, 4)


def test_a_run_refines_the_poses_of_the_cpu_devices(monkeypatch, village, tmp_path):
    sizes = {"device_memory": "70%", "host_memory": "30%", "order": "shuffle"}
    start, cpu, cuda = (tmp_path / name for name in ("start", "cpu", "cuda"))
    train(village, start, settings(max_steps=10, **sizes))
    for result in (cpu, cuda):
        shutil.copytree(start, result)
    config = settings(max_steps=17, pose_opt=True, pose_opt_lr=1e-3, **sizes)
    train(village, cpu, config, resume=True)
    train_on_cuda(monkeypatch, village, cuda, config)
    one, other = (json.loads((result / "poses.json").read_text())["poses"] for result in (cpu, cuda))
    assert [p["name"] for p in one] == [p["name"] for p in other]
    assert sum(p["moved"] > 0 for p in one) >= 4  # as many images are shown
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a["camera_to_world"], b["camera_to_world"], rtol=1e-5, atol=1e-5)
