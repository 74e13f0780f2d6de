"""The CPU rasterizer against the torch reference of gsplat: pixels, and the gradient of every stored parameter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.device.harness import FIRST, ISAS, look, pack, random_scene, reference, run
from tidegs.device.base import RenderSettings

FIELDS = {
    "means": slice(0, 3),
    "quats": slice(3, 7),
    "scales": slice(7, 10),
    "opacities": slice(10, 11),
    "sh0": slice(11, 14),
    "shN": slice(14, 59),
}


def close(ours: np.ndarray, theirs: np.ndarray, what: str, tolerance: float = 1e-4, floor: float = 1e-12) -> None:
    """To `tolerance` of the greatest value, or of `floor` where that is greater; the reference is float64."""
    error = np.abs(ours - theirs).max() / max(np.abs(theirs).max(), floor)
    assert error < tolerance, f"{what}: {error:.2e}"


def check(scene, view, settings, isa, depth=True) -> None:
    packed = pack(scene, isa=isa)
    frame, (updates,) = run(packed, view, replace(settings, pose_grad=True), flags=FIRST, depth=depth)
    theirs = reference(scene, view, settings, depth)
    close(frame.image, theirs["image"], "image")
    close(frame.alpha, theirs["alpha"], "alpha")
    if depth:
        close(frame.depth, theirs["depth"], "depth")
    grads = packed.rows("grads")
    seen = grads[-1] == 1
    np.testing.assert_array_equal(seen, theirs["visible"])
    expected = np.concatenate([theirs["base"], theirs["rest"]])
    grads = np.where(seen, grads, 0)
    # Rotating a ball changes nothing, so quaternions are compared on the scale of the other geometry's gradients.
    floor = {"quats": max(float(np.abs(expected[FIELDS["scales"]]).max()), 1e-12)}
    for name, rows in FIELDS.items():
        if name == "shN":
            rows = slice(14, 11 + 3 * (settings.sh_degree + 1) ** 2)  # bands in use
        if rows.stop > rows.start:
            close(grads[rows], expected[rows], name, floor=floor.get(name, 1e-12))
    one_row = max(float(np.abs(expected[FIELDS["means"]]).max()), 1e-12)  # of which the rows' sum may be nearly nothing
    close(updates.pose.sum(0), theirs["pose"], "pose", floor=one_row)
    packed.device.close()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("mode", ["classic", "antialiased"])
@pytest.mark.parametrize("seed", range(3))
def test_pixels_and_gradients_equal_the_reference(isa, mode, seed):
    settings = RenderSettings(rasterize_mode=mode, background=(0.2, 0.5, 0.1))
    check(random_scene(250, seed), look(70, 45, seed), settings, isa)


@pytest.mark.parametrize("degree", [0, 1, 2])
def test_lower_sh_degrees_equal_the_reference(degree):
    check(random_scene(100, degree), look(40, 40, degree), RenderSettings(sh_degree=degree), None, depth=False)


@given(
    seed=st.integers(0, 2**20),
    log_scale=st.floats(-5, -0.5),
    needle=st.floats(0, 1.5),
    eps2d=st.sampled_from([0.3, 0.1, 1.0]),
    mode=st.sampled_from(["classic", "antialiased"]),
    fov=st.floats(20, 100),
    spread=st.floats(0.3, 6),
    near=st.sampled_from([0.01, 2.0]),
    radius_clip=st.sampled_from([0.0, 3.0]),
)
@hypothesis_settings(max_examples=25, deadline=None)
def test_any_scene_equals_the_reference(seed, log_scale, needle, eps2d, mode, fov, spread, near, radius_clip):
    scene = random_scene(60, seed, spread, log_scale, needle)
    settings = RenderSettings(
        eps2d=eps2d, rasterize_mode=mode, near_plane=near, far_plane=8.0, radius_clip=radius_clip, background=(1, 0, 0)
    )
    check(scene, look(37, 50, seed, fov=fov), settings, None)


def test_opaque_walls_stop_the_light():
    """Pixels saturate: transmittance stops at 1e-4, and what lies behind gets no gradient."""
    scene = random_scene(300, 3, spread=0.8, log_scale=-0.5, needle=0.3)
    scene.base[10] = 4.0
    check(scene, look(50, 50, 3), RenderSettings(background=(0.3, 0.3, 0.9)), None)


def test_alpha_is_clamped_without_gradient():
    scene = random_scene(3, 5, spread=0.1, log_scale=-1.0, needle=0.1)
    scene.base[10] = [30.0, 12.0, 8.0]
    check(scene, look(48, 48, 5), RenderSettings(), None)


@pytest.mark.parametrize("isa", ISAS)
def test_scalar_twin_renders_the_same_image(isa):
    scene, view, settings = random_scene(400, 6), look(90, 70, 6), RenderSettings(background=(0.1, 0.7, 0.4))
    scene.base[11:14] = np.abs(scene.base[11:14]) + 1
    scene.rest *= 0.1
    packed = pack(scene, isa=isa)
    frame, _ = run(packed, view, settings, flags=FIRST)
    image = np.zeros_like(frame.image)
    sums = np.zeros((packed.device.counts().splats, 10), np.float32)
    contributions = packed.device.twin(image, np.ascontiguousarray(frame.grad), sums)
    close(frame.image, image, "image")
    assert 0 < contributions < packed.device.counts().evaluations
    np.testing.assert_allclose(sums[:, 6:9].sum(), colour_gradients(packed), rtol=1e-3)


def colour_gradients(packed) -> float:
    """The sum of all splats' gradients by colour, from those of sh0; no colour of the scene may be clamped."""
    grads = packed.rows("grads")
    return float(grads[11:14][:, grads[-1] == 1].sum(dtype=np.float64) / 0.28209479177387814)
