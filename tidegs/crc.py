"""Arithmetic of CRC32C (Castagnoli, RFC 3720), for checksums that are computed in pieces where the bytes lie.

A message is a polynomial over GF(2), and its CRC, but for constants, the remainder of that polynomial times x^32 by
the generator; so remainders of pieces, each times a power of x, add up (by XOR) to that of the whole. Numbers are
bit-reflected, as usual: the highest bit is the coefficient of x^0. Invariant: nothing here depends on how a message
was cut.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

GENERATOR = 0x82F63B78
PAGE = 4096  # bytes; pieces are whole pages
_ONE, _ALL = 1 << 31, 0xFFFFFFFF


def times(a: Any, b: Any) -> Any:
    """Products of polynomials, modulo the generator: of two ints, or of uint32 [n] and uint32 [n]."""
    out = a ^ a
    for k in range(31, -1, -1):
        out ^= b * (a >> k & 1)
        b = b >> 1 ^ (b & 1) * GENERATOR
    return out


@cache
def power(n: int) -> int:
    """x^n modulo the generator."""
    if n == 0:
        return _ONE
    half = power(n // 2)
    square = times(half, half)
    return square >> 1 ^ (square & 1) * GENERATOR if n % 2 else square


def join(remainders: np.ndarray, pages: np.ndarray, owner: np.ndarray, owners: int) -> np.ndarray:
    """The remainder of each owner's pieces, one after the other: uint32 [owners], from uint32 [n], the pages of each
    piece and whose it is, int64 [n], ascending."""
    total = np.zeros(owners + 1, np.int64)
    np.add.at(total, owner + 1, pages)
    behind = np.cumsum(total)[owner + 1] - np.cumsum(pages)
    weights = np.array([power(8 * PAGE * n) for n in behind.tolist()], np.uint32)
    out = np.zeros(owners, np.uint32)
    np.bitwise_xor.at(out, owner, times(np.asarray(remainders, np.uint32), weights))
    return out


def finish(remainder: int, pages: int) -> int:
    """CRC32C of a message of whole pages with this remainder."""
    return remainder ^ times(_ALL, power(8 * PAGE * pages)) ^ _ALL
