"""The generated city: rays, points and images agree with each other and with brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegs.data import synth_city
from tidegs.data.synth_cameras import AERIAL_FOCAL, STREET_FOCAL, aerial_grid, flythrough, intrinsics, street_path
from tidegs.data.synth_cast import GROUND, cast
from tidegs.data.synth_city import City, generate_city, render_view
from tidegs.data.synth_hash import kernel, seed_key
from tidegs.data.synth_layout import ASPHALT, BOX, ELLIPSOID, GABLE_X, GABLE_Y, GLASS
from tidegs.data.synth_sample import _permute, _shuffle
from tidegs.errors import ConfigError

W, H = 96, 64


@pytest.fixture(scope="module")
def city() -> City:
    return generate_city(3, 200.0)


def _contains(city: City, p: np.ndarray) -> np.ndarray:
    """bool [n]: which points lie in a solid, from the definitions of the solids and without the grid."""
    body = city.solids.body
    lo = np.stack([body["x0"], body["y0"], body["z0"]], 1)
    hi = np.stack([body["x1"], body["y1"], body["z1"]], 1)
    q = (2.0 * p[:, None] - lo - hi) / (hi - lo)
    height = (q[..., 2] + 1.0) / 2.0
    inside = np.abs(q).max(2) < 1.0
    kind = body["kind"]
    inside &= (kind != ELLIPSOID) | ((q**2).sum(2) < 1.0)
    inside &= (kind != GABLE_X) | (height + np.abs(q[..., 1]) < 1.0)
    inside &= (kind != GABLE_Y) | (height + np.abs(q[..., 0]) < 1.0)
    return inside.any(1)


def test_has_every_kind_of_solid(city: City) -> None:
    assert set(city.solids.body["kind"]) == {BOX, ELLIPSOID, GABLE_X, GABLE_Y}
    assert set(city.solids.use.ravel()) == {0, 1, 2, 3}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_a_ray_is_free_up_to_what_it_hits(city: City, seed: int) -> None:
    rng = np.random.default_rng(seed)
    eye = rng.uniform([-100, -100, 0.5], [100, 100, 60])
    if _contains(city, eye[None])[0]:
        return
    target = rng.uniform([-100, -100, 0], [100, 100, 30])
    d = (target - eye) / np.linalg.norm(target - eye)
    t, s, n = cast(city.solids, tuple(eye), tuple(d))
    free = eye + np.linspace(0.0, t - 1e-4, 400)[:, None] * d
    assert not _contains(city, free).any()
    assert (free[:, 2] > 0.0).all()
    assert np.dot(n, d) < 0.0 or s < 0
    beyond = eye + (t + 1e-5) * d
    if s >= 0:
        assert _contains(city, beyond[None])[0]
    elif s == GROUND:
        assert beyond[2] < 0.0
    else:
        assert np.linalg.norm(beyond) > city.solids.dome


def test_points_lie_on_the_surface_in_the_open(city: City) -> None:
    xyz = next(city.sample_points(400, 1))[0]
    steps = np.random.default_rng(0).normal(size=(40, 1, 3))
    steps *= 1e-3 / np.linalg.norm(steps, axis=2, keepdims=True)
    filled = np.stack([_contains(city, xyz + s) | ((xyz + s)[:, 2] < 0.0) for s in steps])
    assert filled.any(0).all()
    assert not filled.all(0).any()


def test_points_are_uniform_by_area(city: City) -> None:
    xyz = next(city.sample_points(600_000, 2))[0]
    s = city.solids
    inner = (np.abs(xyz[:, :2]) < 98.0).all(1) & (xyz[:, 2] == 0.0)
    off = np.abs((xyz[:, 0] - s.x0 + s.pitch_x / 2) % s.pitch_x - s.pitch_x / 2)
    road = (inner & (off < ASPHALT - 2.2)).sum() / (3 * 2 * (ASPHALT - 2.2) * 196.0)
    walls = area = 0.0
    for b in s.body[s.body["material"] == GLASS]:
        on = np.abs(xyz[:, 0] - b["x1"]) < 1e-9
        on &= (xyz[:, 1] > b["y0"]) & (xyz[:, 1] < b["y1"]) & (xyz[:, 2] > b["z0"]) & (xyz[:, 2] < b["z1"])
        walls, area = walls + on.sum(), area + (b["y1"] - b["y0"]) * (b["z1"] - b["z0"])
    assert area > 500.0
    print("RATIO", walls / area / road, walls, road)
    assert walls / area == pytest.approx(road, rel=0.1)


@pytest.mark.parametrize("view", ["nadir", "oblique", "street"])
def test_points_have_the_colours_of_the_images(city: City, view: str) -> None:
    if view == "street":
        viewmat, K = street_path(city, 20)[5], intrinsics(480, 320, STREET_FOCAL)
    else:
        viewmat, K = aerial_grid(city, 20)[5 if view == "nadir" else 15], intrinsics(480, 320, AERIAL_FOCAL)
    image = render_view(city, viewmat, K, 480, 320).astype(int)
    xyz, rgb = next(city.sample_points(200_000, 3))
    seen = np.flatnonzero(city.visible(viewmat, K, 480, 320, xyz))
    assert len(seen) > 1000
    cam = xyz[seen] @ viewmat[:3, :3].T + viewmat[:3, 3]
    uv = (cam[:, :2] / cam[:, 2:] * [K[0, 0], K[1, 1]] + K[:2, 2]).astype(int)
    pixels = image[uv[:, 1], uv[:, 0]]
    error = np.abs(pixels - rgb[seen]).mean(1)
    shuffled = np.abs(pixels - np.roll(rgb[seen], 1, axis=0)).mean(1)
    assert np.median(error) < 10.0
    assert np.median(error) < 0.35 * np.median(shuffled)


def test_hidden_points_are_not_visible(city: City) -> None:
    viewmat, K = aerial_grid(city, 20)[5], intrinsics(480, 320, AERIAL_FOCAL)
    eye = -viewmat[:3, :3].T @ viewmat[:3, 3]
    xyz = next(city.sample_points(20_000, 4))[0]
    seen = city.visible(viewmat, K, 480, 320, xyz)
    cam = xyz @ viewmat[:3, :3].T + viewmat[:3, 3]
    framed = (cam[:, 2] > 0) & (np.abs(cam[:, :2] / cam[:, 2:] * K[0, 0]) < [239, 159]).all(1)
    for i in np.flatnonzero(framed)[:2000]:
        d = (xyz[i] - eye) / np.linalg.norm(xyz[i] - eye)
        first = cast(city.solids, tuple(eye), tuple(d))[0]
        assert seen[i] == (first > np.linalg.norm(xyz[i] - eye) - 0.02)


def test_any_range_of_points_is_a_part_of_the_whole(city: City, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synth_city, "_CHUNK", 700)
    whole = [np.concatenate(a) for a in zip(*city.sample_points(5003, 7), strict=True)]
    for start, stop in ((0, 1), (699, 2101), (1300, 1301), (4000, 5003)):
        part = [np.concatenate(a) for a in zip(*city.sample_points(5003, 7, start, stop), strict=True)]
        for a, b in zip(part, whole, strict=True):
            np.testing.assert_array_equal(a, b[start:stop])
    assert len(np.unique(whole[0], axis=0)) == 5003


def test_neighbours_in_the_list_are_not_neighbours_in_space(city: City) -> None:
    xyz = next(city.sample_points(10_000, 5))[0]
    steps = np.linalg.norm(np.diff(xyz[:, :2], axis=0), axis=1)
    assert np.median(steps) > 60.0


def test_noise_has_the_stated_deviation(city: City) -> None:
    exact, noisy = (next(city.sample_points(30_000, 5, noise=s))[0] for s in (0.0, 0.5))
    np.testing.assert_allclose((noisy - exact).std(0), 0.5, rtol=0.03)
    np.testing.assert_allclose((noisy - exact).mean(0), 0.0, atol=0.015)


@kernel
def _places(n: int, key: int) -> list[int]:
    to = _shuffle(n, key)
    return [_permute(i, to) for i in range(n)]


@pytest.mark.parametrize("n", [1, 2, 3, 1000, 4096, 4097])
def test_the_order_is_a_permutation(n: int) -> None:
    key = seed_key(1, 2)
    assert sorted(_places(n, key)) == list(range(n))


def test_bytes_do_not_depend_on_threads(city: City, monkeypatch: pytest.MonkeyPatch) -> None:
    viewmat, K = aerial_grid(city, 8)[6], intrinsics(W, H, AERIAL_FOCAL)
    out = []
    for cores in (1, 5):
        monkeypatch.setattr(synth_city, "available_cores", lambda cores=cores: cores)
        again = generate_city(3, 200.0)
        out.append((render_view(again, viewmat, K, W, H), *next(again.sample_points(4001, 9, noise=0.1))))
    for a, b in zip(*out, strict=True):
        np.testing.assert_array_equal(a, b)


def test_another_seed_is_another_city(city: City) -> None:
    viewmat, K = aerial_grid(city, 8)[6], intrinsics(W, H, AERIAL_FOCAL)
    a, b = (render_view(c, viewmat, K, W, H).astype(int) for c in (city, generate_city(4, 200.0)))
    assert np.abs(a - b).mean() > 10.0


@pytest.mark.parametrize("extent", [(60.0, 60.0), (130.0, 310.0), (1000.0, 700.0)])
def test_cameras_stand_in_the_open_and_are_rotations(extent: tuple[float, float]) -> None:
    c = generate_city(1, extent)
    aerial, street, flight = aerial_grid(c, 33), street_path(c, 40), flythrough(c, 12)
    assert [len(v) for v in (aerial, street, flight)] == [33, 40, 12]
    for viewmat in (*aerial, *street, *flight):
        rot = viewmat[:3, :3]
        np.testing.assert_allclose(rot @ rot.T, np.eye(3), atol=1e-12)
        assert np.linalg.det(rot) == pytest.approx(1.0)
        eye = -rot.T @ viewmat[:3, 3]
        assert not _contains(c, eye[None])[0]
        assert eye[2] > 0.0
        assert np.linalg.norm(eye) < c.solids.dome
    np.testing.assert_allclose(aerial[:17, 2, :3], [[0, 0, -1]] * 17, atol=1e-12)
    assert (aerial[17:, 2, 2] < -0.5).all()
    assert (street[:, 1, 2] < -0.9).all()  # image y points down


@pytest.mark.parametrize("extent", [10.0, float("nan"), 1e6])
def test_refuses_an_extent_out_of_range(extent: float) -> None:
    with pytest.raises(ConfigError, match="extent"):
        generate_city(0, extent)


def test_refuses_a_camera_outside_the_world(city: City) -> None:
    viewmat = np.eye(4)
    viewmat[2, 3] = 1e4
    with pytest.raises(ConfigError, match="dome"):
        render_view(city, viewmat, intrinsics(W, H, 1.0), W, H)
