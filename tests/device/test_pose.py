"""The gradient of the view matrix: no other bit depends on it, nor it on threads, parts, slots or flags (its value is
compared with autograd's in test_parity)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.device.harness import FIRST, ISAS, LAST, MIDDLE, STEP, Packed, look, pack, random_scene, run
from tidegs.device.base import RenderSettings

SETTINGS = RenderSettings(pose_grad=True, background=(0.1, 0.2, 0.3))
VIEW = look(150, 100, 1)
CUTS = [0, 10, 10, 300, 650, 1001, 1200]


def pose_of(packed: Packed, **kwargs) -> np.ndarray:
    """Of each block, float64 [n, 3, 4]."""
    _, updates = run(packed, VIEW, SETTINGS, **kwargs)
    packed.device.close()
    return np.concatenate([u.pose for u in updates])


@pytest.mark.parametrize("isa", ISAS)
def test_neither_threads_nor_parts_nor_flags_change_it(isa):
    scene = random_scene(1200, 11)
    wanted = pose_of(pack(scene, CUTS, isa), depth=True)
    assert wanted.any(axis=(1, 2)).tolist() == [True, False, True, True, True, True]
    for threads in (1, 4):
        packed = pack(scene, CUTS, isa, shuffle=threads)
        packed.device.set_threads(threads)
        parts = [[0, 1], [2], [], [3, 4, 5]]
        assert (pose_of(packed, depth=True, parts=parts, between=packed.evict_and_reload) == wanted).all()
    packed.device.set_threads(2)
    for flags in (FIRST, MIDDLE, LAST):
        packed = pack(scene, CUTS, isa)
        run(packed, look(150, 100, 2), SETTINGS, flags=FIRST)  # leaves sums of rows that VIEW does not see
        assert (pose_of(packed, depth=True, flags=flags) == wanted).all()


@pytest.mark.parametrize("flags", [FIRST, STEP])
def test_nothing_else_depends_on_it(flags):
    states = []
    for settings in (SETTINGS, replace(SETTINGS, pose_grad=False)):
        packed = pack(random_scene(500, 3))
        frame, (updates,) = run(packed, VIEW, settings, flags=flags)
        assert (updates.pose is not None) == settings.pose_grad
        states.append((frame.image.tobytes(), packed.state(), packed.rows("grads").tobytes()))
    assert states[0] == states[1]


def test_rows_without_a_finite_gradient_add_nothing():
    scene = random_scene(200, 4)
    wanted = pose_of(pack(scene))
    scene.base[0:3, 7:40] = np.float32(3e38)  # far outside, where products overflow
    scene.base[7:10, 41] = np.float32(80)
    found = pose_of(pack(scene))
    assert np.isfinite(found).all()
    assert wanted.any()
    assert (found != wanted).any()
