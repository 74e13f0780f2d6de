"""Culling of blocks never misses a row that gsplat's projection keeps; and is not much coarser than it has to be."""

from __future__ import annotations

import numpy as np
import torch
from gsplat.cuda._torch_impl import _fully_fused_projection, _quat_scale_to_covar_preci
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegs.device.base import RenderSettings, View
from tidegs.residency.visibility import Bounds, needed_blocks, view_planes, working_sets
from tidegs.store.base import TABLE_DTYPE

ROWS = 8


def random_view(rng: np.random.Generator, reach: float) -> View:
    """Any rotation; the principal point may lie outside the image."""
    q, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    viewmat = np.eye(4)
    viewmat[:3, :3] = q * np.sign(np.linalg.det(q))
    viewmat[:3, 3] = -viewmat[:3, :3] @ rng.normal(size=3) * reach
    width, height = (int(n) for n in rng.integers(16, 400, 2))
    focal = rng.uniform(0.3, 3, 2) * width
    centre = rng.uniform(-0.3, 1.3, 2) * (width, height)
    K = np.array([[focal[0], 0, centre[0]], [0, focal[1], centre[1]], [0, 0, 1]])
    return View(viewmat.astype(np.float32), K.astype(np.float32), width, height)


def random_blocks(rng: np.random.Generator, blocks: int, reach: float) -> tuple[np.ndarray, ...]:
    """means, quats, scales: float32 [blocks, ROWS, ...]; boxes from points to large, sigmas over six decades."""
    middle = rng.normal(size=(blocks, 1, 3)) * reach
    spread = 10 ** rng.uniform(-4, 0.5, (blocks, 1, 1)) * (rng.random((blocks, 1, 1)) > 0.1)
    means = middle + rng.normal(size=(blocks, ROWS, 3)) * spread
    scales = 10 ** (rng.uniform(-5, 0.7, (blocks, 1, 1)) + rng.uniform(-1, 0, (blocks, ROWS, 3)))
    quats = rng.normal(size=(blocks, ROWS, 4))
    return tuple(a.astype(np.float32) for a in (means, quats, scales))


def table_of(means: np.ndarray, scales: np.ndarray) -> np.ndarray:
    table = np.zeros(len(means), TABLE_DTYPE)
    table["lo"], table["hi"] = means.min(1), means.max(1)
    table["extent"], table["count"] = scales.max((1, 2)), ROWS
    return table


def kept_rows(means: np.ndarray, quats: np.ndarray, scales: np.ndarray, view: View, how: RenderSettings) -> np.ndarray:
    """bool [blocks, ROWS]: radius > 0, by gsplat's own reference in float32."""
    flat = [torch.from_numpy(a.reshape(-1, a.shape[-1])) for a in (means, quats, scales)]
    quats_unit = torch.nn.functional.normalize(flat[1], dim=-1)
    covars, _ = _quat_scale_to_covar_preci(quats_unit, flat[2], compute_preci=False)
    radii = _fully_fused_projection(
        flat[0],
        covars,
        torch.from_numpy(view.viewmat)[None],
        torch.from_numpy(view.K)[None],
        view.width,
        view.height,
        how.eps2d,
        how.near_plane,
        how.far_plane,
    )[0]
    return (radii[0] > 0).all(-1).numpy().reshape(len(means), ROWS)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    reach=st.sampled_from([0.5, 3.0, 30.0, 1000.0]),
    near=st.sampled_from([0.01, 0.5]),
    far=st.sampled_from([5.0, 1e10]),
    eps2d=st.sampled_from([0.0, 0.3]),
)
def test_no_block_with_a_kept_row_is_missed(seed: int, reach: float, near: float, far: float, eps2d: float) -> None:
    rng = np.random.default_rng(seed)
    how = RenderSettings(near_plane=near, far_plane=far, eps2d=eps2d)
    view = random_view(rng, reach)
    means, quats, scales = random_blocks(rng, 100, reach)
    needed = needed_blocks(Bounds(table_of(means, scales)), view_planes(view, how))
    kept = np.flatnonzero(kept_rows(means, quats, scales, view, how).any(1))
    assert not set(kept.tolist()) - set(needed.tolist())


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), far_out=st.sampled_from([50.0, 2000.0]))
def test_rows_at_the_very_edge_of_the_image_are_not_missed(seed: int, far_out: float) -> None:
    """Blocks of one point, placed where mean2d + radius is within rounding of an edge."""
    rng = np.random.default_rng(seed)
    how = RenderSettings()
    view = random_view(rng, far_out)
    n = 256
    z = 10 ** rng.uniform(-1.7, 1.7, n)  # near ones magnify the rounding of far-out positions
    scales = np.repeat((z * 10 ** rng.uniform(-5, -0.5, n))[:, None, None], ROWS, 1).repeat(3, 2).astype(np.float32)
    K = view.K.astype(np.float64)
    u = np.where(rng.random(n) < 0.5, 0, view.width) + rng.normal(size=n) * (3 + 3 * scales[:, 0, 0] * K[0, 0] / z)
    v = rng.uniform(0, view.height, n)
    camera = np.stack([(u - K[0, 2]) / K[0, 0] * z, (v - K[1, 2]) / K[1, 1] * z, z], 1)
    viewmat = view.viewmat.astype(np.float64)
    world = (camera - viewmat[:3, 3]) @ viewmat[:3, :3]
    means = np.repeat(world[:, None], ROWS, 1).astype(np.float32)
    quats = np.zeros((n, ROWS, 4), np.float32)
    quats[..., 0] = 1
    needed = needed_blocks(Bounds(table_of(means, scales)), view_planes(view, how))
    kept = np.flatnonzero(kept_rows(means, quats, scales, view, how).any(1))
    assert not set(kept.tolist()) - set(needed.tolist())


def test_few_blocks_are_needed_in_vain() -> None:
    """Looking down at a plain of small splats: what is needed is little more than what is seen."""
    rng = np.random.default_rng(1)
    side = np.arange(64)
    middle = np.stack([*(a.ravel() for a in np.meshgrid(side, side)), np.zeros(64 * 64)], 1)
    means = (middle[:, None] + rng.uniform(-0.5, 0.5, (len(middle), ROWS, 3)) * (1, 1, 0.1)).astype(np.float32)
    scales = np.full((len(middle), ROWS, 3), 0.01, np.float32)
    quats = np.tile(np.float32([1, 0, 0, 0]), (len(middle), ROWS, 1))
    viewmat = np.eye(4)
    viewmat[:3, :3] = np.diag([1.0, -1.0, -1.0])
    viewmat[:3, 3] = -viewmat[:3, :3] @ np.array([32.0, 32, 20])
    view = View(viewmat.astype(np.float32), np.float32([[300, 0, 150], [0, 300, 150], [0, 0, 1]]), 300, 300)
    needed = needed_blocks(Bounds(table_of(means, scales)), view_planes(view, RenderSettings()))
    seen = np.flatnonzero(kept_rows(means, quats, scales, view, RenderSettings()).any(1))
    assert 300 < len(seen) <= len(needed) < 1.25 * len(seen)


def test_updates_free_blocks_and_working_sets_agree_with_fresh_bounds() -> None:
    rng = np.random.default_rng(2)
    means, _, scales = random_blocks(rng, 500, 3.0)
    table = table_of(means, scales)
    bounds = Bounds(table)
    changed = np.sort(rng.choice(500, 200, replace=False)).astype(np.int32)
    table["lo"][changed] += 1
    table["hi"][changed] += 1.5
    table["count"][changed[::4]] = 0
    bounds.update(changed, table)
    fresh = Bounds(table)
    planes = np.stack([view_planes(random_view(rng, 3.0), RenderSettings()) for _ in range(20)])
    offsets, ids = working_sets(bounds, planes)
    for i, one in enumerate(planes):
        expected = needed_blocks(fresh, one)
        assert np.array_equal(needed_blocks(bounds, one), expected)
        assert np.array_equal(ids[offsets[i] : offsets[i + 1]], expected)
        assert not set(expected.tolist()) & set(changed[::4].tolist())
        wider = view_planes(random_view(np.random.default_rng(i), 3.0), RenderSettings(), inflate=0.1)
        plain = view_planes(random_view(np.random.default_rng(i), 3.0), RenderSettings())
        assert set(needed_blocks(bounds, plain).tolist()) <= set(needed_blocks(bounds, wider).tolist())


def test_bounds_that_are_not_finite_count_as_needed() -> None:
    means, _, scales = random_blocks(np.random.default_rng(3), 70, 1.0)
    table = table_of(means, scales)
    table["lo"][5] = np.nan
    table["extent"][6] = np.inf
    view = random_view(np.random.default_rng(4), 1.0)
    assert {5, 6} <= set(needed_blocks(Bounds(table), view_planes(view, RenderSettings())).tolist())
