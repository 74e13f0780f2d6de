"""Camera orders: endless, resumable, different in every epoch; tours that save loads."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.residency.residency_fakes import LAYOUT, SETTINGS, toy_table, toy_views
from tidegs.config import TrainConfig
from tidegs.residency.index import NEVER, build_index, use_after, uses_after
from tidegs.residency.schedule import Schedule
from tidegs.residency.tours import cache_tour, locality_tour
from tidegs.residency.visibility import Bounds, view_planes, working_sets
from tidegs.train.budgets import Budgets
from tidegs.train.order import choose_order


@settings(max_examples=60, deadline=None)
@given(
    cameras=st.integers(1, 40),
    batch=st.integers(1, 9),
    seed=st.integers(0, 2**63),
    start=st.integers(0, 60),
    window=st.integers(1, 12),
    toured=st.booleans(),
)
def test_steps_resume_anywhere_and_every_epoch_holds_every_camera(
    cameras: int, batch: int, seed: int, start: int, window: int, toured: bool
) -> None:
    tour = np.random.default_rng(0).permutation(cameras) if toured else None
    schedule = Schedule(cameras, batch, seed, tour, window)
    whole = list(islice(schedule.steps(), start + 20))
    assert list(schedule.steps(start, start + 20)) == whole[start:]
    visits = [c for step in whole for c in step.cameras]
    for first in range(0, len(visits) - cameras + 1, cameras):
        assert sorted(visits[first : first + cameras]) == list(range(cameras))


def test_epochs_and_seeds_differ_and_windows_stay_near_the_tour() -> None:
    shuffled = Schedule(100, 1, 7)
    assert shuffled.epoch(0).tolist() != shuffled.epoch(1).tolist() != Schedule(100, 1, 8).epoch(1).tolist()
    toured = Schedule(100, 1, 7, np.arange(100), window=8)
    orders = [toured.epoch(e).astype(int) for e in range(6)]
    assert len({tuple(o) for o in orders}) == 6
    for order in orders:
        steps = np.diff(order)
        around = np.minimum(abs(steps), 100 - abs(steps))
        assert around.max() < 16


def test_a_shuffle_is_the_same_on_every_machine() -> None:
    # Golden values of SplitMix64 keys, worked out by an independent reading of the published constants.
    def mix(x: int) -> int:
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    start = mix(mix(42) ^ 3)
    keys = [mix((start + i * 0x9E3779B97F4A7C15) % 2**64) for i in range(3, 13)]
    assert Schedule(10, 1, 42).epoch(3).tolist() == sorted(range(10), key=keys.__getitem__)


def sweeping_sets() -> tuple[np.ndarray, np.ndarray, int]:
    """Working sets of a 20 x 20 grid of windows of 4 x 4 blocks, row by row."""
    sets = [sorted((y + j) * 23 + x + i for j in range(4) for i in range(4)) for y in range(20) for x in range(20)]
    return np.arange(0, 401 * 16, 16), np.concatenate(sets).astype(np.int32), 23 * 23


def belady(offsets: np.ndarray, ids: np.ndarray, order: np.ndarray, capacity: int) -> int:
    """Least loads, in the plainest way."""
    sets = [set(ids[offsets[v] : offsets[v + 1]].tolist()) for v in order]
    cached: set[int] = set()
    loads = 0
    for t, needed in enumerate(sets):
        loads += len(needed - cached)
        cached |= needed
        far = {b: next((u for u in range(t + 1, len(sets)) if b in sets[u]), len(sets)) for b in cached - needed}
        for b in sorted(far, key=far.__getitem__, reverse=True)[: max(0, len(cached) - capacity)]:
            cached.remove(b)
    return loads


def test_a_cache_tour_visits_all_and_loads_far_less_than_a_sweep() -> None:
    offsets, ids, blocks = sweeping_sets()
    tour = cache_tour(offsets, ids, blocks, 24)
    assert sorted(tour.tolist()) == list(range(400))
    assert np.array_equal(tour, cache_tour(offsets, ids, blocks, 24))
    rows = belady(offsets, ids, np.arange(400), 24)
    shuffled = belady(offsets, ids, np.random.default_rng(0).permutation(400), 24)
    assert belady(offsets, ids, tour, 24) < rows < shuffled


def test_a_locality_tour_visits_all_and_is_short() -> None:
    views = toy_views(np.random.default_rng(5), 200)
    tour = locality_tour(views)
    assert sorted(tour.tolist()) == list(range(200))
    at = np.stack([-v.viewmat[:3, :3].T @ v.viewmat[:3, 3] for v in views])

    def length(order: np.ndarray) -> float:
        return float(np.linalg.norm(np.diff(at[order], axis=0), axis=1).sum())

    assert length(tour) < 0.25 * length(np.arange(200))


@pytest.mark.parametrize(
    ("arena", "height", "name"),
    [(150, 4.0, "shuffle"), (60, 1.0, "cache"), (1, 1.5, "trajectory"), (60, 40.0, "shuffle")],
)
def test_an_arena_that_a_view_overflows_gets_no_tour_by_misses(arena: int, height: float, name: str) -> None:
    """In core: shuffle. Views of a few of 150 blocks, in an arena of 60 and of 1. Views of all of them."""
    rng = np.random.default_rng(3)
    table, views = toy_table(rng, 150), toy_views(rng, 100, height)
    budgets = Budgets(LAYOUT, len(table), arena, 10, "as asked")
    order = choose_order(TrainConfig(), tuple(range(100)), views, table, budgets, SETTINGS)
    assert order.name == name
    assert (order.schedule.tour is None) == (name == "shuffle")
    asked = choose_order(TrainConfig(order="cache"), tuple(range(100)), views, table, budgets, SETTINGS)
    assert asked.name == "cache"


@pytest.mark.parametrize("base", [0, 1000])
def test_next_uses_are_those_of_a_search(base: int) -> None:
    rng = np.random.default_rng(6)
    bounds = Bounds(toy_table(rng, 150))
    planes = np.stack([view_planes(v, SETTINGS) for v in toy_views(rng, 9)])
    offsets, ids = working_sets(bounds, planes)
    order = rng.integers(0, 9, 60)
    index = build_index(offsets, ids, order, 150, base)
    sets = [ids[offsets[v] : offsets[v + 1]] for v in order]

    def search(block: int, after: int) -> float:
        return next((base + t for t in range(after - base + 1, 60) if block in sets[t]), NEVER)

    for t in range(60):
        for after in (t, t + 3):
            out = np.empty(len(sets[t]))
            uses_after(index, sets[t], base + t, base + after, out)
            assert out.tolist() == [search(b, base + after) for b in sets[t]]
        for b in sets[t][:5]:
            assert use_after(index, b, float(base + t), base + t + 7.5) == search(b, base + t + 7)
