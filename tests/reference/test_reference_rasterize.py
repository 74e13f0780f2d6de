"""The reference against finite differences, hand-computed cases, a scalar per-pixel loop and gsplat's own pieces."""

from __future__ import annotations

import math

import pytest
import torch
from gsplat.cuda import _torch_impl as gs

from tests.reference.rasterize import ALPHA_THRESHOLD, _Splats, render, visible_radii

SH_C0 = 0.28209479177387814


@pytest.fixture(autouse=True)
def one_thread():
    """Tensors here are tiny: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def camera(width: int, height: int, f: float = 20.0) -> tuple[torch.Tensor, torch.Tensor]:
    K = torch.tensor([[f, 0, width / 2], [0, f * 1.1, height / 2], [0, 0, 1]], dtype=torch.float64)
    angle = 0.2
    viewmat = torch.eye(4, dtype=torch.float64)
    viewmat[0, 0] = viewmat[2, 2] = math.cos(angle)
    viewmat[0, 2], viewmat[2, 0] = math.sin(angle), -math.sin(angle)
    viewmat[:3, 3] = torch.tensor([0.1, -0.05, 0.2])
    return viewmat, K


def random_scene(n: int, seed: int, sh_degree: int = 3) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=g, dtype=torch.float64)

    means = (rand(n, 3) - 0.5) * torch.tensor([4.0, 3.0, 4.0]) + torch.tensor([0.0, 0.0, 4.0])
    quats = torch.randn(n, 4, generator=g, dtype=torch.float64)
    scales = torch.exp(-2.5 + 1.5 * rand(n, 3))
    opacities = 0.02 + 0.97 * rand(n)
    sh = 0.4 * torch.randn(n, (sh_degree + 1) ** 2, 3, generator=g, dtype=torch.float64)
    return [means, quats, scales, opacities, sh]


def one(xyz=(0.0, 0.0, 2.0), scale=0.2, opacity=0.5, rgb=(0.2, 0.5, 0.9), dtype=torch.float64) -> list[torch.Tensor]:
    """One isotropic Gaussian of a plain colour."""
    return [
        torch.tensor([xyz], dtype=dtype),
        torch.tensor([[1.0, 0, 0, 0]], dtype=dtype),
        torch.full((1, 3), scale, dtype=dtype),
        torch.tensor([opacity], dtype=dtype),
        (torch.tensor([[rgb]], dtype=dtype) - 0.5) / SH_C0,
    ]


def join(*scenes: list[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.cat(parts) for parts in zip(*scenes, strict=True)]


def frontal(width: int, height: int, f: float = 10.0, dtype=torch.float64) -> dict:
    """A camera at the origin whose axis goes through the middle of pixel (width // 2, height // 2)."""
    K = torch.tensor([[f, 0, width // 2 + 0.5], [0, f, height // 2 + 0.5], [0, 0, 1]], dtype=dtype)
    return {"viewmat": torch.eye(4, dtype=dtype), "K": K, "width": width, "height": height, "sh_degree": 0}


@pytest.mark.parametrize("mode", ["classic", "antialiased"])
def test_gradients_agree_with_finite_differences(mode):
    scene = [x.requires_grad_() for x in random_scene(5, seed=3, sh_degree=1)]
    viewmat, K = camera(20, 18)
    g = torch.Generator().manual_seed(0)
    weights = {"image": (18, 20, 3), "alpha": (18, 20), "depth": (18, 20)}
    weights = {name: torch.randn(shape, generator=g, dtype=torch.float64) for name, shape in weights.items()}

    def weighted(*params):
        out = render(*params, viewmat, K, 20, 18, 1, rasterize_mode=mode, background=(0.3, 0.1, 0.7))
        return torch.stack([(out[name] * w).sum() for name, w in weights.items()])

    assert (render(*scene, viewmat, K, 20, 18, 1)["radii"] > 0).all()
    assert torch.autograd.gradcheck(weighted, scene, eps=1e-7, atol=1e-5, rtol=1e-4, check_undefined_grad=False)


@pytest.mark.parametrize("mode", ["classic", "antialiased"])
def test_agrees_with_a_scalar_loop_over_pixels(mode):
    width, height = 35, 21
    viewmat, K = camera(width, height)
    scene = random_scene(60, seed=1)
    scene[3][:20] = 0.999
    scene[2][:10] *= 3
    scene[0][50:55, 2] = -1.0
    out = render(*scene, viewmat, K, width, height, 2, rasterize_mode=mode, background=(0.1, 0.2, 0.3))

    means, quats, scales, opacities, sh = scene
    covars, _ = gs._quat_scale_to_covar_preci(quats, scales, compute_preci=False)
    _, xy, z, conics, comp = gs._fully_fused_projection(
        means, covars, viewmat[None], K[None], width, height, calc_compensations=True
    )
    if mode == "antialiased":
        opacities = opacities * comp[0]
    dirs = means - torch.inverse(viewmat)[:3, 3]
    rgb = (gs._spherical_harmonics(2, dirs, sh) + 0.5).clamp_min(0)
    order = [i for i in torch.argsort(z[0], stable=True).tolist() if (out["radii"][i] > 0).all()]
    assert 20 < len(order) < 60
    stopped = 0
    for i in range(height):
        for j in range(width):
            T, color, depth = 1.0, torch.tensor([0.0, 0, 0], dtype=torch.float64), 0.0
            for g in order:
                dx, dy = xy[0, g, 0].item() - j - 0.5, xy[0, g, 1].item() - i - 0.5
                a, b, c = conics[0, g].tolist()
                sigma = 0.5 * (a * dx * dx + c * dy * dy) + b * dx * dy
                alpha = min(0.999, opacities[g].item() * math.exp(-sigma))
                if sigma < 0 or alpha < 1 / 255:
                    continue
                if T * (1 - alpha) <= 1e-4:
                    stopped += 1
                    break
                color += rgb[g] * alpha * T
                depth += z[0, g].item() * alpha * T
                T *= 1 - alpha
            color += T * torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
            torch.testing.assert_close(out["image"][i, j], color, rtol=1e-9, atol=1e-12)
            assert out["alpha"][i, j].item() == pytest.approx(1 - T, abs=1e-12)
            assert out["depth"][i, j].item() == pytest.approx(depth, abs=1e-10)
    if mode == "classic":
        assert stopped > 0


def test_one_gaussian_by_hand():
    """Variance on screen: (f s / z)^2 + eps2d = (10 * 0.2 / 2)^2 + 0.3 = 1.3 pixels^2, an isotropic spot."""
    out = render(*one(), **frontal(9, 7), background=(1.0, 0.0, 0.0))
    for d in range(3):
        alpha = 0.5 * math.exp(-0.5 * d * d / 1.3)
        assert out["alpha"][3, 4 + d].item() == pytest.approx(alpha, rel=1e-6)
        assert out["depth"][3 + d, 4].item() == pytest.approx(2 * alpha, rel=1e-6)
        blend = [alpha * c + (1 - alpha) * b for c, b in zip((0.2, 0.5, 0.9), (1, 0, 0), strict=True)]
        assert out["image"][3, 4 - d].tolist() == pytest.approx(blend, rel=1e-6)
    extent = math.sqrt(2 * math.log(0.5 * 255))  # 3.11 sigmas: the opacity-aware bound
    assert out["radii"].tolist() == [[math.ceil(extent * math.sqrt(1.3))] * 2]
    assert out["means2d"].tolist() == [[4.5, 3.5]]


def test_antialiased_scales_opacity_by_the_lost_area():
    out = render(*one(), **frontal(9, 7), rasterize_mode="antialiased")
    assert out["alpha"][3, 4].item() == pytest.approx(0.5 * 1.0 / 1.3, rel=1e-6)


def test_alpha_is_clamped_and_passes_no_gradient_there():
    scene = one(opacity=1.0)
    scene[3].requires_grad_()
    out = render(*scene, **frontal(9, 7))
    assert out["alpha"][3, 4].item() == pytest.approx(0.999, abs=1e-12)
    (at_peak,) = torch.autograd.grad(out["alpha"][3, 4], scene[3], retain_graph=True)
    (beside,) = torch.autograd.grad(out["alpha"][3, 5], scene[3])
    assert at_peak.item() == 0
    assert beside.item() == pytest.approx(math.exp(-0.5 / 1.3), rel=1e-6)


def test_gaussian_that_would_cross_the_stop_is_not_rendered():
    layers = [one(xyz=(0, 0, 2 + k), opacity=0.95, scale=1.0) for k in range(5)]
    scene = join(*layers)
    scene[3].requires_grad_()
    out = render(*scene, **frontal(9, 7))
    alpha = out["alpha"][3, 4]
    assert alpha.item() == pytest.approx(1 - 0.05**3, rel=1e-9)
    (grad,) = torch.autograd.grad(alpha, scene[3])
    assert (grad > 0).tolist() == [True, True, True, False, False]


def test_depth_ties_are_broken_by_index():
    red, blue = one(rgb=(1, 0, 0), opacity=0.8), one(rgb=(0, 0, 1), opacity=0.8)
    first = render(*join(red, blue), **frontal(9, 7))["image"][3, 4]
    second = render(*join(blue, red), **frontal(9, 7))["image"][3, 4]
    assert first.tolist() == pytest.approx([0.8, 0, 0.16])
    assert second.tolist() == pytest.approx([0.16, 0, 0.8])


def test_colour_is_clamped_at_zero_from_below():
    scene = one(rgb=(-0.5, 0.0, 1.5))
    scene[4].requires_grad_()
    out = render(*scene, **frontal(9, 7))
    assert out["image"][3, 4].tolist() == pytest.approx([0.0, 0.0, 0.75])
    (grad,) = torch.autograd.grad(out["image"].sum(), scene[4])
    assert grad[0, 0, 0] == 0
    assert grad[0, 0, 2] > 0


@pytest.mark.parametrize(
    ("scene", "options"),
    [
        (one(xyz=(0, 0, 0.009)), {}),
        (one(xyz=(0, 0, -2)), {}),
        (one(), {"far_plane": 1.9}),
        (one(), {"near_plane": 2.1}),
        (one(opacity=0.0039), {}),
        (one(opacity=0.0), {}),
        (one(), {"radius_clip": 4.0}),
        (one(xyz=(30, 0, 2)), {}),
        (one(xyz=(0, -30, 2)), {}),
        (one(scale=1e-4, opacity=0.5), {"rasterize_mode": "antialiased"}),
    ],
)
def test_culled_gaussians_leave_nothing(scene, options):
    for x in scene:
        x.requires_grad_()
    out = render(*scene, **frontal(9, 7), **options)
    assert out["radii"].tolist() == [[0, 0]]
    assert out["image"].abs().max() == 0
    assert out["alpha"].abs().max() == 0


def test_bounds_of_culling_are_the_kernels():
    """Kept at near and far themselves, at radius_clip + 1 and at an opacity just above the threshold."""
    view = frontal(9, 7)
    assert render(*one(), **view, near_plane=2.0, far_plane=2.0)["radii"].tolist() == [[4, 4]]
    assert render(*one(), **view, radius_clip=3.0)["radii"].tolist() == [[4, 4]]
    assert render(*one(opacity=1.001 * ALPHA_THRESHOLD), **view)["radii"].tolist() == [[1, 1]]


def test_radii_agree_with_gsplat_where_opacity_does_not_bind():
    """sqrt(2 ln 255) = 3.329 < 3.33: at opacity 1 the box is at most one pixel tighter than gsplat's torch twin."""
    viewmat, K = camera(64, 48)
    means, quats, scales, _, _ = random_scene(300, seed=2)
    covars, _ = gs._quat_scale_to_covar_preci(quats, scales, compute_preci=False)
    theirs = gs._fully_fused_projection(means, covars, viewmat[None], K[None], 64, 48)[0][0]
    ours = visible_radii(
        means, quats, scales, torch.ones(300).double(), viewmat, K, 64, 48, 0.01, 1e10, 0.3, 0.0, False
    )
    kept = (ours > 0).all(-1)
    assert kept.sum() > 100
    assert ((theirs - ours)[kept] >= 0).all()
    assert ((theirs - ours)[kept] <= 1).all()
    assert ((theirs == ours) | ~kept[:, None]).float().mean() > 0.99


def test_tiles_agree_with_gsplat():

    g = torch.Generator().manual_seed(0)
    xy = torch.rand(200, 2, generator=g) * 120 - 10
    radii = torch.randint(1, 30, (200, 2), generator=g, dtype=torch.int32)
    zero = torch.zeros(200)
    splats = _Splats(xy, zero[:, None], zero, zero[:, None], radii, torch.arange(200))
    counts = torch.zeros(200, dtype=torch.int32)
    for ty in range(5):
        for tx in range(7):
            counts[splats.in_tile(tx, ty)] += 1
    theirs, _, _ = gs._isect_tiles(xy[None], radii[None], zero[None] + 1, 16, 7, 5)
    assert torch.equal(counts, theirs[0])


def test_means2d_gradient_and_its_absolute_sum():
    viewmat, K = camera(9, 7)
    scene = [x.requires_grad_() for x in random_scene(5, seed=5)]
    weights = torch.randn(7, 9, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def grads(mask):
        out = render(*scene, viewmat, K, 9, 7, 3)
        (out["image"] * weights * mask[..., None]).sum().backward()
        return out["means2d"].grad, out["means2d_abs"]

    whole, whole_abs = grads(torch.ones(7, 9))
    total, total_abs = torch.zeros_like(whole), torch.zeros_like(whole)
    for pixel in range(63):
        mask = torch.zeros(63)
        mask[pixel] = 1
        g, _ = grads(mask.reshape(7, 9))
        total += g
        total_abs += g.abs()
    torch.testing.assert_close(whole, total)
    torch.testing.assert_close(whole_abs, total_abs)
    assert (whole_abs > 1.5 * whole.abs()).any()


def test_float32_follows_float64():
    viewmat, K = camera(40, 30)
    scene = random_scene(80, seed=7)
    wide = render(*scene, viewmat, K, 40, 30, 3)
    narrow = render(*[x.float() for x in scene], viewmat.float(), K.float(), 40, 30, 3)
    assert narrow["image"].dtype == torch.float32
    torch.testing.assert_close(narrow["image"].double(), wide["image"], rtol=0, atol=2e-2)
    assert (narrow["image"].double() - wide["image"]).abs().median() < 1e-6
