"""The statistics that densification goes by, against autograd through the torch reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.device.harness import ADAM, ISAS, STEP, Packed, image_grads, look, random_scene, run
from tests.reference.rasterize import render
from tidegs.device.base import RenderSettings
from tidegs.device.cpu import CpuDevice
from tidegs.gaussians.layout import RecordLayout

N, WIDTH, HEIGHT = 250, 70, 45


def with_stats(scene, isa, cuts: list[int], components: int = 3, scratch_budget: int = 1 << 30) -> Packed:
    """As `pack`, with a `stats` plane, zero at first."""
    layout = RecordLayout(512, 3, components, with_grads=True)
    device = CpuDevice(scratch_budget, isa)
    device.open_arena(layout, len(cuts))
    packed = Packed(device, layout, cuts, list(range(len(cuts) - 1)))
    for slot, a, b in zip(packed.slots, cuts[:-1], cuts[1:], strict=True):
        layout.view(device.arena[slot], "base")[:, : b - a] = scene.base[:, a:b]
        layout.view(device.arena[slot], "rest")[:, : b - a] = scene.rest[:, a:b]
    return packed


def reference_stats(scene, view, cameras: int, absgrad: bool = False) -> np.ndarray:
    """Norms in units of half the image, 1 where seen, radii as a share of the longer side; [3, n]."""
    base = torch.tensor(scene.base, dtype=torch.float64, requires_grad=True)
    rest = torch.tensor(scene.rest, dtype=torch.float64)
    sh = torch.cat([base[11:14].T[:, None], rest.reshape(15, 3, -1).permute(2, 0, 1)], 1)
    s = RenderSettings()
    out = render(
        base[0:3].T, base[3:7].T, torch.exp(base[7:10].T), torch.sigmoid(base[10]), sh,
        torch.tensor(view.viewmat, dtype=torch.float64), torch.tensor(view.K, dtype=torch.float64), WIDTH, HEIGHT,
        s.sh_degree, s.near_plane, s.far_plane, s.eps2d, s.radius_clip, s.rasterize_mode, s.background,
    )  # fmt: skip
    (out["image"].permute(2, 0, 1) * torch.tensor(image_grads(view)[0], dtype=torch.float64)).sum().backward()
    grads = (out["means2d_abs"] if absgrad else out["means2d"].grad).numpy()
    seen = (out["radii"] > 0).all(-1).numpy()
    norm = np.hypot(grads[:, 0] * WIDTH / 2 * cameras, grads[:, 1] * HEIGHT / 2 * cameras)
    radius = out["radii"].max(-1).values.numpy() / max(WIDTH, HEIGHT)
    return np.stack([norm, seen, radius]) * seen


@pytest.mark.parametrize("absgrad", [False, True], ids=["signed", "absolute"])
@pytest.mark.parametrize("isa", ISAS)
def test_statistics_equal_autograd(isa, absgrad):
    scene, view = random_scene(N, 1), look(WIDTH, HEIGHT, 1)
    packed = with_stats(scene, isa, [0, 100, N])
    expected = reference_stats(scene, view, 2, absgrad)
    adam = replace(ADAM, lrs=(0,) * 6, cameras=2)
    for times in (1, 2):  # sums, counts and maxima run on
        run(packed, view, RenderSettings(absgrad=absgrad), adam=adam)
        found = packed.rows("stats")
        np.testing.assert_allclose(found[0], times * expected[0], rtol=2e-3, atol=2e-4 * expected[0].max())
        np.testing.assert_array_equal(found[1], times * expected[1])
        np.testing.assert_allclose(found[2], expected[2], atol=1e-6)
    packed.device.close()


def test_absolute_gradients_are_greater_and_change_nothing_else():
    scene, view = random_scene(N, 2), look(WIDTH, HEIGHT, 2)
    states, norms = [], []
    for absgrad in (False, True):
        packed = with_stats(scene, None, [0, 100, N])
        run(packed, view, RenderSettings(absgrad=absgrad), adam=replace(ADAM, cameras=1))
        norms.append(packed.rows("stats")[0])
        states.append((packed.state(), packed.rows("stats")[1:].tobytes()))
        packed.device.close()
    assert states[0] == states[1]
    assert (norms[1] >= norms[0] * (1 - 1e-4)).all()
    assert norms[1].sum() > 1.2 * norms[0].sum()


def test_absolute_gradients_have_the_same_bits_in_ranges_of_tiles():
    scene, view = random_scene(N, 2), look(WIDTH, HEIGHT, 2)
    found = []
    for budget in (1 << 30, 1 << 14):
        packed = with_stats(scene, None, [0, 100, N], scratch_budget=budget)
        run(packed, view, RenderSettings(absgrad=True), adam=replace(ADAM, cameras=1))
        found.append((packed.device.counts().ranges > 1, packed.rows("stats").tobytes()))
        packed.device.close()
    assert [several for several, _ in found] == [False, True]
    assert found[0][1] == found[1][1]


def test_statistics_have_the_same_bits_however_a_camera_is_parted():
    scene, view = random_scene(N, 2), look(WIDTH, HEIGHT, 2)
    found = []
    for parts in (None, [[0], [1, 2], [3]]):
        packed = with_stats(scene, None, [0, 60, 100, 180, N])
        run(packed, view, adam=replace(ADAM, cameras=1), parts=parts, flags=STEP)
        found.append(packed.rows("stats").tobytes())
        packed.device.close()
    assert found[0] == found[1]


def test_no_statistics_where_none_are_asked_for():
    scene, view = random_scene(N, 2), look(WIDTH, HEIGHT, 2)
    packed = with_stats(scene, None, [0, N], components=2)
    run(packed, view)
    assert not packed.rows("stats").any()
    packed.device.close()


def test_regularisation_is_its_gradient():
    """One step of plain gradient descent by Adam's first moment: the difference is the regularisation's alone."""
    scene, view = random_scene(N, 3), look(WIDTH, HEIGHT, 3)
    moments = []
    for reg in (0.0, 1e3):
        packed = with_stats(scene, None, [0, N])
        run(packed, view, adam=replace(ADAM, cameras=1, opacity_reg=reg, scale_reg=2 * reg))
        seen = packed.rows("stats")[1] > 0
        moments.append(packed.rows("m_base").astype(np.float64) / (1 - np.float32(ADAM.beta1)))
        packed.device.close()
    assert 0 < seen.sum() < N
    o = 1 / (1 + np.exp(-scene.base[10].astype(np.float64)))
    difference = moments[1] - moments[0]
    np.testing.assert_allclose(difference[10][seen], (1e3 * o * (1 - o))[seen], rtol=1e-3, atol=0.05)
    scales = 2e3 * np.exp(scene.base[7:10].astype(np.float64))
    np.testing.assert_allclose(difference[7:10][:, seen], scales[:, seen], rtol=1e-3, atol=0.05)
    assert not difference[:, ~seen].any()
