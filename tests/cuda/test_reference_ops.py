"""gsplat's own `rasterization` over the reference operators gives what the torch reference gives."""

from __future__ import annotations

import gsplat
import pytest
import torch

from tests.device.harness import look, random_scene
from tests.reference.rasterize import render


@pytest.mark.parametrize("mode", ["classic", "antialiased"])
def test_image_and_gradients(mode):
    scene, view = random_scene(80, 3), look(40, 34)
    base, rest = (torch.tensor(t) for t in (scene.base, scene.rest))
    sh = torch.cat([base[11:14].T[:, None], rest.view(15, 3, -1).permute(2, 0, 1)], 1)
    leaves = [base[0:3].T, base[3:7].T, base[7:10].T.exp(), base[10].sigmoid(), sh]
    leaves = [t.contiguous().requires_grad_() for t in leaves]
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
