"""The CUDA device against the CPU device: images, which rows are visible, gradients, updates, bounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.cuda.harness import ADAM, BOTH, Held, both, cuda_on_cpu, draw, hold, layout_for, step, target_of
from tests.device.harness import look, random_scene
from tests.reference.rasterize import render, visible_radii
from tidegs.device.base import BlockFlags, BlockUpdates, RenderSettings
from tidegs.gaussians.layout import RecordLayout

FIRST, MIDDLE, LAST = BlockFlags.FIRST_OF_STEP, BlockFlags(0), BlockFlags.LAST_OF_STEP


def assert_images_agree(one, other) -> None:
    assert one.image.shape == other.image.shape
    np.testing.assert_allclose(one.image, other.image, atol=2e-5)
    np.testing.assert_allclose(one.alpha, other.alpha, atol=2e-5)


def assert_slots_agree(one: Held, other: Held, tolerance: float = 1e-4) -> None:
    """Moments are the gradients (they were zero), which agree to `tolerance`; parameters follow where a gradient
    is more than rounding: Adam makes a full step of any."""
    for kind in ("base", "rest"):
        m, m_other = one.rows("m_" + kind), other.rows("m_" + kind)
        scale = np.abs(m_other).max(1, keepdims=True)
        np.testing.assert_allclose(m / (scale + 1e-30), m_other / (scale + 1e-30), atol=tolerance)
        v, v_other = one.rows("v_" + kind), other.rows("v_" + kind)
        np.testing.assert_allclose(v, v_other, rtol=10 * tolerance, atol=tolerance * v_other.max())
        telling = np.abs(m_other) > 10 * tolerance * scale
        p, p_other = one.rows(kind), other.rows(kind)
        still = (m == 0) & (m_other == 0)
        np.testing.assert_array_equal(p[still], p_other[still])
        np.testing.assert_allclose(p[telling], p_other[telling], rtol=1e-6, atol=tolerance)


def assert_updates_agree(one: BlockUpdates, other: BlockUpdates, last: bool = True) -> None:
    np.testing.assert_array_equal(one.visible, other.visible)
    assert not (other.touched & ~one.touched).any()  # a block may be written back once too often, never too seldom
    if last:
        np.testing.assert_array_equal(one.touched, other.touched)
        np.testing.assert_allclose(one.lo, other.lo, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(one.hi, other.hi, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(one.extent, other.extent, rtol=1e-4)


@pytest.mark.parametrize("mode", ["classic", "antialiased"])
@pytest.mark.parametrize("sh_degree", [0, 3])
def test_a_step(mode, sh_degree):
    cuda, cpu = both(random_scene(200, 4), layout_for(grads=False), cuts=[0, 50, 51, 115, 179, 200])
    view = look(60, 44, seed=2)
    how = RenderSettings(sh_degree=sh_degree, rasterize_mode=mode, background=(0.2, 0.5, 0.1))
    (one, (made,)), (other, (wanted,)) = step(cuda, view, how), step(cpu, view, how)
    assert_images_agree(one, other)
    assert_updates_agree(made, wanted)
    assert_slots_agree(cuda, cpu)
    assert made.visible.sum() > 100


def test_the_loss():
    cuda, cpu = both(random_scene(60, 4), layout_for())
    view = look(40, 30)
    values = [h.device.loss(draw(h, view, RenderSettings(), [[0]]), target_of(view), 0.2) for h in (cuda, cpu)]
    for name in ("total", "l1", "ssim"):
        assert getattr(values[0], name) == pytest.approx(getattr(values[1], name), rel=1e-5)


def test_a_masked_loss():
    """Pixels that do not count pull at nothing, on both devices alike."""
    cuda, cpu = both(random_scene(150, 4), layout_for(grads=False))
    view, mask = look(40, 30), np.full((30, 40), 255, np.uint8)
    mask[5:20, 10:30] = 0
    values = []
    for held in (cuda, cpu):
        frame = draw(held, view, RenderSettings(), [[0, 1, 2]])
        values.append(held.device.loss(frame, target_of(view), 0.2, mask=mask))
        held.device.differentiate(frame)
        held.device.update(0, held.blocks(), ADAM)
    assert values[0].total == pytest.approx(values[1].total, rel=1e-4)
    assert_slots_agree(cuda, cpu, 1e-2)  # a pixel may be rounded to another byte


@pytest.mark.parametrize("parts", [[[0, 1], [2], [3, 4]], [[0], [1], [2], [3], [4]], [[], [0, 1, 2, 3, 4]]])
def test_a_camera_in_parts(parts):
    """It leaves what a camera in one part leaves, also to the last bit: rows are the same in the same order."""
    scene, view, how = random_scene(290, 5), look(70, 50, seed=5), RenderSettings(background=(0.1, 0.2, 0.3))
    cuda, cpu = both(scene, layout_for(grads=False))
    at_once = hold(cuda_on_cpu(), scene, layout_for(grads=False))
    one, made = step(cuda, view, how, parts=parts)
    other, wanted = step(cpu, view, how, parts=parts)
    whole, _ = step(at_once, view, how)
    assert_images_agree(one, other)
    np.testing.assert_array_equal(one.image, whole.image)
    for a, b in zip(made, wanted, strict=True):
        assert_updates_agree(a, b)
    assert_slots_agree(cuda, cpu)
    for plane in ("base", "rest", "m_base", "v_rest"):
        np.testing.assert_array_equal(cuda.rows(plane), at_once.rows(plane))


def test_parts_may_return_to_other_slots():
    """Between `add` and `update` a part's slots hold other blocks, and it comes back elsewhere."""
    scene, view = random_scene(128, 6), look(50, 40)
    moved, still = (hold(cuda_on_cpu(), scene, layout_for(grads=False)) for _ in range(2))
    step(still, view, parts=[[0], [1]])
    device, slots = moved.device, moved.slots
    host = [np.empty(moved.layout.slot_nbytes, np.uint8) for _ in range(2)]
    device.download(slots, host)
    frame = device.new_frame(view)
    device.begin(view, RenderSettings(), frame)
    device.add(moved.blocks(0, [0]))
    device.upload([host[1]], [slots[0]])
    device.upload([host[0]], [slots[1]])
    moved.slots.reverse()
    device.add(moved.blocks(0, [1]))
    device.finish(frame)
    device.loss(frame, target_of(view), 0.2)
    device.differentiate(frame)
    for part in (1, 0):
        device.update(part, moved.blocks(BOTH, [part]), ADAM)
    for plane in ("base", "rest", "m_base", "v_rest"):
        np.testing.assert_array_equal(moved.rows(plane), still.rows(plane))


@pytest.mark.parametrize("parts", [None, [[0], [1, 2]]])
def test_a_step_of_three_cameras(parts):
    """Gradients of rows that one, several and no cameras see; the update is the CPU device's."""
    cuda, cpu = both(random_scene(150, 7, spread=4.0), layout_for())
    for i, flags in enumerate((FIRST, MIDDLE, LAST)):
        view = look(64, 48, seed=10 + i)
        (_, made), (_, wanted) = (step(h, view, flags=flags, parts=parts) for h in (cuda, cpu))
        for a, b in zip(made, wanted, strict=True):
            assert_updates_agree(a, b, last=flags == LAST)
    assert_slots_agree(cuda, cpu)
    assert 0 < made[-1].visible.sum() < 150


def test_blocks_that_only_some_cameras_of_a_step_need():
    """Each block has its own first and last camera."""
    cuda, cpu = both(random_scene(192, 8), layout_for())
    flags = {0: [(0, FIRST), (1, BOTH)], 1: [(0, LAST), (2, FIRST)], 2: [(2, LAST)]}
    for held in (cuda, cpu):
        for camera, blocks in flags.items():
            view = look(48, 32, seed=camera)
            chosen = held.blocks(0, [b for b, _ in blocks])
            chosen.flags[:] = [int(f) for _, f in blocks]
            frame = held.device.new_frame(view)
            held.device.begin(view, RenderSettings(), frame)
            held.device.add(chosen)
            held.device.finish(frame)
            held.device.loss(frame, target_of(view), 0.2)
            held.device.differentiate(frame)
            held.device.update(0, chosen, ADAM)
    assert_slots_agree(cuda, cpu)


def test_depth():
    cuda, cpu = both(random_scene(80, 9), layout_for())
    frames = [
        draw(h, look(50, 40), RenderSettings(background=(1, 0.5, 0)), [[0], [1]], depth=True) for h in (cuda, cpu)
    ]
    assert_images_agree(*frames)
    np.testing.assert_allclose(frames[0].depth, frames[1].depth, rtol=1e-4, atol=1e-4)
    assert frames[0].depth.max() > 1
    assert draw(cuda, look(50, 40), RenderSettings(), [[0]]).depth is None


@pytest.mark.parametrize("parts", [[[]], [[0, 1]], [[0], [1]]])
def test_a_camera_that_sees_nothing(parts):
    """No blocks, or blocks behind the camera: the background, a loss, and updates of nothing."""
    scene = random_scene(100, 10)
    scene.base[2] -= 100
    view, how = look(40, 20), RenderSettings(background=(0.1, 0.2, 0.3))
    view.viewmat[:3, :3] = np.eye(3)
    (one, made), (other, wanted) = (step(h, view, how, parts=parts) for h in both(scene, layout_for()))
    assert_images_agree(one, other)
    assert one.image[1].min() == one.image[1].max() == np.float32(0.2)
    for a, b in zip(made, wanted, strict=True):
        assert_updates_agree(a, b)
        assert not a.touched.any()


def test_absolute_gradients():
    """Sums of |d loss / d means2d| over pixels, which densification may ask for (AbsGS)."""
    scene, view = random_scene(64, 11), look(40, 30)
    held = hold(cuda_on_cpu(), scene, RecordLayout(64, 3, stat_components=3))
    frame, _ = step(held, view, RenderSettings(sh_degree=2, absgrad=True))
    made = held.device._picture.absolute
    base, rest = torch.tensor(scene.base), torch.tensor(scene.rest)
    sh = torch.cat([base[11:14].T[:, None], rest.view(15, 3, -1).permute(2, 0, 1)], 1)
    means = base[0:3].T.clone().requires_grad_()
    out = render(
        means, base[3:7].T, base[7:10].T.exp(), base[10].sigmoid(), sh, torch.tensor(view.viewmat),
        torch.tensor(view.K), 40, 30, 2,
    )  # fmt: skip
    out["image"].backward(frame.grad)
    rows = held.device._picture.parts[0].rows
    wanted = out["means2d_abs"][rows]
    torch.testing.assert_close(made, wanted, rtol=1e-3, atol=1e-4 * float(wanted.max()))
    assert (made > 1.01 * out["means2d"].grad[rows].abs()).any()


@settings(max_examples=50, deadline=None, phases=[Phase.generate])
@given(st.integers(0, 2**31), st.floats(0.02, 30.0), st.sampled_from(["classic", "antialiased"]), st.floats(0, 6.0))
def test_the_gather_never_culls_what_gsplat_sees(seed, distance, mode, clip):
    scene = random_scene(120, seed, spread=3.0, log_scale=-2.0, needle=1.5)
    view = look(64, 48, seed=seed, distance=distance)
    how = RenderSettings(rasterize_mode=mode, radius_clip=clip, near_plane=0.05, far_plane=20.0)
    held = hold(cuda_on_cpu(), scene, layout_for())
    held.device.begin(view, how, held.device.new_frame(view))
    held.device.add(held.blocks(0))
    rows, pieces = held.device._picture.parts[0].rows, held.device._picture._pieces
    base = torch.tensor(scene.base)
    radii = visible_radii(
        base[0:3].T, base[3:7].T, base[7:10].T.exp(), base[10].sigmoid(), torch.tensor(view.viewmat),
        torch.tensor(view.K), 64, 48, 0.05, 20.0, 0.3, clip, mode == "antialiased",
    )  # fmt: skip
    seen = (radii > 0).all(-1).nonzero()[:, 0].tolist()
    assert set(seen) <= set(rows.tolist())
    assert (rows[pieces[0].visible].tolist() if pieces else []) == seen
