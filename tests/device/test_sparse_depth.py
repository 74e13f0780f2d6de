"""The loss of sparse depth: gsplat's value, and gradients of every parameter as torch's autograd gives them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.device.harness import ADAM, FIRST, look, pack, random_scene
from tests.device.test_parity import FIELDS, close
from tests.reference.rasterize import render
from tidegs.device.base import RenderSettings, SparseDepth, View
from tidegs.device.sparse_depth import disparity_l1
from tidegs.errors import DeviceError


def gsplats(depth: Tensor, alpha: Tensor, xy: Tensor, disparity: Tensor) -> Tensor:
    """As gsplat's examples/simple_trainer.py writes it, but for the half pixel between its places and the centres."""
    height, width = depth.shape
    expected = depth / alpha.clamp(min=1e-10)
    size = torch.tensor([width - 1, height - 1], dtype=depth.dtype)
    grid = ((xy - 0.5) / size * 2 - 1)[None, :, None]
    found = torch.nn.functional.grid_sample(expected[None, None], grid, align_corners=True)[0, 0, :, 0]
    found = torch.where(found > 0, 1 / torch.where(found > 0, found, 1.0), 0.0)
    return torch.nn.functional.l1_loss(found, disparity)


def places(view: View, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    r = np.random.default_rng(seed)
    xy = r.uniform(0.5, [view.width - 0.5, view.height - 0.5], (n, 2)).astype(np.float32)
    xy[0], xy[1] = (0.5, 0.5), (view.width - 0.5, view.height - 0.5)
    return xy, r.uniform(0.1, 0.4, n).astype(np.float32)


def test_value_and_gradients_are_gsplats():
    r = np.random.default_rng(1)
    alpha = r.uniform(0.05, 1, (20, 31))
    alpha[r.random((20, 31)) < 0.3] = 0
    depth = alpha * r.uniform(1, 9, alpha.shape)
    xy, disparity = places(look(31, 20), 200, 2)
    leaves = [torch.tensor(a, requires_grad=True) for a in (depth, alpha)]
    value = gsplats(*leaves, torch.tensor(xy, dtype=torch.float64), torch.tensor(disparity, dtype=torch.float64))
    (3 * value).backward()
    grads = [np.full(alpha.shape, np.nan, np.float32) for _ in leaves]
    found = disparity_l1(depth.astype(np.float32), alpha.astype(np.float32), xy, disparity, 3.0, *grads)
    assert found == pytest.approx(value.item(), rel=1e-5)
    seen = alpha > 0  # beside them, gsplat's clamp divides by 1e-10
    for grad, leaf in zip(grads, leaves, strict=True):
        np.testing.assert_allclose(grad[seen], leaf.grad.numpy()[seen], rtol=1e-3, atol=1e-7)
        assert not grad[~seen].any()


@pytest.mark.parametrize("mode", ["classic", "antialiased"])
def test_parameters_get_the_gradients_of_autograd(mode):
    scene, view, settings = random_scene(200, 3), look(70, 45, 3), RenderSettings(rasterize_mode=mode)
    xy, disparity = places(view, 300, 4)
    packed = pack(scene)
    device = packed.device
    frame = device.new_frame(view, depth=True)
    device.begin(view, settings, frame)
    device.add(packed.blocks(FIRST))
    device.finish(frame)
    image = (np.clip(frame.image.transpose(1, 2, 0), 0, 1) * 255).astype(np.uint8)
    plain = device.loss(frame, image, 0.2).total
    loss = device.loss(frame, image, 0.2, 0.5, points=SparseDepth(xy, disparity, 2.0))
    frame.grad[:] = 0  # depth alone
    device.differentiate(frame)
    device.update(0, packed.blocks(FIRST), ADAM)

    base = torch.tensor(scene.base, dtype=torch.float64, requires_grad=True)
    sh = torch.zeros(scene.n, 16, 3, dtype=torch.float64)
    out = render(
        base[0:3].T, base[3:7].T, torch.exp(base[7:10].T), torch.sigmoid(base[10]), sh,
        torch.tensor(view.viewmat, dtype=torch.float64), torch.tensor(view.K, dtype=torch.float64), view.width,
        view.height, 3, rasterize_mode=mode,
    )  # fmt: skip
    value = gsplats(out["depth"], out["alpha"], *(torch.tensor(a, dtype=torch.float64) for a in (xy, disparity)))
    (2.0 * 0.5 * value).backward()
    assert loss.total - plain == pytest.approx(2.0 * value.item(), rel=1e-4)
    grads = packed.rows("grads")
    grads = np.where(grads[-1] == 1, grads, 0)
    for name in ("means", "quats", "scales", "opacities"):
        close(grads[FIELDS[name]], base.grad.numpy()[FIELDS[name]], name, 1e-3)
    assert not grads[FIELDS["sh0"]].any()


def test_a_loss_without_points_leaves_no_gradient_of_depth():
    scene, view = random_scene(50, 1), look(30, 30)
    states = []
    for with_points in (True, False):
        packed = pack(scene)
        device, xy = packed.device, places(view, 20, 1)
        frame = device.new_frame(view, depth=True)
        for points in (SparseDepth(*xy, 1.0) if with_points else None, None):
            device.begin(view, RenderSettings(), frame)
            device.add(packed.blocks())
            device.finish(frame)
            device.loss(frame, np.zeros((30, 30, 3), np.uint8), 0.2, points=points)
        device.differentiate(frame)
        device.update(0, packed.blocks(), ADAM)
        states.append(packed.state())
    assert states[0] == states[1]


def test_a_frame_without_depth_is_refused():
    packed, view = pack(random_scene(5, 1)), look(20, 20)
    frame = packed.device.new_frame(view)
    with pytest.raises(DeviceError, match="in a frame without: ask new_frame for depth"):
        packed.device.loss(frame, np.zeros((20, 20, 3), np.uint8), 0.2, points=SparseDepth(*places(view, 5, 1), 1.0))
