"""Short of device memory: the work is split, counted, and ends in the same numbers; or in one sentence."""

from __future__ import annotations

import mmap
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.cuda.harness import ADAM, BOTH, Held, cuda_on_cpu, hold, layout_for, step, target_of
from tests.cuda.test_parity import assert_images_agree
from tests.device.harness import look, random_scene
from tidegs.config import TrainConfig
from tidegs.device.base import RenderSettings
from tidegs.device.cuda import memory, pinned, render, ssim
from tidegs.device.cuda.arena import Arena
from tidegs.device.cuda.windows import Window
from tidegs.errors import CapacityError, DeviceError
from tidegs.train.budgets import choose_budgets

VIEW = look(70, 50, seed=5)
PLANES = ("base", "rest", "m_base", "m_rest", "v_base", "v_rest")


def held(n: int = 150) -> Held:
    return hold(cuda_on_cpu(), random_scene(n, 5), layout_for(grads=False))


def fails_above(monkeypatch, module, name: str, limit: int, size) -> list[int]:
    """Makes a function run out of memory where `size(*args)` is above a limit; returns the sizes that it was given."""
    original, seen = getattr(module, name), []

    def limited(*args, **kwargs):
        seen.append(size(*args))
        if seen[-1] > limit:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return original(*args, **kwargs)

    monkeypatch.setattr(module, name, limited)
    return seen


def area(leaves, window, *rest) -> int:
    return window.width * window.height


def rows_of(params, *rest) -> int:
    return len(params.opacities)


def assert_same(one: Held, other: Held) -> None:
    """But for the order of sums over windows."""
    for plane in PLANES:
        a, b = one.rows(plane), other.rows(plane)
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * max(np.abs(b).max(), 1e-12) * 1e-2)


def test_an_image_that_does_not_fit_is_drawn_in_windows(monkeypatch):
    """The same image, gradients and update; the split is counted and remembered for the next camera."""
    plain, short = held(), held()
    frame, _ = step(plain, VIEW)
    areas = fails_above(monkeypatch, render, "draw", 20 * 50, area)
    split, (updates,) = step(short, VIEW)
    assert_images_agree(split, frame)
    assert_same(short, plain)
    assert updates.visible.sum() > 50
    assert short.device.splits == 3  # halved three times, in the forward pass
    assert max(areas) == 70 * 50
    areas.clear()
    step(short, VIEW)
    assert short.device.splits == 3
    assert max(areas) <= 20 * 50


def test_a_backward_pass_that_does_not_fit(monkeypatch):
    """The graph of the whole image is given up, and its parts are drawn again."""
    plain, short = held(), held()
    step(plain, VIEW)
    original, failed = torch.autograd.grad, []

    def grad(outputs, *args, **kwargs):
        first = outputs if isinstance(outputs, torch.Tensor) else outputs[0]
        if first.numel() > 3 * 40 * 50:
            failed.append(first.shape)
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return original(outputs, *args, **kwargs)

    frame = short.device.new_frame(VIEW)
    short.device.begin(VIEW, RenderSettings(), frame)
    short.device.add(short.blocks())
    short.device.finish(frame)
    short.device.loss(frame, target_of(VIEW), 0.2)
    monkeypatch.setattr(torch.autograd, "grad", grad)
    short.device.differentiate(frame)
    short.device.update(0, short.blocks(), ADAM)
    assert failed
    assert short.device.splits == 1
    assert_same(short, plain)


def test_a_loss_that_does_not_fit_takes_the_graphs_room(monkeypatch):
    plain, short = held(), held()
    step(plain, VIEW)
    calls = []

    def l1_ssim(*args):
        calls.append(short.device._picture._drawn is None)
        if not calls[-1]:
            raise RuntimeError("CUDA error: out of memory")
        return ssim.l1_ssim_twin(*args)

    monkeypatch.setattr(short.device, "_l1_ssim", l1_ssim)
    step(short, VIEW)
    assert calls == [False, True]
    assert_same(short, plain)


@pytest.mark.parametrize("limit", [60, 7])
def test_rows_that_do_not_fit_are_projected_and_updated_in_pieces(monkeypatch, limit):
    plain, short = held(), held()
    step(plain, VIEW, parts=[[0, 1], [2]])
    sizes = fails_above(monkeypatch, render, "project", limit, rows_of)
    step(short, VIEW, parts=[[0, 1], [2]])
    assert short.device.splits > 0
    assert max(sizes) > limit
    for plane in PLANES:
        np.testing.assert_array_equal(short.rows(plane), plain.rows(plane))


def test_what_cannot_be_split_further_says_so(monkeypatch):
    short = held()
    fails_above(monkeypatch, render, "draw", 16 * 16 - 1, area)
    with pytest.raises(CapacityError, match=r"smaller --device-memory"):
        step(short, VIEW)
    monkeypatch.undo()
    fails_above(monkeypatch, render, "project", 0, rows_of)
    with pytest.raises(CapacityError, match=r"Tried to allocate 2.00 GiB"):
        step(short, VIEW)


def test_other_errors_are_not_taken_for_a_lack_of_memory(monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(render, "draw", broken)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        step(held(), VIEW)


@pytest.mark.parametrize("error", [torch.cuda.OutOfMemoryError("CUDA out of memory"), KeyboardInterrupt()])
def test_a_device_whose_update_failed_does_nothing_more(monkeypatch, error):
    """A half-written update must never reach a snapshot that says it is whole."""
    one = held()

    def broken(*args, **kwargs):
        raise error

    monkeypatch.setattr(one.device._ops, "adam_rows", broken)
    with pytest.raises(type(error)):
        step(one, VIEW)
    monkeypatch.undo()
    with pytest.raises(DeviceError, match="resume from the last snapshot"):
        step(one, VIEW)
    with pytest.raises(DeviceError, match="resume from the last snapshot"):
        one.device.update(0, one.blocks(BOTH), ADAM)


def test_failed_work_holds_no_memory():
    """Its tensors are gone before it is tried again: the error does not keep its frames."""
    import gc
    import weakref

    kept = []

    def work(a: int, b: int) -> int:
        big = torch.empty(10)
        kept.append(weakref.ref(big))
        assert all(ref() is None for ref in kept[:-1])
        if b - a > 2:
            raise torch.cuda.OutOfMemoryError("out of memory")
        return b - a

    done: list[int] = []
    gc.disable()
    try:
        assert memory.in_pieces(8, work, done.append) == 3
    finally:
        gc.enable()
    assert done == [2, 2, 2, 2]


def test_windows_are_whole_tiles():
    todo, tiles = [Window(0, 0, 70, 50)], []
    while todo:
        window = todo.pop()
        halves = window.halves()
        if halves == [window]:
            tiles.append(window)
        todo += [] if halves == [window] else halves
    covered = np.zeros((50, 70), int)
    for tile in tiles:
        assert (tile.x0 % 16, tile.y0 % 16) == (0, 0)
        assert tile.tiles == (1, 1)
        covered[tile.there] += 1
    assert (covered == 1).all()
    assert len(tiles) == 20


def test_an_arena_that_does_not_fit_says_so():
    with pytest.raises(CapacityError, match=r"no room for an arena of .* GiB .* --device-memory"):
        Arena(layout_for(4096), 1 << 40, torch.device("cpu"))


def test_the_host_region_is_what_was_asked_for():
    regions = pinned.PinnedRegions(register=False)
    region = regions.allocate(10_000)
    assert region.shape == (10_000,)
    assert region.dtype == np.uint8
    assert region.__array_interface__["data"][0] % mmap.PAGESIZE == 0
    assert regions.nbytes == 3 * mmap.PAGESIZE
    region[:] = 7
    regions.close()
    assert regions.nbytes == 0
    assert (region == 7).all()  # as long as somebody has it


class Cudart:
    """Stands in for torch.cuda.cudart()."""

    def __init__(self, code: int) -> None:
        self.code, self.locked = code, {}

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        if self.code == 0:
            self.locked[address] = nbytes
        return self.code

    def cudaHostUnregister(self, address: int) -> int:
        del self.locked[address]
        return 0


def test_locked_bytes_are_the_budget(monkeypatch):
    """One region, registered as it is: not rounded up to a power of two, and unlocked at the end."""
    cudart = Cudart(0)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    regions = pinned.PinnedRegions(register=True)
    region = regions.allocate(5 * mmap.PAGESIZE)
    assert cudart.locked == {region.__array_interface__["data"][0]: 5 * mmap.PAGESIZE}
    regions.close()
    assert cudart.locked == {}


def test_memory_that_cannot_be_locked_says_what_to_do(monkeypatch):
    monkeypatch.setattr(torch.cuda, "cudart", lambda: Cudart(2))
    with pytest.raises(DeviceError, match=r"could not pin .* GiB of host memory .* --host-memory"):
        pinned.PinnedRegions(register=True).allocate(mmap.PAGESIZE)


def test_the_arena_leaves_room_for_a_camera():
    """All blocks where they fit; otherwise what is left beside the largest camera; nothing where that is too large."""
    layout = layout_for(4096)
    gib = 1 << 30
    assert memory.arena_slots(24 * gib, layout, 500, 1920, 1080) == 500
    slots = memory.arena_slots(24 * gib, layout, 10**6, 1920, 1080)
    assert 10 * gib < slots * layout.slot_nbytes < 22 * gib
    assert memory.arena_slots(24 * gib, layout, 10**6, 8192, 8192) < slots
    assert memory.arena_slots(1 << 28, layout, 10**6, 1920, 1080) == 0


def test_the_gpus_free_memory_decides_the_arena_and_the_machines_the_cache():
    config, layout = TrainConfig(device="cuda"), layout_for(4096)
    budgets = choose_budgets(config, layout, 10_000, free=64 << 30, device_slots=lambda layout: 6000)
    assert (budgets.arena_slots, budgets.in_core) == (6000, False)
    assert budgets.host_bytes == pytest.approx(16 << 30, rel=0.01)
    asked = choose_budgets(replace(config, device_memory="1GiB"), layout, 10_000, device_slots=lambda layout: 6000)
    assert asked.arena_bytes <= 1 << 30


@pytest.mark.parametrize("text", ["0", "0GiB", "0%"])
def test_no_host_cache_is_a_few_slots_to_pass_through(text):
    budgets = choose_budgets(TrainConfig(device="cuda", host_memory=text), layout_for(4096), 500, free=64 << 30)
    assert (budgets.host_keeps, budgets.host_slots) == (False, 16)
    assert "no host cache but for passing through 16 blocks" in budgets.sentence()
    assert choose_budgets(TrainConfig(host_memory="5%"), layout_for(4096), 500, free=64 << 30).host_keeps


def test_a_small_share_that_holds_no_block_is_refused_rather_than_taken_for_none():
    with pytest.raises(CapacityError, match=r"host_memory 0\.1% holds no block"):
        choose_budgets(TrainConfig(host_memory="0.1%"), layout_for(4096), 500, free=64 << 30)


def test_the_prediction_grows_with_what_it_depends_on():
    base = memory.camera_nbytes(1920, 1080, 10**6, 3)
    assert 10**9 < base < 3 * 10**9
    assert memory.camera_nbytes(3840, 2160, 10**6, 3) > base
    assert memory.camera_nbytes(1920, 1080, 2 * 10**6, 3) > base
    assert memory.camera_nbytes(1920, 1080, 10**6, 0) < base
