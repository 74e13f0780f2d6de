"""Statistics, regularisation and slots to change: what densification asks of the CUDA device, beside the CPU device."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from tests.cuda.harness import ADAM, both, cuda_on_cpu, hold, layout_for, step
from tests.cuda.test_parity import FIRST, LAST, MIDDLE, assert_slots_agree, assert_updates_agree
from tests.cuda.test_training import WARM_UP, assert_same_scene, train_on_cuda
from tests.device.harness import look, random_scene
from tests.training import settings, train
from tidegs.device.base import MeanNoise, RenderSettings
from tidegs.store.block_store import BlockStore


@pytest.mark.parametrize("components", [2, 3])
@pytest.mark.parametrize("absgrad", [False, True], ids=["signed", "absolute"])
def test_statistics(absgrad, components):
    """Of two steps, one of them of three cameras, with blocks in parts."""
    cuda, cpu = both(random_scene(150, 7, spread=4.0), layout_for(stats=components))
    how, adam = RenderSettings(absgrad=absgrad), replace(ADAM, lrs=(0.0,) * 6, cameras=3)
    for held in (cuda, cpu):
        for i, flags in enumerate((FIRST, MIDDLE, LAST)):
            step(held, look(64, 48, seed=10 + i), how, flags=flags, parts=[[0], [1, 2]], adam=adam)
        step(held, look(40, 56, seed=3), how, adam=replace(adam, cameras=1))
    made, wanted = cuda.rows("stats"), cpu.rows("stats")
    assert made.shape == (components, 150)
    assert set(wanted[1].tolist()) > {0.0, 1.0, 2.0}
    np.testing.assert_array_equal(made[1], wanted[1])
    np.testing.assert_allclose(made[2:], wanted[2:], rtol=1e-6)
    np.testing.assert_allclose(made[0], wanted[0], rtol=1e-3, atol=1e-4 * wanted[0].max())
    before = cuda.rows("stats")
    step(cuda, look(40, 56, seed=3), how)  # a step that does not collect
    np.testing.assert_array_equal(cuda.rows("stats"), before)


@pytest.mark.parametrize("cameras", [1, 3])
def test_regularisation(cameras):
    """Added once a step, to rows that any of its cameras saw."""
    cuda, cpu = both(random_scene(150, 8, spread=4.0), layout_for())
    adam = replace(ADAM, opacity_reg=0.02, scale_reg=0.03)
    flags = (FIRST, MIDDLE, LAST) if cameras == 3 else (FIRST | LAST,)
    plain, _ = both(random_scene(150, 8, spread=4.0), layout_for())
    for i, flag in enumerate(flags):
        for held, how in ((cuda, adam), (cpu, adam), (plain, ADAM)):
            step(held, look(64, 48, seed=20 + i), flags=flag, adam=how)
    assert_slots_agree(cuda, cpu)
    assert np.abs(cuda.rows("m_base")[7:11] - plain.rows("m_base")[7:11]).max() > 1e-3


@pytest.mark.parametrize("cameras", [1, 3])
def test_dense_adam(cameras):
    """Rows that a step's cameras do not see go on as their moments say, and bounds hold wherever that takes them."""
    cuda, cpu = both(random_scene(150, 9, spread=4.0), layout_for())
    flags = (FIRST, MIDDLE, LAST) if cameras == 3 else (FIRST | LAST,)
    for i in range(3):
        adam = replace(ADAM, step=i + 1, dense=True)
        for j, flag in enumerate(flags):
            view, before = look(64, 48, seed=3 * i + j), cpu.rows("base")
            made, wanted = (step(held, view, flags=flag, parts=[[0, 2], [1]], adam=adam)[1] for held in (cuda, cpu))
        for one, other in zip(made, wanted, strict=True):
            assert_updates_agree(one, other)
            assert other.touched.all()
    moved = (cpu.rows("base") != before).all(0)
    assert moved.sum() > sum(int(w.visible.sum()) for w in wanted)
    assert_slots_agree(cuda, cpu)


@pytest.mark.parametrize("dense", [False, True])
def test_noise_on_means(dense):
    cuda, cpu = both(random_scene(150, 10, spread=4.0), layout_for())
    n, adam = len(cuda.slots), replace(ADAM, dense=dense)
    noise = MeanNoise(np.arange(n, dtype=np.uint64) + 2**63, np.linspace(1, 9, n, dtype=np.float32), 0.2)
    for held in (cuda, cpu):
        step(held, look(64, 48), adam=replace(adam, lrs=(0.0,) * 6))
    made, wanted = (held.device.add_noise(held.blocks(), noise, adam) for held in (cuda, cpu))
    np.testing.assert_allclose(cuda.rows("base"), cpu.rows("base"), rtol=1e-5, atol=1e-5)
    for name in ("lo", "hi", "extent", "mass", "dead"):
        np.testing.assert_allclose(getattr(made, name), getattr(wanted, name), rtol=1e-3 if dense else 1e-5, atol=1e-5)
    assert cuda.device.streams.checked > 0


def test_slots_are_edited_in_order_with_kernels_and_copies():
    held = hold(cuda_on_cpu(), random_scene(128, 3), layout_for())
    device = held.device
    step(held, look(40, 30))
    before = held.rows("base")
    with device.edit(held.slots) as slots:
        for slot in slots:
            held.layout.view(slot, "base")[10] = 3.0
    after = held.rows("base")
    assert (after[10] == 3).all()
    np.testing.assert_array_equal(np.delete(after, 10, 0), np.delete(before, 10, 0))
    assert device.streams.checked > 0


def test_a_run_of_dense_adam_is_the_cpu_devices(monkeypatch, village, tmp_path):
    """Blocks that rested catch up on the way."""
    sizes = {"device_memory": "70%", "host_memory": "30%", "order": "shuffle", "adam": "dense", "strategy": "none"}
    start, cpu, cuda = (tmp_path / name for name in ("start", "cpu", "cuda"))
    train(village, start, settings(max_steps=WARM_UP, **sizes))
    for result in (cpu, cuda):
        shutil.copytree(start, result)
    config = settings(max_steps=WARM_UP + 6, **sizes)
    train(village, cpu, config, resume=True)
    train_on_cuda(monkeypatch, village, cuda, config)
    assert_same_scene(cuda, cpu, start)


@pytest.mark.parametrize("strategy", ["default", "mcmc"])
def test_a_run_that_grows_is_the_cpu_devices(monkeypatch, village, tmp_path, strategy):
    """Both go on from a snapshot that the CPU device made, through two events. A row on the edge of a threshold may
    fall to the other side."""
    events = {"refine_start_iter": 4, "refine_every": 3, "grow_grad2d": 1e-4, "strategy": strategy, "cap_max": 100_000}
    sizes = {"device_memory": "70%", "host_memory": "30%", "order": "shuffle", **events}
    start, cpu, cuda = (tmp_path / name for name in ("start", "cpu", "cuda"))
    begun = train(village, start, settings(max_steps=5, **sizes)).summary["num_gaussians"]
    for result in (cpu, cuda):
        shutil.copytree(start, result)
    config = settings(max_steps=11, **sizes)
    wanted = train(village, cpu, config, resume=True).summary["num_gaussians"]
    outcome, device = train_on_cuda(monkeypatch, village, cuda, config)
    made = outcome.summary["num_gaussians"]
    assert wanted > 1.02 * begun
    assert abs(made - wanted) <= 0.005 * wanted
    assert device.streams.checked > 50
    counts = []
    for result in (cuda, cpu):
        with BlockStore.open(result / "store", readonly=True) as store:
            counts.append(store.table["count"].copy())
    n = min(map(len, counts))
    assert (counts[0][:n] == counts[1][:n]).mean() > 0.9
