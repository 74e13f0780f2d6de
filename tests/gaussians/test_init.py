"""First Gaussians: exact neighbours against brute force, gsplat's rule, and points that coincide."""

from __future__ import annotations

import math

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tidegs.gaussians.init import MIN_DISTANCE, SH_C0, from_points, neighbour_distances
from tidegs.gaussians.layout import BASE_FIELDS


def brute_force(xyz: np.ndarray) -> np.ndarray:
    """As gsplat's simple_trainer: knn(points, 4), the point itself left out, sqrt(mean(d^2))."""
    x = xyz.astype(np.float32).astype(np.float64)
    squares = ((x[:, None] - x[None]) ** 2).sum(-1)
    np.fill_diagonal(squares, np.inf)
    return np.sqrt(np.sort(squares, axis=1)[:, : min(3, len(x) - 1)].mean(axis=1))


# Coarse coordinates give many ties and duplicates, the wide ones a very uneven density.
@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(2, 90), st.just(3)),
        elements=st.one_of(st.integers(-2, 2).map(float), st.floats(-1e4, 1e4, width=32)),
    )
)
def test_neighbours_are_those_of_brute_force(xyz):
    np.testing.assert_allclose(neighbour_distances(xyz), brute_force(xyz), rtol=1e-6)


@pytest.mark.parametrize("kind", ["uniform", "clusters", "line", "grid"])
def test_neighbours_of_larger_clouds(kind):
    rng = np.random.default_rng(1)
    xyz = {
        "uniform": rng.random((3000, 3)),
        "clusters": np.repeat(rng.random((30, 3)), 100, axis=0) * 100 + 1e-3 * rng.normal(size=(3000, 3)),
        "line": np.stack([np.arange(3000.0)] * 3, axis=1),
        "grid": np.stack(np.meshgrid(*[np.arange(14.0)] * 3), axis=-1).reshape(-1, 3),
    }[kind]
    np.testing.assert_allclose(neighbour_distances(xyz), brute_force(xyz), rtol=1e-6)


def test_order_of_points_does_not_matter():
    rng = np.random.default_rng(2)
    xyz = rng.normal(size=(5000, 3)).astype(np.float32)
    shuffle = rng.permutation(5000)
    assert neighbour_distances(xyz)[shuffle].tobytes() == neighbour_distances(xyz[shuffle]).tobytes()


def test_threads_change_no_bit():
    xyz = np.random.default_rng(3).normal(size=(5000, 3))
    both = neighbour_distances(xyz)
    threads = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        assert neighbour_distances(xyz).tobytes() == both.tobytes()
    finally:
        numba.set_num_threads(threads)


def test_a_hundred_thousand_equal_points_end():
    assert neighbour_distances(np.ones((100_000, 3))).max() == 0


def test_few_points():
    assert neighbour_distances(np.zeros((0, 3))).shape == (0,)
    assert neighbour_distances(np.zeros((1, 3))).tolist() == [1.0]
    assert neighbour_distances(np.array([[0, 0, 0], [3, 4, 0]])).tolist() == [5.0, 5.0]
    three = neighbour_distances(np.array([[0, 0, 0], [1, 0, 0], [0, 2, 0]]))
    np.testing.assert_allclose(three, np.sqrt([2.5, 3.0, 4.5]), rtol=1e-6)


def test_from_points_follows_gsplat():
    rng = np.random.default_rng(4)
    xyz = rng.normal(size=(40, 3)).astype(np.float32)
    rgb = rng.integers(0, 256, (40, 3), dtype=np.uint8)
    rows = from_points(xyz, rgb, init_scale=0.5)
    assert rows.dtype == np.float32
    assert np.array_equal(rows[:, BASE_FIELDS["means"]], xyz)
    assert rows[:, BASE_FIELDS["quats"]].tolist() == [[1.0, 0.0, 0.0, 0.0]] * 40
    log_scales = np.log(0.5 * brute_force(xyz))
    np.testing.assert_allclose(rows[:, BASE_FIELDS["scales"]], np.stack([log_scales] * 3, axis=1), rtol=1e-5)
    opacities = 1 / (1 + np.exp(-rows[:, BASE_FIELDS["opacities"]].astype(np.float64)))
    np.testing.assert_allclose(opacities, 0.1, rtol=1e-6)
    np.testing.assert_allclose(rows[:, BASE_FIELDS["sh0"]] * SH_C0 + 0.5, rgb / 255, atol=1e-6)


def test_points_that_coincide_get_the_least_scale():
    rows = from_points(np.zeros((4, 3)), np.zeros((4, 3), np.uint8))
    np.testing.assert_allclose(rows[:, BASE_FIELDS["scales"]], math.log(MIN_DISTANCE), rtol=1e-6)
