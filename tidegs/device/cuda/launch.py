"""Launches the Triton kernels: the same functions as twins.py.

Invariant: nothing here waits for the device but `cull`, which must know how many rows there are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tidegs.device.cuda import kernels
from tidegs.device.cuda.arena import Arena
from tidegs.device.cuda.rows import (
    EXTENT_MARGIN,
    AdamNumbers,
    Blocks,
    Camera,
    Culling,
    Params,
    Reach,
    empty_params,
)

ROWS, WARPS = 64, 2  # a lane a row; a block's capacity may be any multiple of 64


def _shape(arena: Arena) -> dict[str, int]:
    shape = {"SLOT_FLOATS": arena.slot_floats, "CAPACITY": arena.layout.capacity}
    return {**shape, "ROWS": ROWS, "num_warps": WARPS}


def _record(arena: Arena, sh_degree: int) -> dict[str, int]:
    """Where the planes that Adam touches lie, from the component of `base` (or `rest`) that they belong to."""
    return {
        "REST": _rest(sh_degree),
        "REST_AT": arena.offset("rest"),
        "M_BASE": arena.offset("m_base"),
        "M_REST": arena.offset("m_rest"),
        "V_BASE": arena.offset("v_base"),
        "V_REST": arena.offset("v_rest"),
    }


def _grads(arena: Arena) -> dict[str, int]:
    at = arena.offset("grads")
    return {"GRADS_AT": at, "MARKS_AT": at + arena.layout.param_components * arena.layout.capacity}


def _rest(sh_degree: int) -> int:
    return 3 * (sh_degree + 1) ** 2 - 3


def _grid(n: int) -> tuple[int]:
    return (-(-n // ROWS),)


def _numbers(adam: AdamNumbers) -> tuple[float, ...]:
    return (*adam.rates, adam.gain1, adam.beta2, adam.gain2, adam.eps, adam.inv_sqrt_bias2)


def cull(arena: Arena, blocks: Blocks, camera: Camera, culling: Culling) -> Tensor:
    """See twins.cull."""
    capacity = arena.layout.capacity
    keep = torch.empty(len(blocks) * capacity, dtype=torch.int8, device=arena.device)
    kernels.cull_kernel[(len(blocks), capacity // ROWS)](
        arena.floats,
        blocks.slots,
        blocks.counts,
        keep,
        *camera.rotation,
        *camera.translation,
        sum(abs(t) for t in camera.translation),
        camera.fx,
        camera.fy,
        camera.cx,
        camera.cy,
        float(camera.width),
        float(camera.height),
        culling.near,
        culling.far,
        max(0.5 * culling.near, 1e-12),
        culling.eps2d,
        culling.radius_clip,
        **_shape(arena),
    )
    return keep.nonzero()[:, 0]


def gather(arena: Arena, blocks: Blocks, rows: Tensor, sh_degree: int) -> Params:
    """See twins.gather."""
    out = empty_params(len(rows), sh_degree, arena.device)
    kernels.gather_kernel[_grid(len(rows))](
        arena.floats,
        blocks.slots,
        rows,
        len(rows),
        *out.tensors(),
        REST=_rest(sh_degree),
        REST_AT=arena.offset("rest"),
        **_shape(arena),
    )
    return out


def adam_rows(
    arena: Arena, blocks: Blocks, rows: Tensor, take: Tensor, params: Params, grads: Params, adam: AdamNumbers
) -> None:
    """See twins.adam_rows."""
    kernels.adam_rows_kernel[_grid(len(rows))](
        *_row_arguments(arena, blocks, rows, take, params, grads),
        *_numbers(adam),
        **_record(arena, _degree(params)),
        **_shape(arena),
    )


def add_grads(arena: Arena, blocks: Blocks, rows: Tensor, take: Tensor, params: Params, grads: Params) -> None:
    """See twins.add_grads."""
    kernels.add_grads_kernel[_grid(len(rows))](
        *_row_arguments(arena, blocks, rows, take, params, grads),
        REST=_rest(_degree(params)),
        **_grads(arena),
        **_shape(arena),
    )


def _row_arguments(
    arena: Arena, blocks: Blocks, rows: Tensor, take: Tensor, params: Params, grads: Params
) -> tuple[Tensor | int, ...]:
    inputs = (arena.floats, blocks.slots, rows, take.view(torch.int8), len(rows), params.scales, params.opacities)
    return (*inputs, *(g.contiguous() for g in grads.tensors()))


def _degree(params: Params) -> int:
    return {1: 0, 4: 1, 9: 2, 16: 3}[params.sh.shape[1]]


def clear_marks(arena: Arena, slots: Tensor) -> None:
    """See twins.clear_marks."""
    arena.plane("grads")[:, -1].index_fill_(0, slots.long(), 0.0)


def adam_marked(arena: Arena, slots: Tensor, counts: Tensor, sh_degree: int, adam: AdamNumbers) -> Tensor:
    """See twins.adam_marked."""
    tiles = arena.layout.capacity // ROWS
    marked = torch.empty(len(slots), tiles, dtype=torch.int32, device=arena.device)
    kernels.adam_marked_kernel[(len(slots), tiles)](
        arena.floats,
        slots,
        counts,
        marked,
        *_numbers(adam),
        **_record(arena, sh_degree),
        **_grads(arena),
        **_shape(arena),
    )
    return marked.sum(1, dtype=torch.int32)


def adam_rest(arena: Arena, slots: Tensor, counts: Tensor, took: Tensor, sh_degree: int, adam: AdamNumbers) -> None:
    """See twins.adam_rest."""
    kernels.adam_rest_kernel[(len(slots), arena.layout.capacity // ROWS)](
        arena.floats,
        slots,
        counts,
        took.view(torch.int8),
        *_numbers(adam),
        **_record(arena, sh_degree),
        **_shape(arena),
    )


def noise(arena: Arena, blocks: Blocks, keys: Tensor, scales: Tensor, floor: float) -> Tensor:
    """See twins.noise."""
    tiles = arena.layout.capacity // ROWS
    mass = torch.empty(len(blocks), tiles, dtype=torch.float32, device=arena.device)
    dead = torch.empty(len(blocks), tiles, dtype=torch.int32, device=arena.device)
    kernels.noise_kernel[(len(blocks), tiles)](
        arena.floats, blocks.slots, blocks.counts, keys, scales, floor, mass, dead, **_shape(arena)
    )
    return torch.stack([mass.sum(1, dtype=torch.float64), dead.sum(1, dtype=torch.float64)], 1)


def bounds(arena: Arena, blocks: Blocks, reach: Reach | None = None) -> Tensor:
    """See twins.bounds."""
    out = torch.empty(len(blocks), 7, dtype=torch.float32, device=arena.device)
    shape = {**_shape(arena), "ROWS": 256, "num_warps": 4}
    ways = (reach.means, reach.scales, reach.eps) if reach else (0.0, 0.0, 0.0)
    kernels.bounds_kernel[(len(blocks),)](
        arena.floats,
        blocks.slots,
        blocks.counts,
        out,
        EXTENT_MARGIN,
        *ways,
        DENSE=reach is not None,
        M_BASE=arena.offset("m_base"),
        V_BASE=arena.offset("v_base"),
        **shape,
    )
    return out
