"""Row surgery on the planes of one block: which old row each new row comes from, and how the others follow.

Invariant: planes are component-major [components, rows]; a new row starts with zero moments and zero statistics.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from tidegs.gaussians.layout import RECORD_PLANES, RecordLayout
from tidegs.train.strategies.chance import ROW_DRAWS, normal

MEANS, QUATS, SCALES, OPACITY = 0, 3, 7, 10  # components of `base`
KEPT, COPY, FIRST, SECOND = 0, 1, 2, 3  # a row as it is; a duplicate; the two halves of a split
SPLIT_SHRINK = np.float32(1.6)


class Planes(NamedTuple):
    """The planes of a block, float32 [components, rows] each; rows beyond those in use have no meaning."""

    base: np.ndarray
    rest: np.ndarray
    m_base: np.ndarray
    m_rest: np.ndarray
    v_base: np.ndarray
    v_rest: np.ndarray
    stats: np.ndarray


def planes_of(layout: RecordLayout, slot: np.ndarray) -> Planes:
    """The planes of a slot, sharing its memory."""
    return Planes(*(layout.view(slot, name) for name in RECORD_PLANES))


def new_planes(like: Planes, rows: int) -> Planes:
    """Planes of `rows` rows with the components of `like`, uninitialised."""
    return Planes(*(np.empty((p.shape[0], rows), np.float32) for p in like))


@numba.njit(nogil=True, cache=True)
def _gather(plane: np.ndarray, source: np.ndarray, kind: np.ndarray, zero_new: bool, out: np.ndarray) -> None:
    for k in range(plane.shape[0]):
        for i in range(len(source)):
            out[k, i] = np.float32(0) if zero_new and kind[i] != KEPT else plane[k, source[i]]


def take_rows(planes: Planes, source: np.ndarray, kind: np.ndarray) -> Planes:
    """New planes whose row i comes from row source[i] (int32); moments and statistics are kept where kind[i] is KEPT,
    and zero elsewhere."""
    out = new_planes(planes, len(source))
    for name, plane, target in zip(Planes._fields, planes, out, strict=True):
        _gather(plane, source, kind, name not in ("base", "rest"), target)
    return out


def put_rows(planes: Planes, rows: Planes) -> None:
    """Writes `rows` over the first rows of `planes`."""
    for plane, new in zip(planes, rows, strict=True):
        plane[:, : new.shape[1]] = new


@numba.njit(nogil=True, cache=True, inline="always")
def rotate(base: np.ndarray, row: int, x: np.float32, y: np.float32, z: np.float32) -> tuple:
    """R(quat of the row, normalised) applied to a vector."""
    w, a, b, c = base[QUATS, row], base[QUATS + 1, row], base[QUATS + 2, row], base[QUATS + 3, row]
    n = np.float32(1) / max(np.float32(np.sqrt(w * w + a * a + b * b + c * c)), np.float32(1e-12))
    w, a, b, c = w * n, a * n, b * n, c * n
    one, two = np.float32(1), np.float32(2)
    return (
        (one - two * (b * b + c * c)) * x + two * (a * b - w * c) * y + two * (a * c + w * b) * z,
        two * (a * b + w * c) * x + (one - two * (a * a + c * c)) * y + two * (b * c - w * a) * z,
        two * (a * c - w * b) * x + two * (b * c + w * a) * y + (one - two * (a * a + b * b)) * z,
    )


@numba.njit(nogil=True, cache=True)
def place_halves(base: np.ndarray, source: np.ndarray, kind: np.ndarray, key: np.uint64, revised_opacity: bool) -> None:
    """Moves and shrinks the halves of splits, in place (gsplat/strategy/ops.py split): each is drawn from its parent,
    and 1.6 times smaller. `source` names the parent's row, by which the random numbers are keyed."""
    for i in range(len(source)):
        if kind[i] < FIRST:
            continue
        first = source[i] * ROW_DRAWS + 3 * (kind[i] - FIRST)
        s0, s1, s2 = np.exp(base[SCALES, i]), np.exp(base[SCALES + 1, i]), np.exp(base[SCALES + 2, i])
        x, y, z = rotate(base, i, s0 * normal(key, first), s1 * normal(key, first + 1), s2 * normal(key, first + 2))
        base[MEANS, i] += x
        base[MEANS + 1, i] += y
        base[MEANS + 2, i] += z
        base[SCALES, i] = np.log(s0 / SPLIT_SHRINK)
        base[SCALES + 1, i] = np.log(s1 / SPLIT_SHRINK)
        base[SCALES + 2, i] = np.log(s2 / SPLIT_SHRINK)
        if revised_opacity:
            base[OPACITY, i] = revised(base[OPACITY, i])


@numba.njit(nogil=True, cache=True, inline="always")
def sigmoid(x: np.float32) -> np.float32:
    return np.float32(1) / (np.float32(1) + np.exp(-x))


@numba.njit(nogil=True, cache=True, inline="always")
def logit(p: float) -> np.float32:
    return np.float32(np.log(p / (1.0 - p)))


@numba.njit(nogil=True, cache=True, inline="always")
def revised(opacity: np.float32) -> np.float32:
    """The logit of a half's opacity: 1 - sqrt(1 - o) (arXiv 2404.06109)."""
    return logit(1.0 - np.sqrt(1.0 - np.float64(sigmoid(opacity))))


@numba.njit(nogil=True, cache=True)
def row_bounds(base: np.ndarray, count: int, lo: np.ndarray, hi: np.ndarray) -> float:
    """Least and greatest mean of the first `count` rows; returns the greatest exp(scale), over any rounding."""
    lo[:], hi[:] = np.inf, -np.inf
    scale = np.float32(-np.inf)
    for k in range(3):
        for i in range(count):
            lo[k] = min(lo[k], base[MEANS + k, i])
            hi[k] = max(hi[k], base[MEANS + k, i])
            scale = max(scale, base[SCALES + k, i])
    return math_exp(scale)


@numba.njit(nogil=True, cache=True, inline="always")
def math_exp(scale: np.float32) -> float:
    return np.exp(np.float64(scale)) * 1.000002
