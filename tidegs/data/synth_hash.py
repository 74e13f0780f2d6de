"""Counter-based random numbers for the generated city: a value depends on its key and index alone, never on order.

The mixer is the finalizer of SplitMix64 (Steele, Lea, Flood 2014). The same functions run on numpy arrays and in numba.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_STEP_I = np.uint64(0x9E3779B97F4A7C15)
_STEP_J = np.uint64(0xD1B54A32D192ED03)
_S11, _S27, _S29, _S30, _S31, _S32 = (np.uint64(n) for n in (11, 27, 29, 30, 31, 32))
_UNIT = 2.0**-53

# All kernels of the city: no fast-math (the same bits everywhere), IEEE division, free of the interpreter's lock.
kernel: Any = njit(cache=True, error_model="numpy", nogil=True)


@kernel
def mix(x: int) -> int:
    """uint64 to uint64, every bit of the input stirred into every bit of the output."""
    x = (x ^ (x >> _S30)) * _M1
    x = (x ^ (x >> _S27)) * _M2
    return x ^ (x >> _S31)


@kernel
def hash2(key: int, i: int, j: int) -> int:
    """uint64 of a uint64 key and two signed integers."""
    return mix(key + np.uint64(i) * _STEP_I + np.uint64(j) * _STEP_J)


@kernel
def unit(h: int) -> float:
    """uint64 to float64 in [0, 1)."""
    return np.float64(h >> _S11) * _UNIT


def seed_key(seed: int, salt: int) -> np.uint64:
    """The key of one use (`salt`) of a user's seed (any integer)."""
    x = np.array([(seed * 1_000_003 + salt + 1) % 2**64], np.uint64)
    return np.uint64(mix.py_func(x + _STEP_I)[0])


def uniforms(key: np.uint64, ids: np.ndarray, count: int) -> np.ndarray:
    """float64 [count, n] in [0, 1) for integer ids [n]."""
    base = ids.astype(np.uint64) * _STEP_I + key
    lanes = np.arange(1, count + 1, dtype=np.uint64)[:, None] * _STEP_J
    return (mix.py_func(base[None, :] + lanes) >> _S11).astype(np.float64) * _UNIT


@kernel
def fade(footprint: float, size: float) -> float:
    """Weight of a detail of the given size under a sampling footprint (metres): 1 when well resolved, 0 when lost."""
    return min(1.0, max(0.0, 1.5 - 2.0 * footprint / size))


@kernel
def _lattice(h: int) -> float:
    """A cheaper mixer, good enough for the corners of a noise lattice: uint64 to [0, 1)."""
    h = (h ^ (h >> _S32)) * _M1
    return np.float64((h ^ (h >> _S29)) >> _S11) * _UNIT


@kernel
def value_noise(x: float, y: float, key: int) -> float:
    """Smooth noise in [-1, 1] with lattice spacing 1."""
    fx, fy = math.floor(x), math.floor(y)
    h = key + np.uint64(np.int64(fx)) * _STEP_I + np.uint64(np.int64(fy)) * _STEP_J
    u, v = x - fx, y - fy
    u, v = u * u * (3.0 - 2.0 * u), v * v * (3.0 - 2.0 * v)
    a, b = _lattice(h), _lattice(h + _STEP_I)
    c, d = _lattice(h + _STEP_J), _lattice(h + _STEP_I + _STEP_J)
    return 2.0 * (a + (b - a) * u + (c - a) * v + (a - b - c + d) * u * v) - 1.0


@kernel
def fbm(x: float, y: float, key: int, size: float, octaves: int, footprint: float) -> float:
    """Sum of noise octaves from `size` metres down by halves, each 0.7 as strong; unresolved octaves drop out."""
    total, gain = 0.0, 1.0
    for octave in range(octaves):
        w = fade(footprint, size)
        if w <= 0.0:
            break
        total += gain * w * value_noise(x / size, y / size, key + np.uint64(octave))
        gain *= 0.7
        size *= 0.5
    return total


@kernel
def _pulse_integral(x: float, period: float, width: float) -> float:
    whole = math.floor(x / period)
    return whole * width + min(x - whole * period, width)


@kernel
def pulse(x: float, period: float, width: float, footprint: float) -> float:
    """Coverage in [0, 1] of a pulse train (1 where x mod period < width), box-filtered over the footprint."""
    h = 0.5 * max(footprint, 1e-3)
    return (_pulse_integral(x + h, period, width) - _pulse_integral(x - h, period, width)) / (2.0 * h)
