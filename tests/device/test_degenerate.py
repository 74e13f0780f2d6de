"""Degenerate Gaussians give neither NaN nor Inf, in pixels, parameters or moments, and leave their neighbours alone."""

from __future__ import annotations

import numpy as np
import pytest

from tests.device.harness import ISAS, Scene, look, pack, random_scene, run
from tidegs.device.base import RenderSettings

EXTREMES = [-1e30, -1e6, -100.0, -20.0, -1e-30, 0.0, 1e-30, 1e-6, 20.0, 100.0, 1e6, 1e30]


def degenerate_scene(n: int, seed: int) -> Scene:
    """A scene in which about a third of the rows have extremes in some component."""
    rng = np.random.default_rng(seed)
    scene = random_scene(n, seed, spread=rng.uniform(0.1, 6), log_scale=rng.uniform(-6, 1), needle=rng.uniform(0, 3))
    for row in rng.choice(n, n // 3, replace=False):
        for _ in range(rng.integers(1, 4)):
            kind = rng.integers(6)
            if kind == 0:
                scene.base[rng.integers(0, 14), row] = rng.choice(EXTREMES)
            elif kind == 1:
                scene.base[3:7, row] = rng.choice(EXTREMES)
            elif kind == 2:
                scene.base[7:10, row] = rng.choice([-1e6, -100, -30, 5, 15, 30, 60, 1e6])
            elif kind == 3:
                scene.base[10, row] = rng.choice([-1e6, -5.537, -100, 10, 50, 1e6])
            elif kind == 4:
                scene.base[7:10, row] = rng.permutation([rng.choice([10, 20, 40]), rng.choice([-40, -5]), -2.0])
            else:
                scene.rest[rng.integers(0, 45), row] = rng.choice([-1e3, 1e3])
    return scene


def at_the_camera(scene: Scene, view, seed: int) -> None:
    """Moves some rows to the camera's centre, its plane, and behind it."""
    rng = np.random.default_rng(seed)
    R, t = view.viewmat[:3, :3], view.viewmat[:3, 3]
    for row in rng.choice(scene.n, scene.n // 6, replace=False):
        z = rng.choice([0.0, -1e-8, 1e-8, -1.0, 0.01, 0.0101, 1e9])
        scene.base[0:3, row] = R.T @ (np.array([rng.choice([0, 1e-6, 1, 1e4]), rng.choice([0, 1.0]), z]) - t)


def fuzz(seed: int, isa: str) -> int:
    rng = np.random.default_rng(seed)
    width, height = (int(v) for v in rng.integers(1, 70, 2))
    scene, view = degenerate_scene(40, seed), look(width, height, seed, distance=rng.uniform(0, 8))
    at_the_camera(scene, view, seed)
    settings = RenderSettings(
        rasterize_mode="antialiased" if rng.integers(2) else "classic",
        eps2d=float(rng.choice([0.0, 0.3])),
        sh_degree=int(rng.integers(0, 4)),
    )
    packed = pack(scene, isa=isa)
    frame, (update,) = run(packed, view, settings, depth=bool(rng.integers(2)))
    for name in ("image", "alpha"):
        assert np.isfinite(getattr(frame, name)).all(), (seed, name)
    finite = np.isfinite(scene.base).all(0)
    for plane in ("base", "rest", "m_base", "m_rest", "v_base", "v_rest"):
        assert np.isfinite(packed.rows(plane)[:, finite]).all(), (seed, plane)
    packed.device.close()
    return int(update.visible.sum())


@pytest.mark.parametrize("isa", ISAS)
def test_degenerate_scenes_stay_finite(isa):
    assert sum(fuzz(seed, isa) for seed in range(150)) > 1000


@pytest.mark.slow
def test_ten_thousand_degenerate_scenes_stay_finite():
    assert sum(fuzz(seed, ISAS[0]) for seed in range(10_000)) > 10_000


def test_nan_rows_are_not_drawn_and_not_updated():
    scene, view = random_scene(100, 1), look(50, 50, 1)
    clean = pack(scene)
    wanted, _ = run(clean, view)
    for component in range(11):
        extra = Scene(
            np.concatenate([scene.base, scene.base[:, :1]], 1), np.concatenate([scene.rest, scene.rest[:, :1]], 1)
        )
        extra.base[component, 100] = np.nan
        packed = pack(extra)
        frame, _ = run(packed, view)
        assert frame.image.tobytes() == wanted.image.tobytes(), component
        assert packed.rows("base")[:, :100].tobytes() == clean.rows("base").tobytes()
        assert not packed.rows("m_base")[:, 100].any()


def test_nothing_in_sight_is_background():
    scene, view = random_scene(10, 1), look(33, 17, 1)
    scene.base[10] = -20
    frame, (update,) = run(pack(scene), view, RenderSettings(background=(0.1, 0.2, 0.3)))
    np.testing.assert_array_equal(
        frame.image, np.float32([0.1, 0.2, 0.3])[:, None, None] * np.ones((1, 17, 33), np.float32)
    )
    assert not frame.alpha.any()
    assert update.visible.sum() == 0
