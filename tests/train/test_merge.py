"""Sparse neighbours become one block."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from tests.train.test_settle_model import LAYOUT, Edited, make_case, settler_of
from tidegs.store.base import TABLE_DTYPE
from tidegs.train.merge import pairs_of
from tidegs.train.strategies.rows import planes_of
from tidegs.train.strategies.settings import DefaultStrategy

CAPACITY = 64


def row_of_blocks(counts, gap: float = 1.0) -> np.ndarray:
    """Unit cubes in a row, `gap` from one to the next."""
    table = np.zeros(len(counts), TABLE_DTYPE)
    table["count"], table["extent"] = counts, 0.1
    table["lo"][:, 0] = np.arange(len(counts)) * (1 + gap)
    table["hi"] = table["lo"] + 1
    return table


def pairs(table: np.ndarray) -> dict[int, int]:
    return pairs_of(table, np.flatnonzero(table["count"] >= 0).astype(np.int32), CAPACITY)


def test_sparse_neighbours_pair_up_and_the_higher_id_takes_the_rows():
    assert pairs(row_of_blocks([5, 16, 64, 1, 2], gap=0)) == {0: 1, 3: 4}
    assert pairs(row_of_blocks([5, 17, 64, 0, 2], gap=0)) == {}  # too full, full, dead


def test_what_lies_apart_or_is_unlike_stays_apart():
    assert pairs(row_of_blocks([5, 5], gap=3)) == {}
    table = row_of_blocks([5, 5], gap=0)
    assert pairs(table) == {0: 1}
    table["extent"][1] = 0.5
    assert pairs(table) == {}


def settle(strategy, counts) -> tuple[dict[int, np.ndarray], list[np.void]]:
    """Settles blocks at step 4, the first after a refine event; their rows are numbered by component 11."""
    case = make_case(0, 1)
    store, n = case.store, len(counts)
    store.table = row_of_blocks(counts, gap=0)
    slots = {b: np.zeros(LAYOUT.slot_nbytes, np.uint8) for b in range(n)}
    for b, count in enumerate(counts):
        planes = planes_of(LAYOUT, slots[b])
        planes.base[3, :count], planes.base[10, :count], planes.m_base[0, :count] = 1, 2, b + 1
        planes.base[11, :count] = 100 * b + np.arange(count)
    settler = settler_of(strategy, store, Edited(slots))
    ids = settler.owed(4, np.arange(n, dtype=np.int32))
    parts = [np.array([b], np.int32) for b in ids.tolist()]  # each in a pass of its own
    out = [settler.settle(_pass(part, i), 4) for i, part in enumerate(parts)]
    return slots, [found.rows[0] for found in out]


def _pass(ids: np.ndarray, part: int) -> SimpleNamespace:
    return SimpleNamespace(ids=ids, part=part, blocks=SimpleNamespace(slots=ids))


def test_rows_move_with_their_moments():
    slots, rows = settle(DefaultStrategy(refine_start_iter=1, refine_every=3), [5, 7])
    assert [int(r["count"]) for r in rows] == [0, 12]
    planes = planes_of(LAYOUT, slots[1])
    assert planes.base[11, :12].tolist() == [100, 101, 102, 103, 104, 105, 106, 0, 1, 2, 3, 4]
    assert planes.m_base[0, :12].tolist() == [2.0] * 7 + [1.0] * 5


def test_without_an_event_nothing_merges():
    _, rows = settle(DefaultStrategy(refine_start_iter=10), [5, 7])
    assert rows == []
