"""Dense Adam of blocks that rest: the steps that torch.optim.Adam takes with zero gradients, taken at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.device.harness import pack, random_scene
from tests.training import settings
from tidegs.store.base import TABLE_DTYPE
from tidegs.train.momentum import Momentum
from tidegs.train.rates import BETA1, BETA2, adam_settings
from tidegs.train.settle import is_owed
from tidegs.train.strategies.rows import Planes, planes_of, row_bounds

STEPS, EXTENT, COUNT = 4000, 3.0, 300
GROUPS = [slice(0, 3), slice(3, 7), slice(7, 10), slice(10, 11), slice(11, 14)]


def rates(batch: int = 1):
    config = settings(max_steps=STEPS, adam="dense", batch_size=batch)
    return lambda step: adam_settings(config, step, EXTENT)


def trained(seed: int, first: int, batch: int = 1) -> tuple[Planes, np.void, torch.optim.Adam, list[torch.Tensor]]:
    """A block that has taken `first` steps of torch.optim.Adam with random gradients of very different sizes, as planes
    and as tensors [rows, components] of the optimizer."""
    rng = np.random.default_rng(seed)
    packed = pack(random_scene(COUNT, seed, spread=1e-3))
    planes = planes_of(packed.layout, packed.device.arena[packed.slots[0]])
    values = [planes.base[g] for g in GROUPS] + [planes.rest]
    tensors = [torch.tensor(v[:, :COUNT].T.copy(), requires_grad=True) for v in values]
    beta = BETA1**batch, BETA2**batch
    optimizer = torch.optim.Adam([{"params": [t], "lr": 0.0} for t in tensors], betas=beta, eps=rates(batch)(0).eps)
    size = 10.0 ** rng.uniform(-18, 0, (COUNT, 1))
    for step in range(max(0, first - 5), first):
        for t in tensors:
            t.grad = torch.tensor((size * rng.normal(size=t.shape)).astype(np.float32))
            optimizer.state[t].setdefault("step", torch.tensor(float(step)))
            optimizer.state[t].setdefault("exp_avg", torch.zeros_like(t))
            optimizer.state[t].setdefault("exp_avg_sq", torch.zeros_like(t))
        take_step(optimizer, rates(batch)(step))
    moments = {"m": "exp_avg", "v": "exp_avg_sq"}
    for prefix, name in moments.items():
        target = getattr(planes, f"{prefix}_base"), getattr(planes, f"{prefix}_rest")
        target[0][:, :COUNT] = torch.cat([optimizer.state[t][name] for t in tensors[:5]], 1).T.numpy()
        target[1][:, :COUNT] = optimizer.state[tensors[5]][name].T.numpy()
    planes.base[:, :COUNT] = torch.cat(tensors[:5], 1).detach().T.numpy()
    planes.rest[:, :COUNT] = tensors[5].detach().T.numpy()
    row = np.zeros(1, TABLE_DTYPE)[0]
    row["count"], row["adam"] = COUNT, first
    return planes, row, optimizer, tensors


def take_step(optimizer: torch.optim.Adam, adam) -> None:
    for group, lr in zip(optimizer.param_groups, adam.lrs, strict=True):
        group["lr"] = lr
    optimizer.step()


def rest(optimizer, tensors, steps: range, batch: int = 1):
    """Steps of torch.optim.Adam without gradients."""
    for step in steps:
        for t in tensors:
            t.grad = torch.zeros_like(t)
        take_step(optimizer, rates(batch)(step))
        yield step


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize(("first", "steps"), [(5, 1), (12, 6), (900, 40), (3000, 700)])
def test_steps_taken_at_once_are_those_of_torch(first, steps, batch):
    planes, row, optimizer, tensors = trained(first, first, batch)
    before = [t.detach().clone() for t in tensors]
    assert Momentum(rates(batch), STEPS).catch_up(planes, COUNT, row, first + steps)
    assert row["adam"] == first + steps
    for _ in rest(optimizer, tensors, range(first, first + steps), batch):
        pass
    ours = [planes.base[g, :COUNT].T for g in GROUPS] + [planes.rest[:, :COUNT].T]
    for mine, theirs, old, lr in zip(ours, tensors, before, rates(batch)(first).lrs, strict=True):
        theirs = theirs.detach().numpy()
        assert np.abs(theirs - old.numpy()).max() > 0.5 * lr  # momentum did move them
        # torch rounds after every step; what it loses grows with the number of those that still move a value
        np.testing.assert_allclose(mine, theirs, rtol=1e-6 * min(steps, 30) ** 0.5, atol=1e-5 * lr)
    for name, target in (("exp_avg", planes.m_base), ("exp_avg_sq", planes.v_base)):
        theirs = torch.cat([optimizer.state[t][name] for t in tensors[:5]], 1).T.numpy()
        np.testing.assert_allclose(target[:, :COUNT], theirs, rtol=1e-7 * (steps + 10), atol=1e-36)


def test_bounds_hold_wherever_momentum_takes_rows():
    first = 20
    planes, _, optimizer, tensors = trained(8, first)
    lo, hi, now_lo, now_hi = (np.empty(3, np.float32) for _ in range(4))
    extent = Momentum(rates(), STEPS).bounds(planes, COUNT, first, lo, hi)
    row_bounds(planes.base, COUNT, now_lo, now_hi)
    assert (lo < now_lo).all()
    assert (hi > now_hi).all()
    for _ in rest(optimizer, tensors, range(first, first + 200)):
        means, scales = tensors[0].detach().numpy(), tensors[2].detach().numpy()
        assert (means >= lo).all()
        assert (means <= hi).all()
        assert np.exp(scales.astype(np.float64)).max() <= extent
    moved = np.maximum(np.abs(lo - now_lo), np.abs(hi - now_hi)).max()
    assert moved < 70 * rates()(first).lrs[0]  # and they are no wider than need be


def test_a_block_that_took_no_step_or_all_of_them_stays_as_it_is():
    momentum = Momentum(rates(), STEPS)
    planes, row, *_ = trained(9, 20)
    before = [p.copy() for p in planes]
    for taken in (0, 20, 21):
        row["adam"] = taken
        assert not momentum.catch_up(planes, COUNT, row, 20)
        assert row["adam"] == taken
    for now, then in zip(planes, before, strict=True):
        np.testing.assert_array_equal(now, then)
    table = np.zeros(4, TABLE_DTYPE)
    table["adam"] = [0, 19, 20, 7]
    table["count"] = 1
    assert is_owed(None, True, [], table, 20).tolist() == [False, True, False, True]
    assert not is_owed(None, False, [], table, 20).any()
