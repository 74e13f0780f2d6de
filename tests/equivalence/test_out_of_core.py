"""Out-of-core training gives the bits of in-core training (I2): any budgets, any parts, one camera a step or more."""

from __future__ import annotations

import shutil

import pytest

from tests.training import assert_same, settings, train
from tidegs.data.load import load_scene


def run_both(scene, tmp_path, **changes):
    """Trains in core and out of core; returns both outcomes after comparing the stores."""
    out = train(scene, tmp_path / "out", settings(device_memory="15%", host_memory="30%", **changes))
    (tmp_path / "in" / "ckpts").mkdir(parents=True)  # the order "cache" is shaped to the capacities: take it along
    shutil.copy(tmp_path / "out" / "ckpts" / "order.json", tmp_path / "in" / "ckpts" / "order.json")
    in_core = train(scene, tmp_path / "in", settings(device_memory="100%", **changes))
    assert in_core.finished  # a SIGTERM ends a run early, and its store differs
    assert out.finished
    assert_same(tmp_path / "in" / "store", tmp_path / "out" / "store")
    assert in_core.summary["in_core"]
    assert not out.summary["in_core"]
    assert out.summary["moved_bytes"]["read"] > out.summary["budget_bytes"]["scene"]  # it really streamed
    assert out.summary["dropped_blocks"] == 0
    return in_core, out


@pytest.mark.parametrize("batch", [1, 4])
def test_generated_city(city, tmp_path, batch):
    run_both(city, tmp_path, max_steps=200 if batch == 1 else 60, batch_size=batch, order="shuffle")


def test_real_scene(shared, tmp_path):
    scene = shared / "scenes" / "southbuilding"
    run_both(scene, tmp_path, max_steps=200, data_factor=4, order="shuffle")


def test_real_scene_in_batches(shared, tmp_path):
    scene = shared / "scenes" / "southbuilding"
    run_both(scene, tmp_path, max_steps=30, data_factor=4, batch_size=4, order="shuffle")


@pytest.mark.parametrize("order", ["trajectory", "cache"])
def test_other_orders_with_antialiasing(city, tmp_path, order):
    run_both(city, tmp_path, max_steps=40, order=order, antialiased=True)


def test_cameras_that_exceed_the_arena_alone_are_split(city, tmp_path):
    """A camera needs several times what a pass may have: it is handled in parts, and the bits stay."""
    whole = train(city, tmp_path / "in", settings(device_memory="100%", order="shuffle"))
    split = train(city, tmp_path / "out", settings(device_memory="100%", order="shuffle", max_pass_blocks=12))
    assert split.summary["passes"] > 2 * whole.summary["passes"]
    assert_same(tmp_path / "in" / "store", tmp_path / "out" / "store")


def test_the_number_of_threads_does_not_matter(city, tmp_path):
    for threads in (1, 3):
        train(city, tmp_path / str(threads), settings(threads=threads, order="shuffle"))
    assert_same(tmp_path / "1" / "store", tmp_path / "3" / "store")


def test_the_city_has_more_blocks_than_a_camera_sees(city):
    """The other tests rely on it."""
    assert len(load_scene(city).cameras) >= 12
