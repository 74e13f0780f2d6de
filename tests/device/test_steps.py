"""Adam, the sums of steps with several cameras, and what backward reports of blocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.device.harness import ADAM, FIRST, ISAS, LAST, MIDDLE, Packed, look, pack, random_scene, reference, run
from tidegs.device.base import AdamSettings, PassBlocks, RenderSettings
from tidegs.device.cpu import CpuDevice
from tidegs.errors import DeviceError
from tidegs.gaussians.layout import RecordLayout

GROUPS = [slice(0, 3), slice(3, 7), slice(7, 10), slice(10, 11), slice(11, 14), slice(14, 59)]
PLANES = ("base", "rest")


def parameters(packed: Packed) -> np.ndarray:
    return np.concatenate([packed.rows("base"), packed.rows("rest")])


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("isa", ISAS)
def test_adam_equals_torch_on_visible_rows_or_all(isa, dense):
    """Steps of the fused kernel, each against torch.optim.Adam on the kernel's own gradients. The others stay, or take
    the step that torch takes without a gradient."""
    scene, view = random_scene(500, 21, spread=4), look(60, 60, 2)
    ours, grads = pack(scene, isa=isa), pack(scene, isa=isa)
    tensors = [torch.tensor(parameters(ours)[rows].T.copy(), requires_grad=True) for rows in GROUPS]
    groups = [{"params": [t], "lr": lr} for t, lr in zip(tensors, ADAM.lrs, strict=True)]
    optimizer = torch.optim.Adam(groups, eps=ADAM.eps, betas=(ADAM.beta1, ADAM.beta2))
    for step in range(1, 5):
        before = parameters(ours)
        copy_state(ours, grads)
        if step == 3:
            view = look(60, 60, 5)  # other rows
        run(grads, view, flags=FIRST)
        gradient = grads.rows("grads")
        seen = gradient[-1] == 1
        assert 0 < seen.sum() < len(seen)
        _, (update,) = run(ours, view, adam=AdamSettings(ADAM.lrs, step, dense=dense))
        after = parameters(ours)
        assert update.visible.sum() == seen.sum()
        assert (step > 2 and dense) == (after[:, ~seen] != before[:, ~seen]).any()
        rows_to_check = np.full(len(seen), True) if dense else seen
        for tensor, rows in zip(tensors, GROUPS, strict=True):
            tensor.data.copy_(torch.tensor(before[rows].T))
            tensor.grad = torch.tensor(np.where(seen, gradient[:-1][rows], 0).T.copy())
        optimizer.step()
        for tensor, rows, lr in zip(tensors, GROUPS, ADAM.lrs, strict=True):
            moved = np.abs(after[rows] - before[rows])[:, seen].max()
            assert moved > 0.1 * lr
            np.testing.assert_allclose(
                after[rows][:, rows_to_check],
                tensor.detach().numpy().T[:, rows_to_check],
                rtol=2e-6,
                atol=1e-4 * lr,
            )


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("isa", ISAS)
def test_moments_never_become_denormal(isa, threads):
    """Each one in a vector would cost as much as hundreds of Gaussians, and 0.9 of the least is itself. Other
    arithmetic of the process keeps its denormals."""
    scene, view, least = random_scene(500, 21, spread=4), look(60, 60, 2), np.finfo(np.float32).tiny
    packed = pack(scene, [0, 100, 200, 300, 400, 500], isa)
    packed.device.set_threads(threads)
    for slot in packed.slots:
        for plane in ("m_base", "m_rest"):
            packed.layout.view(packed.device.arena[slot], plane)[:] = least
    _, (update,) = run(packed, view, adam=AdamSettings(ADAM.lrs, 1, dense=True))
    packed.device.set_threads(2)
    assert update.visible.sum() < scene.n
    for plane in ("m_base", "m_rest"):
        moments = np.abs(packed.rows(plane))
        assert ((moments == 0) | (moments >= least)).all()
    assert least * np.float32(0.5) > 0


def copy_state(source: Packed, target: Packed) -> None:
    for a, b in zip(source.slots, target.slots, strict=True):
        target.device.arena[b] = source.device.arena[a]


def test_step_of_several_cameras_sums_their_gradients():
    """Gradients of three cameras add up, rows of any of them are updated, and blocks may be evicted in between."""
    scene = random_scene(300, 22, spread=3)
    views = [look(50, 50, i) for i in range(3)]
    settings = RenderSettings()
    expected = np.zeros((59, scene.n))
    visible = np.zeros(scene.n, bool)
    for view in views:
        theirs = reference(scene, view, settings)
        expected += np.concatenate([theirs["base"], theirs["rest"]])
        visible |= theirs["visible"]

    at = [0, 100, 200, 300]
    summed = pack(scene, at)
    for view, flags in zip(views, (FIRST, MIDDLE, MIDDLE), strict=True):
        run(summed, view, settings, flags)
        summed.evict_and_reload()
    grads = summed.rows("grads")
    np.testing.assert_array_equal(grads[-1] == 1, visible)
    np.testing.assert_array_equal(grads[-1] == 0, ~visible)
    error = np.abs(grads[:-1] - expected)[:, visible].max(1) / np.abs(expected).max(1)
    assert error.max() < 1e-4

    stepped = pack(scene, at)
    for view, flags in zip(views, (FIRST, MIDDLE, LAST), strict=True):
        _, updates = run(stepped, view, settings, flags)
    assert updates[-1].visible.sum() == visible.sum()
    before, after = parameters(summed), parameters(stepped)
    np.testing.assert_array_equal(after[:, ~visible], before[:, ~visible])
    m = stepped.rows("m_base")
    np.testing.assert_allclose(m[:, visible], 0.1 * grads[:14, visible], rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("parted", [0, 1, 2])
def test_step_of_several_cameras_gives_the_same_bits_when_one_is_parted(parted):
    scene = random_scene(300, 23, spread=3)
    at = [0, 64, 150, 300]
    results = []
    for parts in (None, [[0], [1, 2]], [[0, 1], [], [2]]):
        packed = pack(scene, at)
        for i, flags in enumerate((FIRST, MIDDLE, LAST)):
            run(
                packed,
                look(80, 60, i),
                flags=flags,
                parts=parts if i == parted else None,
                between=packed.evict_and_reload,
            )
        results.append(packed.state())
    assert results[0] == results[1] == results[2]


def test_block_seen_by_an_earlier_camera_only_is_updated_in_its_last_pass():
    scene, view = random_scene(100, 24), look(50, 50, 0)
    away = look(50, 50, 0)
    away.viewmat[2] *= -1  # looks the other way
    away.viewmat[0] *= -1
    packed, wanted = pack(scene), pack(scene)
    _, (alone,) = run(wanted, view)
    run(packed, view, flags=FIRST)
    _, (update,) = run(packed, away, flags=LAST)
    assert packed.device.counts().splats == 0
    assert update.visible.tolist() == alone.visible.tolist()
    assert packed.state() == wanted.state()


def test_backward_reports_bounds_after_the_update_over_all_rows_in_use():
    scene, view = random_scene(400, 25, spread=3), look(60, 60, 1)
    packed = pack(scene, [0, 130, 131, 131, 400])
    _, (update,) = run(packed, view)
    for i, (a, b) in enumerate([(0, 130), (130, 131), (131, 131), (131, 400)]):
        base = packed.rows("base")[:, a:b]
        if a == b:
            assert not update.touched[i]
            assert update.visible[i] == 0
            continue
        np.testing.assert_array_equal(update.lo[i], base[0:3].min(1))
        np.testing.assert_array_equal(update.hi[i], base[0:3].max(1))
        greatest = np.exp(base[7:10].astype(np.float64)).max()
        assert greatest <= update.extent[i] <= greatest * 1.00001
    assert update.touched[0]
    assert update.touched[3]


def test_block_out_of_sight_is_not_touched():
    scene, view = random_scene(200, 26), look(50, 50, 1)
    scene.base[0:3, 100:] += 1000
    packed = pack(scene, [0, 100, 200])
    before = packed.device.arena[packed.slots[1]].tobytes()
    _, (update,) = run(packed, view)
    assert update.touched.tolist() == [True, False]
    assert update.visible[1] == 0
    assert packed.device.arena[packed.slots[1]].tobytes() == before
    assert np.isfinite(update.lo).all()


def test_single_whole_camera_writes_parameters_and_moments_only():
    scene = random_scene(200, 27)
    packed = pack(scene)
    layout, slot = packed.layout, packed.device.arena[packed.slots[0]]
    run(packed, look(50, 50, 1))
    assert np.isnan(layout.view(slot, "grads")).all()
    for plane in ("base", "rest", "m_base", "m_rest", "v_base", "v_rest"):
        assert np.isnan(layout.view(slot, plane)[:, 200:]).all()


def test_bands_not_in_use_are_not_touched():
    packed = pack(random_scene(200, 28))
    before = packed.rows("rest")
    run(packed, look(50, 50, 1), RenderSettings(sh_degree=1))
    assert (packed.rows("rest")[:9] != before[:9]).any()
    np.testing.assert_array_equal(packed.rows("rest")[9:], before[9:])
    assert not packed.rows("m_rest")[9:].any()


def test_misuse_is_refused():
    scene, view, settings = random_scene(100, 29), look(50, 50, 1), RenderSettings()
    packed = pack(scene)
    device, blocks = packed.device, packed.blocks()
    frame = device.new_frame(view)
    with pytest.raises(DeviceError, match="add was called out of order"):
        device.add(blocks)
    with pytest.raises(DeviceError, match="frame is"):
        device.begin(look(49, 50), settings, frame)
    with pytest.raises(DeviceError, match="sh_degree 4"):
        device.begin(view, RenderSettings(sh_degree=4), frame)
    device.begin(view, settings, frame)
    wrong = packed.blocks()
    wrong.slots[0] = 99
    with pytest.raises(DeviceError, match="slot 99"):
        device.add(wrong)
    wrong = packed.blocks()
    wrong.counts[0] = 513
    with pytest.raises(DeviceError, match="513 rows in use"):
        device.add(wrong)
    device.add(blocks)
    with pytest.raises(DeviceError, match="differentiate was called out of order"):
        device.differentiate(frame)
    device.finish(frame)
    with pytest.raises(DeviceError, match="without a loss"):
        device.differentiate(frame)
    with pytest.raises(DeviceError, match="uint8"):
        device.loss(frame, np.zeros((50, 50, 3), np.float32), 0.2)
    device.loss(frame, np.zeros((50, 50, 3), np.uint8), 0.2)
    device.differentiate(frame)
    with pytest.raises(DeviceError, match="part 1 was never added"):
        device.update(1, blocks, ADAM)
    with pytest.raises(DeviceError, match="bytes is short"):
        device.upload([np.empty(4096, np.uint8)], [0])
    device.close()
    with pytest.raises(DeviceError, match="no arena"):
        device.begin(view, settings, frame)


def test_step_of_several_cameras_needs_a_grads_plane():
    view = look(50, 50, 1)
    device = CpuDevice()
    device.open_arena(RecordLayout(64), 1)
    frame = device.new_frame(view)
    blocks = PassBlocks(np.zeros(1, np.int32), np.full(1, 64, np.int32), np.full(1, int(FIRST), np.uint8))
    device.begin(view, RenderSettings(), frame)
    device.add(blocks)
    device.finish(frame)
    device.loss(frame, np.zeros((50, 50, 3), np.uint8), 0.2)
    device.differentiate(frame)
    with pytest.raises(DeviceError, match="no `grads` plane"):
        device.update(0, blocks, ADAM)
