"""CRC32C of bytes in device memory, in pieces (see tidegs.crc): what crosses to the host is 8 bytes a chunk.

Invariant: `fold` and `fold_twin` give the same bits, however they cut pieces into chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from tidegs.crc import PAGE, power, times

LANES = PAGE // 4  # words of a page
CHUNK_PAGES = 16  # of a program

# First byte and bytes of each piece -> remainders uint32 [n], whether any byte is not zero bool [n].
Fold = Callable[[Tensor, Sequence[tuple[int, int]]], tuple[np.ndarray, np.ndarray]]


def fold(memory: Tensor, pieces: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """By Triton, on the current stream; waits for it. `memory`: uint8 [n]; pieces: (first byte, bytes), whole pages."""
    from tidegs.device.cuda.checksum_kernels import fold_kernel

    firsts, pages, weights, owner = _cut(pieces, CHUNK_PAGES)
    there = [torch.from_numpy(a).to(memory.device) for a in (firsts, pages, weights)]
    lanes, step = (torch.from_numpy(a).to(memory.device) for a in (_lane_weights(), _int32(power(8 * PAGE))))
    remainders, filled = (torch.empty(len(owner), dtype=torch.int32, device=memory.device) for _ in range(2))
    if len(owner):
        words = memory.view(torch.int32)
        fold_kernel[(len(owner),)](words, *there, lanes, step, remainders, filled, LANES=LANES, num_warps=4)
    return _gather(remainders.cpu().numpy().view(np.uint32), filled.cpu().numpy() != 0, owner, len(pieces))


def fold_twin(memory: Tensor, pieces: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """The same by torch, page by page."""
    firsts, _, weights, owner = _cut(pieces, 1)
    at = torch.from_numpy(firsts)[:, None] + torch.arange(LANES)
    words = memory.view(torch.int32)[at.to(memory.device)].long() & 0xFFFFFFFF
    lanes, behind = (torch.from_numpy(a).to(memory.device).long() & 0xFFFFFFFF for a in (_lane_weights(), weights))
    sums = times(times(words, lanes), behind[:, None])
    while sums.shape[1] > 1:
        half = sums.shape[1] // 2
        sums = sums[:, :half] ^ sums[:, half:]
    filled = (words != 0).any(1).cpu().numpy()
    return _gather(sums[:, 0].cpu().numpy().astype(np.uint32), filled, owner, len(pieces))


def _cut(pieces: Sequence[tuple[int, int]], most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Chunks of at most `most` pages: first word int64, pages int32, weight int32 (x to the bits behind the chunk in
    its piece), and the number of the piece."""
    rows = []
    for owner, (first, nbytes) in enumerate(pieces):
        total = nbytes // PAGE
        for page in range(0, total, most):
            n = min(most, total - page)
            rows.append((first // 4 + page * LANES, n, power(8 * PAGE * (total - page - n)), owner))
    table = np.array(rows, np.int64).reshape(-1, 4)
    return table[:, 0].copy(), table[:, 1].astype(np.int32), _int32(table[:, 2]), table[:, 3].copy()


def _gather(remainders: np.ndarray, filled: np.ndarray, owner: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    out, any_ = np.zeros(count, np.uint32), np.zeros(count, bool)
    np.bitwise_xor.at(out, owner, remainders)
    np.logical_or.at(any_, owner, filled)
    return out, any_


@cache
def _lane_weights() -> np.ndarray:
    """x to the bits from each word of a page to the page's end, int32 [LANES]."""
    return _int32(np.array([power(32 * (LANES - lane)) for lane in range(LANES)]))


def _int32(values: np.ndarray | int) -> np.ndarray:
    """The same 32 bits."""
    return np.atleast_1d(np.asarray(values)).astype(np.uint32).view(np.int32)
