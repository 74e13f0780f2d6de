"""Masked losses: both devices give the same gradient, and none under the mask."""

from __future__ import annotations

import numpy as np

from tests.cuda.harness import both, draw, layout_for, target_of
from tests.device.harness import look, random_scene
from tidegs.device.base import RenderSettings


def test_both_devices_give_the_same_gradient_and_none_under_the_mask():
    view = look(40, 30)
    mask = np.zeros((30, 40), np.uint8)
    mask[5:25, 10:32] = 1
    grads = []
    for held in both(random_scene(60, 4), layout_for()):
        frame = draw(held, view, RenderSettings(), [[0]])
        held.device.loss(frame, target_of(view), 0.2, 0.5, mask)
        grads.append(np.array(frame.grad))
        poisoned = np.where(mask[..., None] == 0, 255 - target_of(view), target_of(view))
        held.device.loss(frame, poisoned, 0.2, 0.5, mask)
        assert np.array_equal(grads[-1], np.asarray(frame.grad))
        held.device.loss(frame, target_of(view), 0.2, 0.5, np.ones_like(mask))
        full = np.array(frame.grad)
        held.device.loss(frame, target_of(view), 0.2, 0.5)
        assert np.array_equal(full, np.asarray(frame.grad))
    cuda, cpu = grads[0].transpose(2, 0, 1), grads[1]
    np.testing.assert_allclose(cuda, cpu, atol=1e-4 * np.abs(cpu).max())
    assert not cpu[:, mask == 0].any()
    assert cpu[:, mask != 0].all()


def test_both_devices_expose_alike():
    view = look(40, 30)
    exposure = np.array([[0.8, 0.1, 0, 0.02], [0, 1.2, -0.1, 0], [0.05, 0, 0.7, -0.03]], np.float32)
    mask = np.zeros((30, 40), np.uint8)
    mask[5:25, 10:32] = 1
    for masked in (None, mask):
        grads, losses = [], []
        for held in both(random_scene(60, 4), layout_for()):
            frame = draw(held, view, RenderSettings(), [[0]])
            losses.append(held.device.loss(frame, target_of(view), 0.2, 0.5, masked, exposure))
            grads.append(np.array(frame.grad))
        cuda, cpu = grads[0].transpose(2, 0, 1), grads[1]
        np.testing.assert_allclose(cuda, cpu, atol=1e-4 * np.abs(cpu).max())
        np.testing.assert_allclose(losses[0].exposure_grad, losses[1].exposure_grad, rtol=1e-3, atol=1e-7)
        assert np.abs(losses[1].exposure_grad).min() > 0
