"""Selection of rows against a sort in memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegs.errors import ConfigError
from tidegs.gaussians.select import Selection, importance


def rows_of(scales: list[tuple[float, float, float]], opacities: list[float]) -> np.ndarray:
    rows = np.zeros((len(scales), 14), np.float32)
    rows[:, 0] = np.arange(len(scales))
    rows[:, 7:10] = scales
    rows[:, 10] = opacities
    return rows


@settings(max_examples=50, deadline=None)
@given(
    logits=st.lists(st.sampled_from([-3.0, 0.0, 0.001, 2.0, np.inf, -np.inf]), min_size=1, max_size=60),
    most=st.integers(1, 70),
    parts=st.integers(1, 5),
    crop=st.booleans(),
)
def test_the_greatest_are_kept_in_order(logits, most, parts, crop):
    rows = rows_of([(0.1 * (i % 3), -1, 0.5) for i in range(len(logits))], logits)
    box = (5.0, -1.0, -1.0, 40.0, 1.0, 1.0) if crop else None
    chunks = Selection(box, most).apply(lambda: np.array_split(rows, parts))
    found = np.concatenate([np.empty((0, 14), np.float32), *chunks])
    inside = rows[(rows[:, 0] >= 5) & (rows[:, 0] <= 40)] if crop else rows
    best = np.sort(np.argsort(-importance(inside), kind="stable")[:most])
    assert np.array_equal(found, inside[best])


def test_a_surface_shows_more_than_a_needle_and_a_faint_ball():
    disc, needle, ball = (0, 0, -20), (3, -20, -20), (0, 0, 0)
    values = importance(rows_of([disc, needle, ball], [2.0, 2.0, -5.0]))
    assert values[0] > values[2] > values[1]
    assert importance(rows_of([(np.nan, 0, 0)], [0.0]))[0] == 0


@pytest.mark.parametrize(
    ("values", "message"), [({"crop": (0, 0, 0, 1, -1, 1)}, "give least x y z"), ({"max_count": 0}, "at least 1")]
)
def test_wrong_selections_are_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        Selection(**values)
