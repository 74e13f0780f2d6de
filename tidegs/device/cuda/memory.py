"""Device memory beside the arena: what a pass needs, and what happens when it is not there.

Invariant: a pass that runs out of memory has changed nothing yet; it is told apart from every other failure.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tidegs.gaussians.layout import BASE_COMPONENTS

# What a pass holds at its peak, counted from gsplat's tensors and ours (float32 and int32, backward included).
PIXEL_NBYTES = 240  # image, alpha, last ids, their gradients, the frame, the target, the loss's planes
ROW_NBYTES = 8 * (BASE_COMPONENTS - 3) + 160  # packed base and its gradients; projection, colours and theirs
BAND_NBYTES = 24  # rgb of one band of SH and its gradient
INTERSECTION_NBYTES = 28  # key and id, twice for the sort, and its scratch space
INTERSECTIONS_A_ROW = 8  # tiles that a visible row touches, on average, in dense scenes
SLACK = 1.15  # the allocator's rounding
FIXED_NBYTES = 256 << 20  # modules and kernels that load late


class PassTooLarge(Exception):
    """A pass ran out of device memory before it changed anything: split it and try again."""


@contextmanager
def too_large() -> Iterator[None]:
    """Turns out-of-memory errors of torch, gsplat and CUB into PassTooLarge."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise PassTooLarge(str(error).splitlines()[0]) from error
    except RuntimeError as error:
        if "out of memory" not in str(error).lower():
            raise
        raise PassTooLarge(str(error).splitlines()[0]) from error


def pass_nbytes(width: int, height: int, visible_rows: int, sh_degree: int) -> int:
    """Bytes that a pass needs beside the arena, predicted: what `--device-memory auto` leaves free."""
    row = ROW_NBYTES + BAND_NBYTES * (sh_degree + 1) ** 2 + INTERSECTIONS_A_ROW * INTERSECTION_NBYTES
    return int(SLACK * (width * height * PIXEL_NBYTES + visible_rows * row)) + FIXED_NBYTES


def free_memory(device: torch.device) -> int:
    """Bytes free on the device, with what torch holds in reserve but does not use."""
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info(device)[0])
