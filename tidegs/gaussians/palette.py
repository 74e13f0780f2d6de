"""Vector quantisation for formats with palettes: 256 values for scalars, up to 65,536 rows for harmonics.

Invariant: the same values give the same palette; the work grows linearly with their number.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

CODES = 256
_SAMPLE = 1 << 18  # values that a codebook is made from
_BRANCH_SAMPLE = 1 << 16  # rows that the first level is made from
_BRANCH = 256  # first level of the tree of rows
_MEMBERS = 32  # rows of a sample for each row of the palette
_ROWS = 1 << 14  # rows assigned at a time


def codebook(values: np.ndarray) -> np.ndarray:
    """256 ascending float32 for a flat array: Lloyd's algorithm in one dimension (Lloyd 1982), begun with quantiles
    and, for what lies far out, even steps."""
    sample = np.sort(np.asarray(_sample(values, _SAMPLE), np.float64))
    distinct = np.unique(sample)
    if len(distinct) <= CODES:
        return np.append(distinct, np.full(CODES - len(distinct), distinct[-1])).astype(np.float32)
    sums = np.append(0, np.cumsum(sample))
    even = np.linspace(sample[0], sample[-1], CODES // 4)
    codes = np.sort(np.concatenate([even, np.quantile(sample, np.linspace(0, 1, CODES - len(even)))]))
    for _ in range(20):
        edges = np.searchsorted(sample, (codes[1:] + codes[:-1]) / 2)
        first, last = np.append(0, edges), np.append(edges, len(sample))
        codes = np.where(last > first, (sums[last] - sums[first]) / np.maximum(last - first, 1), codes)
    return codes.astype(np.float32)


def nearest_code(codes: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Index of the nearest of 256 ascending codes, uint8, of the shape of `values`."""
    return np.searchsorted((codes[1:].astype(np.float64) + codes[:-1]) / 2, values).astype(np.uint8)


def row_palette(rows: np.ndarray, most: int = 1 << 16) -> tuple[np.ndarray, np.ndarray]:
    """Palette float32 [at most `most`, k] of rows [n, k] and the index of each row in it, int32 [n].

    All distinct rows where they are few. Otherwise a tree of two levels of k-means (tree-structured vector
    quantisation, Gersho and Gray 1992, section 12.4), so that a row is compared with some 500 others, not with 65,536.
    """
    n = len(rows)
    if n <= most:
        distinct, labels = np.unique(np.asarray(rows), axis=0, return_inverse=True)
        return distinct.astype(np.float32), labels.reshape(-1).astype(np.int32)
    branches = _k_means(np.asarray(_sample(rows, _BRANCH_SAMPLE), np.float32), _BRANCH, rounds=8)
    branch = np.concatenate([_nearest(branches, rows[at : at + _ROWS]) for at in range(0, n, _ROWS)])
    order = np.argsort(branch, kind="stable")
    ends = np.cumsum(np.bincount(branch, minlength=len(branches)))
    palette, labels, begun = [], np.empty(n, np.int32), 0
    for first, last in zip(np.append(0, ends[:-1]), ends, strict=True):
        members = order[first:last]
        if len(members) == 0:
            continue
        mine = np.asarray(rows[np.sort(members)], np.float32)
        leaves = _k_means(_sample(mine, _MEMBERS * _BRANCH), max(1, len(members) * most // (n + most)), rounds=4)
        labels[np.sort(members)] = begun + _nearest(leaves, mine)
        palette.append(leaves)
        begun += len(leaves)
    return np.concatenate(palette), labels


def _sample(values: np.ndarray, most: int) -> np.ndarray:
    """Evenly spaced, with the least and the greatest where they are scalars."""
    picked = values[:: -(-len(values) // most)]
    return np.append(picked, [values.min(), values.max()]) if values.ndim == 1 else picked


def _k_means(rows: np.ndarray, k: int, rounds: int) -> np.ndarray:
    """Centres, begun with evenly spaced rows; one without rows stays where it is."""
    k = min(k, len(rows))
    centres = rows[np.linspace(0, len(rows) - 1, k).astype(np.int64)].copy()
    for _ in range(rounds):
        labels = _nearest(centres, rows)
        order = np.argsort(labels, kind="stable")
        counts = np.bincount(labels, minlength=k)
        full = counts > 0
        starts = (np.cumsum(counts) - counts)[full]
        centres[full] = np.add.reduceat(rows[order], starts, axis=0) / counts[full, None]
    return centres


def _nearest(centres: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Index of the nearest centre of each row, int64 [n]."""
    out = np.empty(len(rows), np.int64)
    half = np.einsum("ij,ij->i", centres, centres) / 2
    _least_distance(np.ascontiguousarray(rows, np.float32), np.ascontiguousarray(centres.T), half, out)
    return out


@njit(cache=True, parallel=True, fastmath={"contract", "reassoc"})
def _least_distance(rows: np.ndarray, centres: np.ndarray, half: np.ndarray, out: np.ndarray) -> None:
    """The least |c|^2 / 2 - c x; centres [k, n] with their half squares, so that the innermost loop is a vector one."""
    for i in prange(len(rows)):
        distance = half.copy()
        for k in range(rows.shape[1]):
            x = rows[i, k]
            for c in range(len(half)):
                distance[c] -= x * centres[k, c]
        out[i] = np.argmin(distance)
