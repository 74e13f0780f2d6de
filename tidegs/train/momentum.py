"""Dense Adam of blocks that no step needed meanwhile: what momentum alone has done to them, at once.

A row without gradient for k steps takes, in step j of them, lr_j m b1^j / (sqrt(v b2^j) + eps), bias corrections aside
(Kingma & Ba 2015, algorithm 1, with g = 0). Up to second order in eps / sqrt(v) the sum over j has a closed form in
m / sqrt(v); rows for which that is not exact to float32 take the steps one by one.

Invariant: what becomes of a block depends on its rows, on the step from which it rested, and on the settings alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numba
import numpy as np

from tidegs.device.base import AdamSettings
from tidegs.gaussians.layout import BASE_FIELDS
from tidegs.train.strategies.rows import MEANS, SCALES, Planes, math_exp

_MOST = 512  # steps after which momentum moves nothing that float32 could tell: 0.9^512 < 1e-23
_FAINT = np.float32(1e-4)  # eps / sqrt(v) up to which the closed form is exact: its square is lost in float32
_TINY = np.float32(1e-37)  # moments below this become zero, before they get slow
_BASE_GROUPS = np.array([i for i, f in enumerate(BASE_FIELDS.values()) for _ in range(f.stop - f.start)])
_SHN = 5  # the group of the rest


class Rest(NamedTuple):
    """What steps first .. last - 1 do without gradients: by group of rates (AdamSettings.lrs) and step."""

    rates: np.ndarray  # float64 [6, steps], divided by the first bias correction
    roots: np.ndarray  # float64 [steps], square roots of the second bias correction
    sums: np.ndarray  # float32 [6, 2], of the closed form: its terms in 1 and in eps / sqrt(v)
    beta1: float
    root2: float  # square root of beta2
    eps: np.float32
    fade1: np.float32  # what is left of the first moments
    fade2: np.float32


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _advance(values: np.ndarray, m: np.ndarray, v: np.ndarray, count: int, groups: np.ndarray, rest: Rest) -> None:
    """All components of a plane; `groups` names the rates of each."""
    for k in range(len(groups)):
        g = groups[k]
        if not _leap(values[k], m[k], v[k], count, rest.sums[g, 0], rest.sums[g, 1], rest.eps):
            _step_by_step(values[k], m[k], v[k], count, rest.rates[g], rest)
        _fade(m[k], count, rest.fade1)
        _fade(v[k], count, rest.fade2)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _leap(
    p: np.ndarray, m: np.ndarray, v: np.ndarray, count: int, first: np.float32, second: np.float32, eps: np.float32
) -> bool:
    """The closed form, where it is exact; whether it was for all rows."""
    left = 0
    for i in range(count):
        root = np.sqrt(v[i])
        faint = eps / root
        exact = faint < _FAINT
        left += (not exact) and m[i] != 0
        p[i] -= (m[i] / root) * (first - second * faint) if exact else np.float32(0)
    return left == 0


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _step_by_step(p: np.ndarray, m: np.ndarray, v: np.ndarray, count: int, rates: np.ndarray, rest: Rest) -> None:
    """The rows of a component that the closed form leaves."""
    for i in range(count):
        if m[i] == 0 or rest.eps / np.sqrt(v[i]) < _FAINT:
            continue
        value, moment, root = np.float64(p[i]), np.float64(m[i]), np.sqrt(np.float64(v[i]))
        for j in range(len(rates)):
            moment *= rest.beta1
            root *= rest.root2
            value -= rates[j] * moment / (root / rest.roots[j] + rest.eps)
        p[i] = np.float32(value)


@numba.njit(nogil=True, cache=True)
def _fade(m: np.ndarray, count: int, fade: np.float32) -> None:
    for i in range(count):
        less = m[i] * fade
        m[i] = less if abs(less) > _TINY else np.float32(0)


@numba.njit(nogil=True, cache=True)
def _bounds(
    base: np.ndarray, m: np.ndarray, v: np.ndarray, count: int, means: np.float32, scales: np.float32,
    eps: np.float32, lo: np.ndarray, hi: np.ndarray,
) -> float:  # fmt: skip
    lo[:], hi[:] = np.inf, -np.inf
    size = np.float32(-np.inf)
    for k in range(3):
        a, b = MEANS + k, SCALES + k
        for i in range(count):
            x, s = base[a, i], base[b, i]
            way = -means * m[a, i] / (np.sqrt(v[a, i]) + eps)
            swell = -scales * m[b, i] / (np.sqrt(v[b, i]) + eps)
            lo[k] = min(lo[k], min(x, x + way))
            hi[k] = max(hi[k], max(x, x + way))
            size = max(size, max(s, s + swell))
    return math_exp(size)


class Momentum:
    """Of one run with dense Adam. `settings(step)`: Adam of each of the run's `steps`, counted from 0."""

    def __init__(self, settings: Callable[[int], AdamSettings], steps: int) -> None:
        all_steps = [settings(s) for s in range(steps + 1)]
        self._adam = all_steps[0]
        self._rates = np.array([a.lrs for a in all_steps], np.float64).T
        self._rest = lru_cache(256)(self._rest_of)

    def catch_up(self, planes: Planes, count: int, row: np.void, step: int) -> bool:
        """Takes the steps before `step` that the block has not taken; whether there were any. Changes its `row` of the
        table, and `planes`."""
        first = int(row["adam"])
        if first == 0 or first >= step:
            return False
        rest = self._rest(first, step)
        _advance(planes.base, planes.m_base, planes.v_base, count, _BASE_GROUPS, rest)
        _advance(planes.rest, planes.m_rest, planes.v_rest, count, np.full(len(planes.rest), _SHN), rest)
        row["adam"] = step
        return True

    def _rest_of(self, first: int, last: int) -> Rest:
        beta1, beta2 = self._adam.beta1, self._adam.beta2
        taken = np.arange(first, min(last, first + _MOST)) + 1.0
        rates = self._rates[:, first : first + len(taken)] / (1.0 - beta1**taken)
        roots, gone = np.sqrt(1.0 - beta2**taken), taken - first
        shrunk = rates * roots * (beta1 / math.sqrt(beta2)) ** gone
        sums = np.stack([shrunk.sum(axis=1), (shrunk * roots * beta2 ** (-gone / 2)).sum(axis=1)], axis=1)
        fades = np.float32(beta1 ** (last - first)), np.float32(beta2 ** (last - first))
        eps = np.float32(self._adam.eps)
        return Rest(rates, roots, sums.astype(np.float32), beta1, math.sqrt(beta2), eps, *fades)

    def bounds(self, planes: Planes, count: int, step: int, lo: np.ndarray, hi: np.ndarray) -> float:
        """As `row_bounds`, and wherever momentum alone can take the rows from `step` on, as rates only sink."""
        far, eps = self._adam.drift, np.float32(self._adam.eps)
        means, scales = np.float32(self._rates[0, step] * far), np.float32(self._rates[2, step] * far)
        return _bounds(planes.base, planes.m_base, planes.v_base, count, means, scales, eps, lo, hi)
