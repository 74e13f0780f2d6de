"""Noise on means, beside the reference that goes row by row."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tests.device.harness import ADAM, ISAS, Packed, pack, random_scene
from tests.reference.noise import noised
from tidegs.device.base import AdamSettings, MeanNoise, NoisedBlocks
from tidegs.train.strategies.rows import planes_of

ROWS, CUTS = 3000, [0, 2048, 2049, 3000]  # a block that is two tasks, one of a single row, and one of neither


def made(adam: AdamSettings, isa: str | None = None, threads: int = 2, shuffle: int = 3) -> tuple[Packed, MeanNoise]:
    """Blocks with moments, and noise for them."""
    packed = pack(random_scene(ROWS, 4), CUTS, isa, shuffle=shuffle, capacity=2048)
    packed.device.set_threads(threads)
    rng = np.random.default_rng(5)
    for slot, count in zip(packed.slots, np.diff(CUTS), strict=True):
        planes = planes_of(packed.layout, packed.device.arena[slot])
        planes.base[10, :count] = rng.uniform(-6.0, -4.5, count)  # faint, as the opaque hardly move
        planes.base[10, :count:7] = -9.0
        planes.m_base[:, :count] = rng.normal(size=(14, count))
        planes.v_base[:, :count] = rng.random((14, count)) + 0.1
    keys = np.array([1, 2**63 + 12345, 2**64 - 1], np.uint64)
    return packed, MeanNoise(keys, np.array([0.5, 3.0, 20.0], np.float32), 0.005)


def move(packed: Packed, noise: MeanNoise, adam: AdamSettings) -> NoisedBlocks:
    return packed.device.add_noise(packed.blocks(), noise, adam)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("isa", ISAS)
def test_noise_is_the_references(isa, dense):
    adam = replace(ADAM, dense=dense)
    ours, noise = made(adam, isa)
    other, _ = made(adam, isa)
    before = ours.rows("base")
    found = move(ours, noise, adam)
    planes = [planes_of(other.layout, other.device.arena[slot]) for slot in other.slots]
    wanted = noised(planes, np.diff(CUTS).tolist(), noise, adam)
    after, expected = ours.rows("base"), other.rows("base")
    moved = np.abs(after[:3] - before[:3])
    assert np.median(moved) > 1e-6
    np.testing.assert_allclose(after[:3] - before[:3], expected[:3] - before[:3], rtol=1e-4, atol=2e-6)
    np.testing.assert_array_equal(after[3:], before[3:])
    np.testing.assert_allclose(found.lo, wanted.lo, atol=1e-5)
    np.testing.assert_allclose(found.hi, wanted.hi, atol=1e-5)
    np.testing.assert_allclose(found.extent, wanted.extent, rtol=1e-5)
    np.testing.assert_allclose(found.mass, wanted.mass, rtol=1e-5)
    np.testing.assert_array_equal(found.dead, wanted.dead)
    if not dense:
        for i, (a, b) in enumerate(itertools.pairwise(CUTS)):
            np.testing.assert_array_equal(found.lo[i], after[:3, a:b].min(1))
            np.testing.assert_array_equal(found.hi[i], after[:3, a:b].max(1))


def test_neither_threads_nor_slots_change_a_bit():
    states = []
    for threads, shuffle in ((1, 3), (2, 4), (4, 5)):
        packed, noise = made(ADAM, threads=threads, shuffle=shuffle)
        found = move(packed, noise, ADAM)
        states.append(packed.state() + found.mass.tobytes() + found.lo.tobytes() + found.extent.tobytes())
    assert states[0] == states[1] == states[2]


def test_noise_is_normal():
    """Of round rows of size one, half opaque, noise is the scale times the share that faint rows get."""
    packed = pack(random_scene(2048, 0), capacity=2048)
    slot = planes_of(packed.layout, packed.device.arena[packed.slots[0]])
    slot.base[:3], slot.base[7:10], slot.base[10] = 0.0, 0.0, -5.293305  # opacity 0.005: a half
    noise = MeanNoise(np.array([77], np.uint64), np.array([2.0], np.float32), 0.0)
    move(packed, noise, ADAM)
    shifts = packed.rows("base")[:3]
    assert abs(shifts.mean()) < 0.03
    assert shifts.std() == pytest.approx(1.0, rel=0.03)
    assert np.abs(np.corrcoef(shifts) - np.eye(3)).max() < 0.06
