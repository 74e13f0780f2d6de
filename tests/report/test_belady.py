"""Belady's bound against an exhaustive search, and its limits."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegs.report.belady import cut, least_loads

BLOCKS = 6


def csr(sets: list[set[int]]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.cumsum([0, *map(len, sets)]).astype(np.int64)
    return offsets, np.array([b for s in sets for b in sorted(s)], np.int32)


def best_of_all(sets: list[set[int]], order: list[int], capacity: int) -> int:
    """Loads of the best choice of victims at each visit, by trying all."""
    states = {frozenset(): 0}
    for view in order:
        needed = frozenset(sets[view])
        after: dict[frozenset[int], int] = {}
        for state, loads in states.items():
            held, cost = state | needed, loads + len(needed - state)
            if len(needed) <= capacity:  # all of it is resident at once; some of the others stay
                others = sorted(held - needed)
                keep = min(len(others), capacity - len(needed))
                choices = [needed | set(c) for c in combinations(others, keep)]
            else:
                choices = [frozenset(c) for c in combinations(sorted(held), capacity)]
            for choice in choices:
                after[frozenset(choice)] = min(cost, after.get(frozenset(choice), cost))
        states = after
    return min(states.values())


views = st.lists(st.sets(st.integers(0, BLOCKS - 1), max_size=4), min_size=1, max_size=4)


@settings(max_examples=150, deadline=None)
@given(views, st.lists(st.integers(0, 3), min_size=1, max_size=7), st.integers(1, BLOCKS))
def test_no_choice_of_victims_loads_less(sets, order, capacity):
    order = [v % len(sets) for v in order]
    offsets, ids = csr(sets)
    assert least_loads(offsets, ids, np.array(order), BLOCKS, capacity) == best_of_all(sets, order, capacity)


def test_a_cache_that_holds_all_loads_each_block_once():
    rng = np.random.default_rng(3)
    sets = [set(rng.choice(500, 60, replace=False).tolist()) for _ in range(40)]
    offsets, ids = csr(sets)
    order = rng.integers(0, 40, 300)
    loads = [least_loads(offsets, ids, order, 500, c) for c in (60, 100, 200, 400, 500)]
    assert loads[-1] == len(set().union(*(sets[v] for v in order)))
    assert loads == sorted(loads, reverse=True)
    assert loads[0] > 2 * loads[-1]


def test_a_long_order_is_cut_at_a_whole_visit():
    offsets, _ = csr([{0, 1, 2}, {3}])
    order = np.array([0, 1, 0, 1, 0])
    assert cut(offsets, order, most=8).tolist() == [0, 1, 0, 1]
    assert cut(offsets, order, most=1).tolist() == [0]
