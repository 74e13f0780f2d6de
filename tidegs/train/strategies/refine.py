"""The refine and reset events of DefaultStrategy on one block: gsplat's decisions, in gsplat's order of rows.

Invariant: what happens to a block depends on its rows, the settings, the event's step and the block's id alone.
"""

from __future__ import annotations

import numba
import numpy as np

from tidegs.train.strategies.chance import stream
from tidegs.train.strategies.rows import (
    COPY,
    FIRST,
    KEPT,
    OPACITY,
    SCALES,
    SECOND,
    SPLIT_SHRINK,
    Planes,
    logit,
    place_halves,
    revised,
    sigmoid,
    take_rows,
)
from tidegs.train.strategies.settings import DefaultStrategy

GRAD, COUNT, RADIUS = 0, 1, 2  # components of `stats`
NOTHING, DUPLICATE, SPLIT = 0, 1, 2


@numba.njit(nogil=True, cache=True)
def _decide(
    base: np.ndarray, stats: np.ndarray, count: int, grad: np.float32, small: np.float32, radius: np.float32
) -> np.ndarray:
    """What becomes of each row; `radius` < 0 where it does not count."""
    out = np.zeros(count, np.uint8)
    for i in range(count):
        high = stats[GRAD, i] / max(stats[COUNT, i], np.float32(1)) > grad
        is_small = np.exp(max(base[SCALES, i], base[SCALES + 1, i], base[SCALES + 2, i])) <= small
        if high and is_small:
            out[i] = DUPLICATE
        if (high and not is_small) or (radius >= 0 and stats[RADIUS, i] > radius):
            out[i] = SPLIT if out[i] == NOTHING else DUPLICATE + SPLIT
    return out


@numba.njit(nogil=True, cache=True)
def _is_pruned(
    opacity: np.float32, scale: np.float32, radius: np.float32, opa: np.float32, big: np.float32, wide: np.float32
) -> bool:
    """`scale`: greatest, not logarithmic. `big` and `wide` are negative where they do not count."""
    too_big = (big >= 0 and scale > big) or (wide >= 0 and radius > wide)
    return bool(sigmoid(opacity) < opa or too_big)


@numba.njit(nogil=True, cache=True)
def _plan(
    base: np.ndarray,
    stats: np.ndarray,
    action: np.ndarray,
    limits: tuple[np.float32, np.float32, np.float32],
    revise: bool,
    source: np.ndarray,
    kind: np.ndarray,
) -> int:
    """Lists the new rows: the ones that stay, duplicates, first halves, second halves; without those to be pruned."""
    opa, big, wide = limits
    n = 0
    for what in (KEPT, COPY, FIRST, SECOND):
        for i in range(len(action)):
            if what == KEPT and action[i] & SPLIT:
                continue
            if what == COPY and not action[i] & DUPLICATE:
                continue
            if what >= FIRST and not action[i] & SPLIT:
                continue
            opacity = base[OPACITY, i]
            scale = np.exp(max(base[SCALES, i], base[SCALES + 1, i], base[SCALES + 2, i]))
            if what >= FIRST:
                scale = np.exp(np.log(scale / SPLIT_SHRINK))
                if revise:
                    opacity = revised(opacity)
            radius = stats[RADIUS, i] if wide >= 0 else np.float32(0)
            if not _is_pruned(opacity, scale, radius, opa, big, wide):
                source[n] = i
                kind[n] = what
                n += 1
    return n


def refine(
    strategy: DefaultStrategy,
    planes: Planes,
    count: int,
    step: int,
    extent: float,
    room: int,
    place: tuple[int, int],
) -> tuple[Planes, int] | None:
    """The rows of a block after a refine event, in new planes, and how many; None where no row comes or goes.

    `extent`: the scene's; `room`: rows by which the scene may grow (a block that would grow by more only prunes);
    `place`: (seed, block) for the random numbers. Statistics of all rows are zero afterwards, here or in `planes`.
    """
    base, stats = planes.base, planes.stats
    early = step < strategy.refine_scale2d_stop_iter
    grow = (
        np.float32(strategy.grow_grad2d),
        np.float32(strategy.grow_scale3d * extent),
        np.float32(strategy.grow_scale2d if early else -1),
    )
    late = step > strategy.reset_every
    prune = (
        np.float32(strategy.prune_opa),
        np.float32(strategy.prune_scale3d * extent if late else -1),
        np.float32(strategy.prune_scale2d if late and early else -1),
    )
    action = _decide(base, stats, count, *grow)
    source, kind = np.empty(3 * count, np.int32), np.empty(3 * count, np.uint8)
    n = _plan(base, stats, action, prune, strategy.revised_opacity, source, kind)
    if n - count > room:
        action[:] = NOTHING
        n = _plan(base, stats, action, prune, strategy.revised_opacity, source, kind)
    if n == count and not action.any():
        stats[:, :count] = 0
        return None
    source, kind = source[:n], kind[:n]
    out = take_rows(planes, source, kind)
    place_halves(out.base, source, kind, stream(place[0], step, place[1]), strategy.revised_opacity)
    out.stats[:] = 0
    return out, n


def reset_opacities(strategy: DefaultStrategy, planes: Planes, count: int) -> None:
    """Lowers opacities to at most 2 prune_opa and forgets their moments, in place."""
    limit = logit(2.0 * strategy.prune_opa)
    np.minimum(planes.base[OPACITY, :count], limit, out=planes.base[OPACITY, :count])
    planes.m_base[OPACITY, :count] = 0
    planes.v_base[OPACITY, :count] = 0
