"""Sparse depth on the CUDA device: the CPU device's loss and, through a whole step, its parameters."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cuda.harness import ADAM, both, draw, layout_for, target_of
from tests.device.harness import look, random_scene
from tests.device.test_sparse_depth import places
from tidegs.device.base import RenderSettings, SparseDepth
from tidegs.errors import DeviceError


@pytest.mark.parametrize("parts", [[[0, 1]], [[0], [1]]])
def test_both_devices_step_alike(parts):
    view = look(40, 30)
    exposure = np.eye(3, 4, dtype=np.float32)
    points = SparseDepth(*places(view, 80, 1), 0.3)
    moments, losses, frames = [], [], []
    for held in both(random_scene(100, 4), layout_for()):
        device = held.device
        frame = draw(held, view, RenderSettings(), parts, depth=True)
        losses.append(device.loss(frame, target_of(view), 0.2, 0.5, exposure=exposure, points=points))
        plain = device.loss(frame, target_of(view), 0.2, 0.5).total
        assert losses[-1].total > plain + 1e-3
        device.loss(frame, target_of(view), 0.2, 0.5, points=points)
        device.differentiate(frame)
        for i, part in enumerate(parts):
            device.update(i, held.blocks(chosen=part), ADAM)
        moments.append(held.rows("m_base"))
        frames.append(frame.depth)
    np.testing.assert_allclose(frames[0], frames[1], rtol=1e-3, atol=1e-4)
    assert losses[0].total == pytest.approx(losses[1].total, rel=1e-4)
    np.testing.assert_allclose(losses[0].exposure_grad, losses[1].exposure_grad, rtol=1e-3, atol=1e-7)
    for rows in (slice(0, 3), slice(7, 10), slice(10, 11)):
        assert np.abs(moments[0][rows] - moments[1][rows]).max() < 1e-3 * np.abs(moments[1][rows]).max()


def test_no_points_and_no_depth():
    view = look(40, 30)
    held, _ = both(random_scene(60, 4), layout_for())
    frame = draw(held, view, RenderSettings(), [[0]], depth=True)
    empty = SparseDepth(np.empty((0, 2), np.float32), np.empty(0, np.float32), 1.0)
    with_none = held.device.loss(frame, target_of(view), 0.2, points=empty).total
    assert with_none == held.device.loss(frame, target_of(view), 0.2).total
    bare = draw(held, view, RenderSettings(), [[0]])
    with pytest.raises(DeviceError, match="in a frame without"):
        held.device.loss(bare, target_of(view), 0.2, points=empty)
