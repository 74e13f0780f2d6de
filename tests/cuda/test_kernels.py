"""Each Triton kernel, in Triton's interpreter, against its torch twin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.cuda.harness import cuda_on_cpu, hold, layout_for
from tests.device.harness import look, random_scene
from tidegs.device.base import AdamSettings, RenderSettings
from tidegs.device.cuda import ssim, twins
from tidegs.device.cuda.arena import Arena
from tidegs.device.cuda.device import _blocks_on
from tidegs.device.cuda.rows import Blocks, Params, Reach, adam_numbers, camera_of, culling_of

launch = pytest.importorskip("tidegs.device.cuda.launch", reason="triton is not installed")
NUMBERS = adam_numbers(AdamSettings(lrs=(1e-3, 2e-3, 5e-3, 5e-2, 2.5e-3, 1.25e-4), step=3))


@dataclass
class Bench:
    """A scene in an arena, some of its rows packed, and random gradients of them."""

    arena: Arena
    blocks: Blocks
    rows: Tensor
    take: Tensor
    params: Params
    grads: Params

    def memory(self) -> Tensor:
        return self.arena.floats.view(self.arena.slots, -1)[self.blocks.slots.long()]


def bench(seed: int = 0, n: int = 150, sh_degree: int = 2, layout_degree: int = 3) -> Bench:
    held = hold(cuda_on_cpu(), random_scene(n, seed), layout_for(64, layout_degree), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    arena = held.device.arena
    for plane in ("m_base", "m_rest", "v_base", "v_rest"):
        arena.plane(plane).copy_(torch.rand(arena.plane(plane).shape, generator=generator))
    blocks = _blocks_on(torch.device("cpu"), held.blocks())
    counts = np.concatenate([64 * i + np.arange(c) for i, c in enumerate(blocks.counts.tolist())])
    chosen = np.random.default_rng(seed).random(len(counts)) < 0.7
    rows = torch.from_numpy(counts[chosen])
    params = twins.gather(arena, blocks, rows, sh_degree)
    grads = Params(*(torch.randn(t.shape, generator=generator) for t in params.tensors()))
    take = torch.rand(len(rows), generator=generator) < 0.8
    return Bench(arena, blocks, rows, take, params, grads)


def same_memory(make_a, make_b) -> None:
    """Both, each on its own copy of the same bench, leave the arena alike."""
    a, b = make_a(), make_b()
    assert a.shape == b.shape
    torch.testing.assert_close(a, b, rtol=2e-6, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("layout_degree", [0, 3])
def test_gather(layout_degree):
    b = bench(1, sh_degree=min(2, layout_degree), layout_degree=layout_degree)
    made = launch.gather(b.arena, b.blocks, b.rows, min(2, layout_degree))
    for one, other in zip(made.tensors(), b.params.tensors(), strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=1e-6, atol=0)


@pytest.mark.parametrize("sh_degree", [0, 3])
def test_adam_on_packed_rows(sh_degree):
    def run(ops) -> Tensor:
        b = bench(2, sh_degree=sh_degree)
        before = b.memory()
        ops.adam_rows(b.arena, b.blocks, b.rows, b.take, b.params, b.grads, NUMBERS)
        assert not torch.equal(before, b.memory())
        return b.memory()

    same_memory(lambda: run(launch), lambda: run(twins))


def test_adam_is_torchs():
    """Two steps of torch.optim.Adam on the same gradients, row by row."""
    b = bench(3, sh_degree=3)
    b.take[:] = True
    for prefix in ("m_", "v_"):
        b.arena.plane(prefix + "base").zero_()
        b.arena.plane(prefix + "rest").zero_()
    slot, row = twins._split(b.arena, b.blocks, b.rows)
    lrs = (1e-3, 2e-3, 5e-3, 5e-2, 2.5e-3, 1.25e-4)
    fields = [slice(0, 3), slice(3, 7), slice(7, 10), slice(10, 11), slice(11, 14)]
    leaves = [b.arena.plane("base")[slot, :, row][:, f].clone().requires_grad_() for f in fields]
    leaves.append(b.arena.plane("rest")[slot, :, row].clone().requires_grad_())
    optimizer = torch.optim.Adam([{"params": [p], "lr": lr} for p, lr in zip(leaves, lrs, strict=True)], eps=1e-15)
    for step in (1, 2):
        params = twins.gather(b.arena, b.blocks, b.rows, 3)
        grads = Params(*(torch.randn(t.shape) for t in params.tensors()))
        stored = twins._stored_grads(params, grads)
        launch.adam_rows(
            b.arena, b.blocks, b.rows, b.take, params, grads, adam_numbers(AdamSettings(lrs, step, eps=1e-15))
        )
        for leaf, share in zip(leaves, [*(stored[:, f] for f in fields), stored[:, 14:]], strict=True):
            leaf.grad = share.clone()
        optimizer.step()
    made = torch.cat([b.arena.plane("base")[slot, :, row], b.arena.plane("rest")[slot, :, row]], 1)
    torch.testing.assert_close(made, torch.cat([p.detach() for p in leaves], 1), rtol=2e-6, atol=2e-7)


def test_sums_of_gradients_and_adam_on_marked_rows():
    """Two cameras of a step: rows seen by one, by both, by none."""

    def run(ops) -> Tensor:
        b = bench(4, sh_degree=2)
        other = bench(5, sh_degree=2)
        ops.clear_marks(b.arena, b.blocks.slots)
        ops.add_grads(b.arena, b.blocks, b.rows, b.take, b.params, b.grads)
        params = twins.gather(b.arena, b.blocks, other.rows, 2)
        ops.add_grads(b.arena, b.blocks, other.rows, other.take, params, other.grads)
        marked = ops.adam_marked(b.arena, b.blocks.slots, b.blocks.counts, 2, NUMBERS)
        seen = torch.cat([b.rows[b.take], other.rows[other.take]]).unique()
        assert marked.tolist() == torch.bincount(seen // 64, minlength=len(b.blocks)).tolist()
        return b.memory()

    same_memory(lambda: run(launch), lambda: run(twins))


def test_adam_on_rows_without_gradients():
    def run(ops) -> Tensor:
        b = bench(7, sh_degree=2)
        took = torch.zeros(len(b.blocks), 64, dtype=torch.bool)
        took.view(-1)[b.rows] = b.take
        before = b.memory()
        ops.adam_rest(b.arena, b.blocks.slots, b.blocks.counts, took, 2, NUMBERS)
        means = [memory.view(len(b.blocks), -1, 64)[:, 0].view(torch.int32) for memory in (before, b.memory())]
        used = torch.arange(64) < b.blocks.counts[:, None]
        assert torch.equal(means[0] != means[1], used & ~took)
        return b.memory()

    same_memory(lambda: run(launch), lambda: run(twins))


def test_noise_on_means():
    keys, scales = torch.tensor([3, -5, 2**62], dtype=torch.int64), torch.tensor([0.5, 2.0, 9.0])

    def run(ops) -> tuple[Tensor, Tensor]:
        b = bench(8)
        before = b.memory()
        learned = ops.noise(b.arena, b.blocks, keys[: len(b.blocks)], scales[: len(b.blocks)], 0.3)
        assert (before != b.memory())[:, : 3 * 64].any()
        return b.memory(), learned

    (memory, learned), (wanted, expected) = run(launch), run(twins)
    torch.testing.assert_close(memory, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)
    torch.testing.assert_close(learned, expected, rtol=1e-6, atol=0)
    assert (expected > 0).all()


@pytest.mark.parametrize("reach", [None, Reach(0.3, 0.2, 1e-15)], ids=["resting", "moving"])
def test_bounds(reach):
    b = bench(6)
    b.arena.plane("m_base").sub_(0.5)
    b.blocks.counts[1] = 0
    made, wanted = (ops.bounds(b.arena, b.blocks, reach) for ops in (launch, twins))
    torch.testing.assert_close(made, wanted, rtol=1e-6, atol=0)
    assert torch.equal(wanted, twins.bounds(b.arena, b.blocks)) == (reach is None)


@pytest.mark.parametrize("seed", range(3))
def test_cull(seed):
    b = bench(seed, n=130)
    view = look(90, 60, seed=seed, distance=1.0)
    culling = culling_of(RenderSettings(near_plane=0.2, far_plane=3.0, radius_clip=2.0 * seed))
    found = launch.cull(b.arena, b.blocks, camera_of(view), culling)
    assert 0 < len(found) < 130
    assert torch.equal(found, twins.cull(b.arena, b.blocks, camera_of(view), culling))


@pytest.mark.parametrize("size", [(27, 11), (9, 12)])
def test_loss_and_its_gradient(size, monkeypatch):
    monkeypatch.setattr(ssim, "COLUMNS", 16)  # so that small images have several programs in a row
    width, height = size
    generator = torch.Generator().manual_seed(width)
    target = torch.randint(0, 256, (height, width, 3), generator=generator, dtype=torch.uint8)
    image = target / 255.0 + 0.2 * torch.randn(height, width, 3, generator=generator)
    image[3] = target[3] / 255.0  # L1 has no slope where both agree
    grad, sums = ssim.l1_ssim(image, target, 0.2, 3.0)
    twin_grad, twin_sums = ssim.l1_ssim_twin(image, target, 0.2, 3.0)
    torch.testing.assert_close(sums, twin_sums, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(grad, twin_grad, rtol=2e-4, atol=2e-4 * float(twin_grad.abs().max()))


@pytest.mark.parametrize("n", [1, 63, 64, 65])
def test_numbers_of_rows_around_a_tile(n):
    def run(ops) -> Tensor:
        b = bench(8, n=n, sh_degree=0)
        params = ops.gather(b.arena, b.blocks, b.rows, 0)
        ops.adam_rows(b.arena, b.blocks, b.rows, b.take, params, b.grads, NUMBERS)
        return b.memory()

    same_memory(lambda: run(launch), lambda: run(twins))
