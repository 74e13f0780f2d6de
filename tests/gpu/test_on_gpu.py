"""The CUDA device as users run it: against its twins, against the CPU device, and with copies beside the kernels."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from tests.cuda.harness import ADAM, BOTH, Held, draw, hold, layout_for, step, target_of
from tests.device.harness import look, random_scene
from tidegs.device.base import BlockFlags, RenderSettings
from tidegs.device.cpu import CpuDevice
from tidegs.device.cuda import render, ssim, twins
from tidegs.device.cuda.device import CudaDevice, _blocks_on
from tidegs.device.cuda.rows import Params, adam_numbers, camera_of, culling_of

CAPACITY, ROWS = 1024, 20_000
PLANES = ("base", "rest", "m_base", "m_rest", "v_base", "v_rest")


def on_gpu(seed: int = 0, grads: bool = True) -> Held:
    return hold(CudaDevice(), random_scene(ROWS, seed, log_scale=-4.0), layout_for(CAPACITY, grads=grads), seed=seed)


@pytest.mark.parametrize("sh_degree", [0, 3])
def test_kernels_are_their_twins(sh_degree):
    """Cull, gather, Adam on rows, sums, Adam on marked rows, bounds: on the GPU, at a size that fills it."""
    from tidegs.device.cuda import launch

    numbers, view = adam_numbers(ADAM), look(640, 480, distance=3.0)
    memories = []
    for ops in (launch, twins):
        held = on_gpu(1)
        arena, blocks = held.device.arena, _blocks_on(torch.device("cuda"), held.blocks())
        rows = ops.cull(arena, blocks, camera_of(view), culling_of(RenderSettings(near_plane=2.0)))
        params = ops.gather(arena, blocks, rows, sh_degree)
        generator = torch.Generator("cuda").manual_seed(0)
        grads = Params(*(torch.randn(t.shape, generator=generator, device="cuda") for t in params.tensors()))
        take = torch.rand(len(rows), generator=generator, device="cuda") < 0.5
        ops.adam_rows(arena, blocks, rows, take, params, grads, numbers)
        ops.clear_marks(arena, blocks.slots)
        for chosen in (take, ~take, take):
            ops.add_grads(arena, blocks, rows, chosen, params, grads)
        marked = ops.adam_marked(arena, blocks.slots, blocks.counts, sh_degree, numbers)
        found = [rows.double(), *params.tensors(), marked.double(), ops.bounds(arena, blocks)]
        memories.append([*found, arena.floats.view(arena.slots, -1)[blocks.slots.long()]])
        assert 1000 < len(rows) < ROWS
    for one, other in zip(*memories, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("size", [(1280, 720), (333, 217), (40, 9)])
def test_loss_is_its_twin(size):
    width, height = size
    target = torch.randint(0, 256, (height, width, 3), dtype=torch.uint8, device="cuda")
    image = (target / 255.0 + 0.1 * torch.randn(height, width, 3, device="cuda")).contiguous()
    grad, sums = ssim.l1_ssim(image, target, 0.2, 1.0)
    twin_grad, twin_sums = ssim.l1_ssim_twin(image, target, 0.2, 1.0)
    torch.testing.assert_close(sums, twin_sums, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(grad, twin_grad, rtol=1e-2, atol=1e-3 * float(twin_grad.abs().max()))


@pytest.mark.parametrize("mode", ["classic", "antialiased"])
@pytest.mark.parametrize("parts", [None, [list(range(0, 7)), list(range(7, 20))]])
def test_a_step_is_the_cpu_devices(mode, parts):
    """gsplat's kernels use fast exponentials and atomic sums: images to 1e-3, gradients to 1 % in the mean square."""
    scene, view = random_scene(ROWS, 2, log_scale=-4.0), look(320, 240, seed=3)
    gpu = hold(CudaDevice(), scene, layout_for(CAPACITY, grads=False))
    cpu = hold(CpuDevice(), scene, layout_for(CAPACITY, grads=False))
    how = RenderSettings(rasterize_mode=mode, background=(0.1, 0.2, 0.3))
    one, made = step(gpu, view, how, parts=parts)
    other, wanted = step(cpu, view, how, parts=parts)
    assert np.abs(one.image - other.image).mean() < 1e-4
    assert np.quantile(np.abs(one.image - other.image), 0.999) < 1e-3
    for a, b in zip(made, wanted, strict=True):
        assert np.abs(a.visible - b.visible).sum() <= 1e-3 * max(b.visible.sum(), 1)
        np.testing.assert_allclose(a.lo, b.lo, atol=1e-2)
    for kind in ("m_base", "m_rest"):
        m, m_cpu = gpu.rows(kind), cpu.rows(kind)
        error = np.sqrt(np.mean((m - m_cpu) ** 2, 1)) / (np.sqrt(np.mean(m_cpu**2, 1)) + 1e-12)
        assert error.max() < 0.01


def test_steps_of_several_cameras():
    scene = random_scene(ROWS, 4, log_scale=-4.0)
    gpu, cpu = (hold(d, scene, layout_for(CAPACITY)) for d in (CudaDevice(), CpuDevice()))
    for i, flags in enumerate((BlockFlags.FIRST_OF_STEP, BlockFlags(0), BlockFlags.LAST_OF_STEP)):
        for held in (gpu, cpu):
            step(held, look(160, 120, seed=i), flags=flags)
    m, m_cpu = gpu.rows("m_base"), cpu.rows("m_base")
    assert np.sqrt(np.mean((m - m_cpu) ** 2)) < 0.01 * np.sqrt(np.mean(m_cpu**2))


def test_copies_beside_kernels_change_nothing():
    """Half of the slots are copied out and in by two threads while the other half is rendered and trained on."""
    quiet, busy = on_gpu(5, grads=False), on_gpu(5, grads=False)
    half = list(range(len(busy.slots) // 2))
    others = [busy.slots[i] for i in range(len(half), len(busy.slots))]
    host = [np.array(h) for h in np.zeros((len(others), busy.layout.slot_nbytes), np.uint8)]
    busy.device.download(others, host)
    stop = threading.Event()

    def shuttle() -> None:
        while not stop.is_set():
            busy.device.upload(host, others)
            busy.device.download(others, host)

    before = [h.copy() for h in host]
    thread = threading.Thread(target=shuttle)
    thread.start()
    try:
        images = []
        for held in (quiet, busy):
            for i in range(20):
                view = look(320, 240, seed=i)
                frame = draw(held, view, RenderSettings(), [half])
                held.device.loss(frame, target_of(view), 0.2)
            images.append(frame.image)
    finally:
        stop.set()
        thread.join()
    np.testing.assert_array_equal(images[0], images[1])
    for old, new in zip(before, host, strict=True):
        np.testing.assert_array_equal(old, new)


def test_short_of_memory(monkeypatch):
    """A large image that is drawn in windows after a failed allocation has the gradients of one that was not."""
    scene, view = random_scene(ROWS, 6, log_scale=-3.0), look(1920, 1080, seed=6)
    plain, short = (hold(CudaDevice(), scene, layout_for(CAPACITY, grads=False)) for _ in range(2))
    step(plain, view)
    original = render.draw

    def limited(leaves, window, *rest):
        if window.width * window.height > 1000 * 600:
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        return original(leaves, window, *rest)

    monkeypatch.setattr(render, "draw", limited)
    step(short, view)
    assert short.device.splits == 2
    m, m_plain = short.rows("m_base"), plain.rows("m_base")
    assert np.sqrt(np.mean((m - m_plain) ** 2)) < 0.01 * np.sqrt(np.mean(m_plain**2))


def test_pinned_memory_is_pinned():
    device = CudaDevice()
    region = device.host_region(10 << 20)
    assert torch.from_numpy(region).is_pinned()
    device.close()


def test_flags_default_to_a_step_of_one_camera():
    """Guards the helpers: a step trains."""
    held = on_gpu(7, grads=False)
    before = held.rows("base")
    step(held, look(160, 120), flags=BOTH)
    assert (held.rows("base") != before).any()
