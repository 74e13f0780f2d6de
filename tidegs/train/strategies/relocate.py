"""MCMC on one block: dead rows make room, children are drawn by opacity.

Invariant: what happens to a block depends on its rows, on how many children the event gave it, and on seed, step and
block id alone.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from tidegs.train.strategies.chance import uniform
from tidegs.train.strategies.rows import (
    COPY,
    KEPT,
    OPACITY,
    SCALES,
    Planes,
    logit,
    sigmoid,
    take_rows,
)

MAX_RATIO = 51  # gsplat's n_max: a row is divided by at most this
BINOMS = np.array([[math.comb(n, k) for k in range(MAX_RATIO)] for n in range(MAX_RATIO)], np.float64)
_EPS = 2.0**-23


@numba.njit(nogil=True, cache=True)
def divided(opacity: float, ratio: int, binoms: np.ndarray) -> tuple[float, float]:
    """(new opacity, factor of the scales) of a row that becomes `ratio` rows: equation (9) of arXiv 2404.09591, so that
    together they render as the one did. In float64: the sum alternates."""
    n = min(max(ratio, 1), len(binoms))
    new = 1.0 - (1.0 - opacity) ** (1.0 / n)
    total = 0.0
    for i in range(1, n + 1):
        for k in range(i):
            sign = -1.0 if k & 1 else 1.0
            total += binoms[i - 1, k] * sign / math.sqrt(k + 1.0) * new ** (k + 1)
    return new, opacity / total


@numba.njit(nogil=True, cache=True)
def draw_rows(base: np.ndarray, count: int, floor: float, n: int, key: np.uint64, first: int) -> np.ndarray:
    """`n` rows (int32) drawn with replacement by their opacity, among those of more opacity than `floor`; draw i has
    counter first + i. Where no row qualifies, none."""
    sums = np.empty(count, np.float64)
    total = 0.0
    for i in range(count):
        o = sigmoid(base[OPACITY, i])
        total += np.float64(o) if o > floor else 0.0
        sums[i] = total
    out = np.empty(n if total > 0 else 0, np.int32)
    for i in range(len(out)):
        row = np.searchsorted(sums, uniform(key, first + i) * total, side="right")
        out[i] = row if row < count else count - 1
    return out


@numba.njit(nogil=True, cache=True)
def _divide(base: np.ndarray, drawn: np.ndarray, count: int, floor: float, binoms: np.ndarray) -> np.ndarray:
    """Gives rows that were drawn the opacity and scales of their part; returns how often each was drawn."""
    times = np.zeros(count, np.int32)
    for row in drawn:
        times[row] += 1
    for i in range(count):
        if times[i]:
            new, factor = divided(np.float64(sigmoid(base[OPACITY, i])), times[i] + 1, binoms)
            base[OPACITY, i] = logit(min(max(new, floor), 1.0 - _EPS))
            shift = np.float32(math.log(factor))
            for k in range(3):
                base[SCALES + k, i] += shift
    return times


@numba.njit(nogil=True, cache=True)
def _arrange(dead: np.ndarray, children: np.ndarray, source: np.ndarray, kind: np.ndarray) -> int:
    """Rows after the event: children in the places of dead rows, then behind; dead rows that nobody replaces go."""
    n, used = 0, 0
    for i in range(len(dead)):
        if dead[i] and used == len(children):
            continue
        if dead[i]:
            source[n], kind[n] = children[used], COPY
            used += 1
        else:
            source[n], kind[n] = i, KEPT
        n += 1
    for i in range(used, len(children)):
        source[n], kind[n] = children[i], COPY
        n += 1
    return n


def add_children(
    planes: Planes, count: int, dead: np.ndarray | None, n: int, floor: float, key: np.uint64, first: int
) -> tuple[Planes, int]:
    """The rows of a block after `n` children were drawn, in new planes, and how many.

    `dead` (bool [count]): rows that make room first and are not drawn (gsplat/strategy/ops.py relocate); None: all
    rows may be drawn (sample_add). Rows drawn to replace dead ones lose their moments. Changes `planes`.
    """
    drawn = draw_rows(planes.base, count, floor if dead is not None else -1.0, n, key, first)
    times = _divide(planes.base, drawn, count, floor, BINOMS)
    if dead is not None:
        for moments in (planes.m_base, planes.m_rest, planes.v_base, planes.v_rest):
            moments[:, :count][:, times > 0] = 0
    source, kind = np.empty(count + len(drawn), np.int32), np.empty(count + len(drawn), np.uint8)
    gone = np.zeros(count, np.bool_) if dead is None else dead
    total = _arrange(gone, drawn, source, kind)
    return take_rows(planes, source[:total], kind[:total]), total


def dead_rows(planes: Planes, count: int, min_opacity: float) -> np.ndarray:
    """bool [count]: rows of at most `min_opacity`."""
    return _dead(planes.base, count, np.float32(min_opacity))


@numba.njit(nogil=True, cache=True)
def _dead(base: np.ndarray, count: int, floor: np.float32) -> np.ndarray:
    out = np.empty(count, np.bool_)
    for i in range(count):
        out[i] = sigmoid(base[OPACITY, i]) <= floor
    return out


@numba.njit(nogil=True, cache=True)
def opacity_mass(base: np.ndarray, count: int, floor: np.float32) -> tuple[float, int]:
    """(sum of the opacities above `floor`, number of rows not above it)."""
    mass, dead = 0.0, 0
    for i in range(count):
        o = sigmoid(base[OPACITY, i])
        if o > floor:
            mass += np.float64(o)
        else:
            dead += 1
    return mass, dead
