"""The Triton kernel of checksum.py."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

from tidegs.crc import GENERATOR as _GENERATOR

GENERATOR = tl.constexpr(_GENERATOR)


@triton.jit
def _times(a, b):
    """tidegs.crc.times of uint32 tensors."""
    out = a ^ a
    for k in tl.static_range(32):
        out = out ^ tl.where(((a >> (31 - k)) & 1) != 0, b, 0)
        b = (b >> 1) ^ tl.where((b & 1) != 0, GENERATOR, 0).to(tl.uint32)
    return out


@triton.jit
def _xor(a, b):
    return a ^ b


@triton.jit
def fold_kernel(words, firsts, pages, weights, lane_weights, page_weight, remainders, filled, LANES: tl.constexpr):
    """Of each chunk of `pages` pages from word `firsts`: its remainder times its weight, and whether any bit is set.
    A lane takes every LANES-th word, a page a time. Grid: (chunks,)."""
    chunk = tl.program_id(0)
    lane = tl.arange(0, LANES)
    at = words + tl.load(firsts + chunk) + lane
    shift = tl.load(page_weight).to(tl.uint32, bitcast=True)
    sums = tl.zeros([LANES], tl.uint32)
    seen = tl.zeros([LANES], tl.uint32)
    for page in range(0, tl.load(pages + chunk)):
        word = tl.load(at + page * LANES).to(tl.uint32, bitcast=True)
        sums = _times(sums, shift) ^ word
        seen = seen | word
    sums = _times(sums, tl.load(lane_weights + lane).to(tl.uint32, bitcast=True))
    sums = _times(sums, tl.load(weights + chunk).to(tl.uint32, bitcast=True))
    tl.store(remainders + chunk, tl.reduce(sums, 0, _xor).to(tl.int32, bitcast=True))
    tl.store(filled + chunk, tl.max((seen != 0).to(tl.int32), 0))
