"""Random numbers by counter: a function of seed, step, block and row, never of the order in which they are drawn.

Hashes are SplitMix64's finaliser (Steele et al. 2014); normals are by Box and Muller (1958), one for each hash.
"""

from __future__ import annotations

import math

import numba
import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
ROW_DRAWS = 8  # hashes set apart for each row


@numba.njit(nogil=True, cache=True, inline="always")
def _mix(x: np.uint64) -> np.uint64:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def stream(seed: int, step: int, block: int) -> np.uint64:
    """The key of a block's random numbers at an event or step."""
    return np.uint64(_stream(seed, step, block))


@numba.njit(nogil=True, cache=True)
def _stream(seed: int, step: int, block: int) -> np.uint64:
    key = _mix(np.uint64(seed) + _GOLDEN)
    key = _mix(key ^ np.uint64(step))
    return _mix((key + _GOLDEN) ^ np.uint64(block))


@numba.njit(nogil=True, cache=True, inline="always")
def _hash(key: np.uint64, counter: int) -> np.uint64:
    return _mix(key + np.uint64(counter + 1) * _GOLDEN)


@numba.njit(nogil=True, cache=True, inline="always")
def uniform(key: np.uint64, counter: int) -> float:
    """In [0, 1)."""
    return np.float64(_hash(key, counter) >> np.uint64(11)) * 2.0**-53


@numba.njit(nogil=True, cache=True, inline="always")
def normal(key: np.uint64, counter: int) -> np.float32:
    """Of mean 0 and variance 1."""
    h = _hash(key, counter)
    u = (np.float64(h >> np.uint64(32)) + 0.5) * 2.0**-32
    v = np.float64(h & np.uint64(0xFFFFFFFF)) * 2.0**-32
    return np.float32(math.sqrt(-2.0 * math.log(u)) * math.cos(2.0 * math.pi * v))


@numba.njit(nogil=True, cache=True)
def normals(key: np.uint64, rows: np.ndarray, first: int) -> np.ndarray:
    """float32 [rows, 3]: draws first, first + 1, first + 2 of each row (int)."""
    out = np.empty((len(rows), 3), np.float32)
    for i in range(len(rows)):
        for k in range(3):
            out[i, k] = normal(key, rows[i] * ROW_DRAWS + first + k)
    return out
