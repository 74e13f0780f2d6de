"""Memory that direct I/O accepts: page-aligned uint8 arrays."""

from __future__ import annotations

import numpy as np

from tidegs.gaussians.layout import ALIGN


def aligned_empty(nbytes: int) -> np.ndarray:
    """An uninitialised uint8 array of `nbytes` that starts on a 4 KiB boundary."""
    raw = np.empty(nbytes + ALIGN, np.uint8)
    skip = -raw.__array_interface__["data"][0] % ALIGN
    return raw[skip : skip + nbytes]


def aligned_slots(count: int, nbytes: int) -> np.ndarray:
    """Zeroed uint8 [count, nbytes], each row on a 4 KiB boundary; `nbytes` is a multiple of 4 KiB."""
    slots = aligned_empty(count * nbytes).reshape(count, nbytes)
    slots[:] = 0
    return slots


def address(array: np.ndarray) -> int:
    """The address of the array's first byte."""
    return array.__array_interface__["data"][0]
