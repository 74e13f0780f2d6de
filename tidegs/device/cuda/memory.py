"""Device memory beside the arena: what a camera needs, and what happens when it is not there.

Invariant: work that runs out of memory has changed nothing yet, and is told apart from every other failure; it is done
again in smaller pieces, or ends in a CapacityError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from tidegs.errors import CapacityError
from tidegs.gaussians.layout import BASE_COMPONENTS, RecordLayout

# What a camera holds at its peak, counted from gsplat's tensors and ours (float32 and int32, backward included).
PIXEL_NBYTES = 240  # image, alpha, last ids, their gradients, the frame, the target, the loss's planes
ROW_NBYTES = 8 * (BASE_COMPONENTS - 3) + 200  # packed base and its gradients; image space, twice, and its gradients
BAND_NBYTES = 24  # rgb of one band of SH and its gradient
INTERSECTION_NBYTES = 28  # key and id, twice for the sort, and its scratch space
INTERSECTIONS_A_ROW = 8  # tiles that a visible row touches, on average, in dense scenes
SLACK = 1.15  # the allocator's rounding
VISIBLE_SHARE = 0.25  # of the rows in the arena of a scene that exceeds it, in one camera
FIXED_NBYTES = 256 << 20  # modules and kernels that load late

T = TypeVar("T")


class OutOfMemory(Exception):
    """Work ran out of device memory before it changed anything: do it again in smaller pieces."""


def attempt(work: Callable[[], T]) -> T:
    """Does work that changes nothing until it is done; turns out-of-memory errors of torch, gsplat and CUB into
    OutOfMemory, which holds on to none of the memory that the work had allocated."""
    try:
        return work()
    except torch.cuda.OutOfMemoryError as error:
        why = str(error)
    except RuntimeError as error:
        if "out of memory" not in str(error).lower():
            raise
        why = str(error)
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    raise OutOfMemory(why.splitlines()[0])


def in_pieces(n: int, prepare: Callable[[int, int], T], commit: Callable[[T], None]) -> int:
    """`commit(prepare(a, b))` over pieces of [0, n) in ascending order: one, or halves of halves where `prepare` runs
    out of memory. Returns how often it did. Raises CapacityError where a single row is too much."""
    todo, splits = [(0, n)], 0
    while todo:
        first, last = todo.pop()
        why = ""
        try:
            prepared = attempt(lambda a=first, b=last: prepare(a, b))  # type: ignore[misc]
        except OutOfMemory as error:
            why = str(error)
        if not why:
            commit(prepared)
            continue
        if last - first < 2:
            raise too_little(why)
        splits += 1
        middle = (first + last) // 2
        todo += [(middle, last), (first, middle)]
    return splits


def too_little(why: str) -> CapacityError:
    """What the user is told when smaller pieces do not help."""
    return CapacityError(
        f"device memory ran out although the work was split as far as it goes ({why}): "
        "leave more beside the arena with a smaller --device-memory"
    )


def camera_nbytes(width: int, height: int, visible_rows: int, sh_degree: int) -> int:
    """Bytes that rendering a camera needs beside the arena, predicted: what `--device-memory auto` leaves free."""
    row = ROW_NBYTES + BAND_NBYTES * (sh_degree + 1) ** 2 + INTERSECTIONS_A_ROW * INTERSECTION_NBYTES
    return int(SLACK * (width * height * PIXEL_NBYTES + visible_rows * row)) + FIXED_NBYTES


def arena_slots(free: int, layout: RecordLayout, blocks: int, width: int, height: int) -> int:
    """Slots for `--device-memory auto`: what `free` bytes hold beside the largest camera. All blocks where they fit,
    every row of them visible; otherwise as many as leave room for a camera that sees a share of the arena's rows."""

    def beside(rows: int) -> int:
        return camera_nbytes(width, height, rows, layout.sh_degree)

    if blocks * layout.slot_nbytes + beside(blocks * layout.capacity) <= free:
        return blocks
    million = 1_000_000
    per_row = (beside(million) - beside(0)) / million
    slots = int((free - beside(0)) / (layout.slot_nbytes + VISIBLE_SHARE * layout.capacity * per_row))
    return max(0, min(slots, blocks))


def free_memory(device: torch.device) -> int:
    """Bytes free on the device, with what torch holds in reserve but does not use."""
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info(device)[0])
