"""Strategies decide as gsplat's own classes do, given the same tensors and the same random numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gsplat import strategy as theirs
from gsplat.strategy import ops

from tests.reference.noise import add_noise
from tidegs.gaussians.layout import RecordLayout
from tidegs.train.strategies.chance import normals, stream
from tidegs.train.strategies.refine import refine, reset_opacities
from tidegs.train.strategies.relocate import (
    BINOMS,
    add_children,
    dead_rows,
    divided,
    draw_rows,
    opacity_mass,
)
from tidegs.train.strategies.rows import Planes, put_rows
from tidegs.train.strategies.settings import DefaultStrategy, MCMCStrategy, events_between, latest_event

FIELDS = {"means": (0, 3), "quats": (3, 7), "scales": (7, 10), "opacities": (10, 11), "sh0": (11, 14)}
SEED, BLOCK = 7, 3


def random_planes(count: int, capacity: int = 256, seed: int = 0, stat_components: int = 3) -> Planes:
    """Rows of which some are to be duplicated, split, pruned, or are dead."""
    layout = RecordLayout(capacity, 1, stat_components)
    rng = np.random.default_rng(seed)
    base = rng.normal(size=(14, capacity)).astype(np.float32)
    base[7:10] = rng.uniform(-7, -1, (3, capacity))
    base[10] = rng.uniform(-8, 4, capacity)
    stats = np.zeros((stat_components, capacity), np.float32)
    if stat_components:
        stats[0] = rng.uniform(0, 2e-3, capacity)
        stats[1] = rng.integers(0, 8, capacity)
    if stat_components == 3:
        stats[2] = rng.uniform(0, 0.2, capacity)

    def some(k: int) -> np.ndarray:
        return rng.normal(size=(k, capacity)).astype(np.float32)

    k = layout.rest_components
    return Planes(base, some(k), some(14), some(k), some(14), some(k), stats)


class Gsplat:
    """The same rows as gsplat keeps them, with torch's Adam."""

    def __init__(self, planes: Planes, count: int) -> None:
        self.params, self.optimizers = {}, {}
        for name, (a, z) in FIELDS.items():
            self._add(name, planes.base[a:z], planes.m_base[a:z], planes.v_base[a:z], count)
        self._add("shN", planes.rest, planes.m_rest, planes.v_rest, count)
        self.state = {"grad2d": torch.tensor(planes.stats[0, :count]), "count": torch.tensor(planes.stats[1, :count])}
        if len(planes.stats) == 3:
            self.state["radii"] = torch.tensor(planes.stats[2, :count])

    def _add(self, name: str, values: np.ndarray, m: np.ndarray, v: np.ndarray, count: int) -> None:
        def tensor(x: np.ndarray) -> torch.Tensor:
            t = torch.tensor(x[:, :count].T.copy())
            return t[:, 0] if name == "opacities" else t

        p = self.params[name] = torch.nn.Parameter(tensor(values))
        self.optimizers[name] = torch.optim.Adam([p], lr=0.1)
        state = {"step": torch.tensor(1.0), "exp_avg": tensor(m), "exp_avg_sq": tensor(v)}
        self.optimizers[name].state[p] = state

    def check(self, planes: Planes, count: int) -> None:
        """Parameters to float32 rounding; moments to the bit."""
        groups = {name: (planes.base[a:z], planes.m_base[a:z], planes.v_base[a:z]) for name, (a, z) in FIELDS.items()}
        groups["shN"] = (planes.rest, planes.m_rest, planes.v_rest)
        for name, (values, m, v) in groups.items():
            p = self.params[name]
            assert len(p) == count
            shape = (count, -1)
            np.testing.assert_allclose(values[:, :count].T, p.detach().reshape(shape), rtol=2e-5, atol=2e-6)
            state = self.optimizers[name].state[p]
            np.testing.assert_array_equal(m[:, :count].T, state["exp_avg"].reshape(shape))
            np.testing.assert_array_equal(v[:, :count].T, state["exp_avg_sq"].reshape(shape))


@pytest.mark.parametrize("step", [150, 450])  # before the first reset; after it, when large ones are pruned
@pytest.mark.parametrize("revised", [False, True])
@pytest.mark.parametrize("scale2d", [0, 1000])
def test_refine_is_gsplats(monkeypatch, step, revised, scale2d):
    settings = {"refine_start_iter": 100, "refine_every": 50, "reset_every": 300, "revised_opacity": revised}
    settings |= {"refine_scale2d_stop_iter": scale2d, "grow_grad2d": 4e-4}
    ours, count, extent = DefaultStrategy(**settings), 200, 3.0
    planes = random_planes(count)
    reference = Gsplat(planes, count)
    strategy = theirs.DefaultStrategy(**settings)
    reference.state["scene_scale"] = extent

    grads = planes.stats[0, :count] / np.maximum(planes.stats[1, :count], 1)
    large = np.exp(planes.base[7:10, :count]).max(0) > ours.grow_scale3d * extent
    split = (grads > ours.grow_grad2d) & large | ((planes.stats[2, :count] > ours.grow_scale2d) if scale2d else False)
    key = stream(SEED, step, BLOCK)
    chance = np.stack([normals(key, np.flatnonzero(split), first) for first in (0, 3)])
    monkeypatch.setattr(torch, "randn", lambda *size, **_: torch.tensor(chance).reshape(size))
    duplicated, halved = strategy._grow_gs(reference.params, reference.optimizers, reference.state, step)
    pruned = strategy._prune_gs(reference.params, reference.optimizers, reference.state, step)
    assert min(duplicated, halved, pruned) > 5

    found = refine(ours, planes, count, step, extent, room=1000, place=(SEED, BLOCK))
    assert found is not None
    reference.check(*found)
    assert not found[0].stats.any()


def test_a_block_that_may_not_grow_still_prunes():
    count = 200
    planes, settings = random_planes(count), DefaultStrategy()
    found = refine(settings, planes, count, 600, 3.0, room=0, place=(SEED, BLOCK))
    assert found is not None
    kept = 1 / (1 + np.exp(-planes.base[10, :count])) >= settings.prune_opa
    assert 0 < kept.sum() < count
    np.testing.assert_array_equal(found[0].base, planes.base[:, :count][:, kept])


def test_a_refine_without_statistics_changes_nothing():
    count = 200
    planes = random_planes(count)
    planes.stats[:] = 0
    planes.base[10] = 1
    before = planes.base.copy()
    assert refine(DefaultStrategy(), planes, count, 600, 3.0, room=1000, place=(SEED, BLOCK)) is None
    np.testing.assert_array_equal(before, planes.base)


def test_reset_is_gsplats():
    count = 200
    planes = random_planes(count)
    reference = Gsplat(planes, count)
    ops.reset_opa(reference.params, reference.optimizers, reference.state, value=0.01)
    reset_opacities(DefaultStrategy(), planes, count)
    reference.check(planes, count)


@pytest.mark.parametrize("k", [1.0, 0.1])
def test_default_events_fall_on_gsplats_steps(k):
    strategy = DefaultStrategy(pause_refine_after_reset=200).scaled(k)
    refines = [e.step for e in events_between(strategy, 0, 40_000) if e.kind == "refine"]
    resets = [e.step for e in events_between(strategy, 0, 40_000) if e.kind == "reset"]
    assert [round(s / k) for s in resets] == [3000, 6000, 9000, 12_000]
    expected = [s for s in range(600, 15_000, 100) if s % 3000 >= 200]
    assert [round(s / k) for s in refines] == expected
    assert latest_event(strategy, 40_000) == refines[-1]
    assert latest_event(strategy, refines[0]) == 0


def reference_relocation(opacities, scales, ratios, binoms):
    """gsplat's relocation kernel (RelocationCUDA.cu), which needs a GPU, in float64."""
    new_opacities, new_scales = torch.empty_like(opacities), torch.empty_like(scales)
    for i, (o, s, n) in enumerate(zip(opacities.double(), scales.double(), ratios.clamp(1, len(binoms)), strict=True)):
        new = 1 - (1 - o) ** (1 / n)
        total = sum(
            binoms[j - 1, k].double() * (-1) ** k / (k + 1) ** 0.5 * new ** (k + 1)
            for j in range(1, int(n) + 1)
            for k in range(j)
        )
        new_opacities[i], new_scales[i] = new, o / total * s
    return new_opacities, new_scales


def use_draws(monkeypatch, draws: np.ndarray) -> None:
    monkeypatch.setattr(ops, "_multinomial_sample", lambda weights, n, replacement: torch.tensor(draws[:n]).long())
    monkeypatch.setattr(ops, "compute_relocation", reference_relocation)


def test_relocation_is_gsplats(monkeypatch):
    settings, count = MCMCStrategy(), 200
    planes = random_planes(count, stat_components=0)
    dead = dead_rows(planes, count, settings.min_opacity)
    assert 5 < dead.sum() < 150
    n, key = int(dead.sum()), stream(SEED, 600, BLOCK)
    draws = draw_rows(planes.base, count, settings.min_opacity, n, key, 0)
    assert not dead[draws].any()
    alive = np.cumsum(~dead) - 1
    use_draws(monkeypatch, alive[draws])
    reference = Gsplat(_with_stats(planes), count)
    moments = ("exp_avg", "exp_avg_sq")
    for name, p in reference.params.items():  # gsplat lets children have what the dead row had
        for key_name in moments:
            reference.optimizers[name].state[p][key_name][torch.tensor(dead)] = 0
    binoms = torch.tensor(BINOMS)
    theirs.MCMCStrategy()._relocate_gs(reference.params, reference.optimizers, binoms)
    found = add_children(planes, count, dead, n, settings.min_opacity, key, 0)
    reference.check(*found)


def test_growth_is_gsplats(monkeypatch):
    settings, count, n = MCMCStrategy(), 200, 10
    planes = random_planes(count, stat_components=0)
    key = stream(SEED, 600, BLOCK)
    use_draws(monkeypatch, draw_rows(planes.base, count, -1.0, n, key, 0))
    reference = Gsplat(_with_stats(planes), count)
    added = theirs.MCMCStrategy()._add_new_gs(reference.params, reference.optimizers, torch.tensor(BINOMS))
    assert added == n
    found = add_children(planes, count, None, n, settings.min_opacity, key, 0)
    reference.check(*found)


def _with_stats(planes: Planes) -> Planes:
    return planes._replace(stats=np.zeros((2, planes.base.shape[1]), np.float32))


@pytest.mark.parametrize("ratio", [1, 2, 5, 51, 60])
def test_a_divided_row_renders_as_before(ratio):
    """Along a ray through the centre, `ratio` rows of the new opacity are as opaque as the one was."""
    new, factor = divided(0.7, ratio, BINOMS)
    assert 1 - (1 - new) ** min(ratio, 51) == pytest.approx(0.7)
    assert 0 < factor <= 1.0001 or ratio > 1


def test_children_beyond_the_dead_come_behind():
    count = 100
    planes = random_planes(count, stat_components=0)
    dead = np.zeros(count, bool)
    dead[[3, 50]] = True
    planes.base[10, [3, 50]] = -9
    more, n = add_children(planes, count, dead, 5, 0.005, stream(SEED, 1, BLOCK), 0)
    assert n == count + 3
    fewer, n = add_children(planes, count, dead, 0, 0.005, stream(SEED, 1, BLOCK), 0)
    assert n == count - 2
    np.testing.assert_array_equal(fewer.base[:, :3], planes.base[:, :3])
    np.testing.assert_array_equal(fewer.base[:, 3], planes.base[:, 4])
    assert not more.m_base[:, [3, 50, 100, 101, 102]].any()


def test_noise_is_gsplats(monkeypatch):
    count, scaler = 200, 0.3
    planes = random_planes(count, stat_components=0)
    planes.base[10, :40] = -9
    key = stream(SEED, 10, BLOCK)
    reference = Gsplat(_with_stats(planes), count)
    chance = torch.tensor(normals(key, np.arange(count), 0))
    monkeypatch.setattr(torch, "randn_like", lambda _: chance)
    monkeypatch.setattr(ops, "quat_scale_to_covar_preci", _covariances)
    ops.inject_noise_to_position(reference.params, reference.optimizers, {}, scaler)
    before = planes.base[:3].copy()
    add_noise(planes.base, count, np.float32(scaler), key)
    assert np.abs(planes.base[:3, :40] - before[:, :40]).max() > 1e-4
    reference.check(planes, count)


def _covariances(quats, scales, **_):
    from gsplat.cuda._torch_impl import _quat_scale_to_covar_preci

    return _quat_scale_to_covar_preci(quats, scales, compute_covar=True, compute_preci=False, triu=False)


def test_mass_is_what_can_be_drawn():
    planes = random_planes(200, stat_components=0)
    mass, dead = opacity_mass(planes.base, 200, np.float32(0.005))
    o = 1 / (1 + np.exp(-planes.base[10, :200].astype(np.float64)))
    assert dead == (o <= 0.005).sum()
    assert mass == pytest.approx(o[o > 0.005].sum(), rel=1e-5)


def test_draws_follow_opacity():
    base = np.zeros((14, 64), np.float32)
    base[10] = -20
    base[10, [2, 5]] = [np.log(0.75 / 0.25), np.log(0.25 / 0.75)]
    draws = draw_rows(base, 64, 0.005, 4000, stream(1, 2, 3), 0)
    assert set(draws) == {2, 5}
    assert np.mean(draws == 2) == pytest.approx(0.75, abs=0.03)


def test_random_numbers_are_normal_and_keyed():
    key = stream(1, 2, 3)
    values = normals(key, np.arange(20_000), 0)
    assert abs(values.mean()) < 0.01
    assert values.std() == pytest.approx(1, abs=0.01)
    assert abs(np.corrcoef(values.T)[0, 1]) < 0.02
    for other in (stream(2, 2, 3), stream(1, 3, 3), stream(1, 2, 4)):
        assert abs(np.corrcoef(values[:, 0], normals(other, np.arange(20_000), 0)[:, 0])[0, 1]) < 0.03
    np.testing.assert_array_equal(values[[5, 9]], normals(key, np.array([5, 9]), 0))


def test_rows_can_be_put_back():
    planes, other = random_planes(100), random_planes(60, 64, seed=1)
    put_rows(planes, other)
    np.testing.assert_array_equal(planes.base[:, :64], other.base)
