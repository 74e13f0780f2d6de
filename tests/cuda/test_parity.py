"""The CUDA device against the CPU device: images, which rows are visible, gradients, updates, bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.cuda.harness import ADAM, Held, both, cuda_on_cpu, hold, layout_for, step, target_of
from tests.device.harness import look, random_scene
from tests.reference.rasterize import visible_radii
from tidegs.device.base import BlockFlags, BlockUpdates, Region, RenderSettings
from tidegs.device.tiles import split, tile_count, whole

FIRST = BlockFlags.FIRST_OF_CAMERA | BlockFlags.LAST_OF_CAMERA | BlockFlags.FIRST_OF_STEP
LAST = BlockFlags.FIRST_OF_CAMERA | BlockFlags.LAST_OF_CAMERA | BlockFlags.LAST_OF_STEP
MIDDLE = BlockFlags.FIRST_OF_CAMERA | BlockFlags.LAST_OF_CAMERA


def assert_images_agree(one, other) -> None:
    assert one.image.shape == other.image.shape
    np.testing.assert_allclose(one.image, other.image, atol=2e-5)
    np.testing.assert_allclose(one.alpha, other.alpha, atol=2e-5)


def assert_slots_agree(one: Held, other: Held) -> None:
    """Moments are the gradients (they were zero), which agree to 1e-4; parameters follow where a gradient is more than
    rounding: Adam makes a full step of any."""
    for kind in ("base", "rest"):
        m, m_other = one.rows("m_" + kind), other.rows("m_" + kind)
        scale = np.abs(m_other).max(1, keepdims=True)
        np.testing.assert_allclose(m / (scale + 1e-30), m_other / (scale + 1e-30), atol=1e-4)
        v, v_other = one.rows("v_" + kind), other.rows("v_" + kind)
        np.testing.assert_allclose(v, v_other, rtol=1e-3, atol=1e-4 * v_other.max())
        telling = np.abs(m_other) > 1e-3 * scale
        p, p_other = one.rows(kind), other.rows(kind)
        still = (m == 0) & (m_other == 0)
        np.testing.assert_array_equal(p[still], p_other[still])
        np.testing.assert_allclose(p[telling], p_other[telling], rtol=1e-6, atol=1e-4)


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
    cuda, cpu = both(random_scene(200, 4), layout_for(), cuts=[0, 50, 51, 115, 179, 200])
    view = look(60, 44, seed=2)
    render = RenderSettings(sh_degree=sh_degree, rasterize_mode=mode, background=(0.2, 0.5, 0.1))
    (one, (made,)), (other, (wanted,)) = step(cuda, view, render), step(cpu, view, render)
    assert_images_agree(one, other)
    assert_updates_agree(made, wanted)
    assert_slots_agree(cuda, cpu)
    assert made.visible.sum() > 100


def test_the_loss():
    cuda, cpu = both(random_scene(60, 4), layout_for())
    view, target = look(40, 30), target_of(look(40, 30))
    values = []
    for held in (cuda, cpu):
        frame = held.device.new_frame(view)
        held.device.forward(view, held.blocks(0), RenderSettings(), frame)
        values.append(held.device.loss(frame, target, 0.2))
    for name in ("total", "l1", "ssim"):
        assert getattr(values[0], name) == pytest.approx(getattr(values[1], name), rel=1e-5)


@pytest.mark.parametrize("mode", ["classic", "antialiased"])
def test_a_camera_in_regions(mode):
    """Passes by tiles leave what one pass leaves, on the CUDA device and against the CPU device."""
    cuda, cpu = both(random_scene(150, 5), layout_for(grads=False))
    view, render = look(70, 50, seed=5), RenderSettings(rasterize_mode=mode, background=(0.1, 0.2, 0.3))
    regions = [Region(0, 7), Region(7, 13), Region(13, 20)]
    (one, made), (other, wanted) = (step(h, view, render, regions=regions) for h in (cuda, cpu))
    assert_images_agree(one, other)
    for i, (a, b) in enumerate(zip(made, wanted, strict=True)):
        assert_updates_agree(a, b, last=i == len(regions) - 1)
    assert_slots_agree(cuda, cpu)

    at_once = hold(cuda_on_cpu(), random_scene(150, 5), layout_for(grads=False))
    frame, _ = step(at_once, view, render)
    assert_images_agree(one, frame)
    assert_slots_agree(cuda, at_once)


@settings(max_examples=4, deadline=None, phases=[Phase.generate])
@given(st.data())
def test_any_cuts_of_a_camera(data):
    """Regions that are no quadtree cells, so that their windows are masked."""
    tiles = tile_count(70, 40)
    cuts = sorted({0, tiles, *data.draw(st.lists(st.integers(1, tiles - 1), min_size=1, max_size=3))})
    regions = [Region(a, b) for a, b in zip(cuts[:-1], cuts[1:], strict=True)]
    split_up, at_once = (hold(cuda_on_cpu(), random_scene(60, 6), layout_for()) for _ in range(2))
    view = look(70, 40, seed=6)
    one, _ = step(split_up, view, regions=regions)
    other, _ = step(at_once, view)
    assert_images_agree(one, other)
    assert_slots_agree(split_up, at_once)


@pytest.mark.parametrize("regions", [False, True])
def test_a_step_of_three_cameras(regions):
    """Gradients of rows that one, several and no cameras see; the update is the CPU device's."""
    cuda, cpu = both(random_scene(150, 7, spread=4.0), layout_for())
    for i, flags in enumerate((FIRST, MIDDLE, LAST)):
        view = look(64, 48, seed=10 + i)
        parts = split(64, 48, whole(64, 48)) if regions else None
        (_, made), (_, wanted) = (step(h, view, flags=flags, regions=parts) for h in (cuda, cpu))
        assert_updates_agree(made[-1], wanted[-1], last=flags == LAST)
    assert_slots_agree(cuda, cpu)
    assert 0 < made[-1].visible.sum() < 150


def test_blocks_that_only_some_cameras_of_a_step_need():
    """Each block has its own first and last camera."""
    cuda, cpu = both(random_scene(128, 8), layout_for(grads=True))
    for held in (cuda, cpu):
        frame = held.device.new_frame(look(48, 32))
        for seed, chosen, flags in ((0, [0], FIRST), (1, [0, 1], LAST)):
            blocks = held.blocks(flags, chosen)
            if len(chosen) == 2:
                blocks.flags[1] = BlockFlags.ALL
            view = look(48, 32, seed=seed)
            held.device.forward(view, blocks, RenderSettings(), frame)
            held.device.loss(frame, target_of(view), 0.2)
            held.device.backward(frame, ADAM)
    assert_slots_agree(cuda, cpu)


def test_depth():
    cuda, cpu = both(random_scene(80, 9), layout_for())
    view = look(50, 40)
    for regions in (None, split(50, 40, whole(50, 40))):
        frames = []
        for held in (cuda, cpu):
            frame = held.device.new_frame(view, depth=True)
            for region in regions or [None]:
                held.device.forward(view, held.blocks(0), RenderSettings(), frame, region)
            frames.append(frame)
        assert_images_agree(*frames)
        np.testing.assert_allclose(frames[0].depth, frames[1].depth, rtol=1e-4, atol=1e-4)
        assert frames[0].depth.max() > 1


@pytest.mark.parametrize("blocks", [[], [0, 1]])
def test_a_pass_that_sees_nothing(blocks):
    """No blocks, or blocks behind the camera: the background, a loss, and updates of nothing."""
    scene = random_scene(100, 10)
    scene.base[2] -= 100
    cuda, cpu = both(scene, layout_for())
    view = look(40, 20)
    view.viewmat[:3, :3] = np.eye(3)
    render = RenderSettings(background=(0.1, 0.2, 0.3))
    for regions in ([None], split(40, 20, whole(40, 20))):
        results = []
        for held in (cuda, cpu):
            frame = held.device.new_frame(view)
            for region in regions:
                held.device.forward(view, held.blocks(BlockFlags.ALL, blocks), render, frame, region)
            held.device.loss(frame, target_of(view), 0.2)
            results.append((frame, held.device.backward(frame, ADAM)))
        assert_images_agree(results[0][0], results[1][0])
        assert_updates_agree(results[0][1], results[1][1])
        assert not results[0][1].touched.any()


def test_absolute_gradients_are_carried():
    """The last components of `carry` are the sums of |d loss / d means2d| that densification asks for (AbsGS)."""
    held = hold(cuda_on_cpu(), random_scene(64, 11), layout_for())
    view = look(40, 30)
    flags = BlockFlags.FIRST_OF_CAMERA | BlockFlags.FIRST_OF_STEP
    frame = held.device.new_frame(view)
    held.device.forward(view, held.blocks(flags), RenderSettings(), frame, whole(40, 30))
    held.device.loss(frame, target_of(view), 0.2)
    held.device.backward(frame, ADAM)
    carry = held.rows("carry")
    seen = np.isfinite(carry).all(0)
    assert 30 < seen.sum()
    assert (carry[10:12, seen] >= np.abs(carry[0:2, seen]) * (1 - 1e-5)).all()
    assert (carry[10:12, seen] > 1.01 * np.abs(carry[0:2, seen])).any()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.02, 30.0), st.sampled_from(["classic", "antialiased"]), st.floats(0, 6.0))
def test_the_gather_never_culls_what_gsplat_sees(seed, distance, mode, clip):
    import torch

    scene = random_scene(120, seed, spread=3.0, log_scale=-2.0, needle=1.5)
    view = look(64, 48, seed=seed, distance=distance)
    render = RenderSettings(rasterize_mode=mode, radius_clip=clip, near_plane=0.05, far_plane=20.0)
    held = hold(cuda_on_cpu(), scene, layout_for())
    held.device.forward(view, held.blocks(0), render, held.device.new_frame(view))
    current = held.device._pass
    base = torch.tensor(scene.base)
    radii = visible_radii(
        base[0:3].T, base[3:7].T, base[7:10].T.exp(), base[10].sigmoid(), torch.tensor(view.viewmat),
        torch.tensor(view.K), 64, 48, 0.05, 20.0, 0.3, clip, mode == "antialiased",
    )  # fmt: skip
    seen = set((radii > 0).all(-1).nonzero()[:, 0].tolist())
    assert seen <= set(current.rows.tolist())
    assert current.rows[current.visible].tolist() == sorted(seen)
