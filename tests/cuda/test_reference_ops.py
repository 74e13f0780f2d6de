"""gsplat's own `rasterization` over the reference operators gives what the torch reference gives."""

from __future__ import annotations

from dataclasses import replace

import gsplat
import pytest
import torch

from tests.device.harness import look, random_scene
from tests.reference.rasterize import render
from tidegs.device.base import RenderSettings
from tidegs.device.cuda.render import camera_tensors, draw, joined, project
from tidegs.device.cuda.rows import Params
from tidegs.device.cuda.windows import Window


def random_leaves(sh_degree: int = 3) -> list[torch.Tensor]:
    scene = random_scene(80, 3)
    base, rest = (torch.tensor(t) for t in (scene.base, scene.rest))
    sh = torch.cat([base[11:14].T[:, None], rest.view(15, 3, -1).permute(2, 0, 1)], 1)[:, : (sh_degree + 1) ** 2]
    leaves = [base[0:3].T, base[3:7].T, base[7:10].T.exp(), base[10].sigmoid(), sh]
    return [t.contiguous().requires_grad_() for t in leaves]


@pytest.mark.parametrize("mode", ["classic", "antialiased"])
def test_image_and_gradients(mode):
    leaves, view = random_leaves(), look(40, 34)
    viewmat, K, background = torch.tensor(view.viewmat), torch.tensor(view.K), (0.3, 0.1, 0.7)
    weights = torch.randn(34, 40, 4, generator=torch.Generator().manual_seed(0))

    rgb, alpha, meta = gsplat.rasterization(
        *leaves, viewmat[None], K[None], 40, 34, sh_degree=2, packed=False, rasterize_mode=mode,
        backgrounds=torch.tensor([background]), render_mode="RGB+D", absgrad=True,
    )  # fmt: skip
    wanted = render(*leaves, viewmat, K, 40, 34, 2, rasterize_mode=mode, background=background)

    torch.testing.assert_close(rgb[0, ..., :3], wanted["image"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(rgb[0, ..., 3], wanted["depth"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(alpha[0, ..., 0], wanted["alpha"], rtol=1e-5, atol=1e-5)
    assert torch.equal(meta["radii"][0], wanted["radii"])
    made = torch.autograd.grad((rgb[0] * weights).sum(), leaves)
    value = (wanted["image"] * weights[..., :3]).sum() + (wanted["depth"] * weights[..., 3]).sum()
    for grad, want in zip(made, torch.autograd.grad(value, leaves), strict=True):
        torch.testing.assert_close(grad, want, rtol=1e-3, atol=1e-4 * float(want.abs().max()))
    torch.testing.assert_close(
        meta["means2d"].absgrad[0], wanted["means2d_abs"], rtol=1e-3, atol=1e-4 * float(wanted["means2d_abs"].max())
    )


@pytest.mark.parametrize("with_depth", [False, True])
@pytest.mark.parametrize("mode", ["classic", "antialiased"])
def test_our_stages_are_gsplats_rasterization(mode, with_depth):
    """Image, alpha, depth, radii and absgrad to the last bit; gradients but for the order of a sum (means have two)."""
    view, how = look(40, 34), RenderSettings(sh_degree=2, rasterize_mode=mode, background=(0.3, 0.1, 0.7))
    weights = torch.randn(34, 40, 3, generator=torch.Generator().manual_seed(0))
    leaves = random_leaves(2)
    rgb, alpha, meta = gsplat.rasterization(
        *leaves, torch.tensor(view.viewmat)[None], torch.tensor(view.K)[None], 40, 34, sh_degree=2, packed=False,
        rasterize_mode=mode, backgrounds=torch.tensor([how.background]), absgrad=True,
        render_mode="RGB+D" if with_depth else "RGB",
    )  # fmt: skip
    wanted = torch.autograd.grad((rgb[0, ..., :3] * weights).sum(), leaves)

    params = Params(*random_leaves(2))
    camera = camera_tensors(view, torch.device("cpu"))
    position = torch.inverse(camera.viewmats)[0, :3, 3]  # as gsplat takes it; ours is rounded from float64
    torch.testing.assert_close(camera.position, position)
    projected = project(params, replace(camera, position=position), how)
    cut = joined([projected])
    drawn = draw(cut, Window(0, 0, 40, 34), how, with_depth, absgrad=True)
    shares = torch.autograd.grad((drawn.rgb * weights).sum(), cut.differentiable())
    made = torch.autograd.grad(projected.differentiable(), params.tensors(), shares)

    assert torch.equal(drawn.rgb, rgb[0, ..., :3])
    assert torch.equal(drawn.alpha, alpha[0, ..., 0])
    assert not with_depth or torch.equal(drawn.depth, rgb[0, ..., 3])
    assert torch.equal(projected.radii, meta["radii"])
    assert torch.equal(drawn.means2d.absgrad, meta["means2d"].absgrad)
    for grad, want in zip(made, wanted, strict=True):
        torch.testing.assert_close(grad, want, rtol=1e-5, atol=1e-6 * float(want.abs().max()))
