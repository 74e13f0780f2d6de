"""The torch twins of the Triton kernels: same arguments, same results; on any device.

Invariant: this file says what the kernels must compute; tests hold the kernels to it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tidegs.device.cuda.arena import Arena
from tidegs.device.cuda.rows import (
    ALPHA_THRESHOLD,
    EXTENT_MARGIN,
    RADIUS_SIGMAS,
    AdamNumbers,
    Blocks,
    Camera,
    Culling,
    Params,
    Reach,
)
from tidegs.gaussians.layout import BASE_COMPONENTS, BASE_FIELDS


def cull(arena: Arena, blocks: Blocks, camera: Camera, culling: Culling) -> Tensor:
    """Packed rows (int64 [R], ascending) that gsplat may find visible: a superset, by a bound on the projected radius
    that needs neither rotation nor covariance: the greatest scale times the length of the Jacobian's row."""
    base = arena.plane("base")[blocks.slots.long()]  # [n, 14, C]
    x, y, z = base[:, 0], base[:, 1], base[:, 2]
    r, t = camera.rotation, camera.translation
    cx, cy, cz = (r[3 * k] * x + r[3 * k + 1] * y + r[3 * k + 2] * z + t[k] for k in range(3))
    # What rounding may move a camera coordinate by, generously: world coordinates can be large.
    error = 1e-5 * (x.abs() + y.abs() + z.abs() + abs(t[0]) + abs(t[1]) + abs(t[2]))
    opacity = torch.sigmoid(base[:, 10])
    culled = (cz < culling.near - error) | (cz > culling.far + error) | (opacity * 1.001 < ALPHA_THRESHOLD)
    depth = torch.clamp_min(cz, max(0.5 * culling.near, 1e-12))
    sigmas = torch.sqrt(2.0 * torch.log(torch.clamp_min(opacity * 1.001 / ALPHA_THRESHOLD, 1.0)))
    sigmas = torch.clamp_max(sigmas, RADIUS_SIGMAS)
    scale = torch.exp(base[:, 7:10].amax(1))
    radii = []
    for at, focal, centre, size in (
        (cx, camera.fx, camera.cx, camera.width),
        (cy, camera.fy, camera.cy, camera.height),
    ):
        # gsplat clamps the Jacobian's slope to 0.15 image sizes beyond the image.
        slope = torch.clamp(at / depth, -(centre + 0.15 * size) / focal, (size - centre + 0.15 * size) / focal)
        sigma = torch.sqrt((scale * focal / depth) ** 2 * (1.0 + slope * slope) + culling.eps2d)
        radius = 1.0001 * torch.ceil(sigmas * sigma) + 1.0
        margin = radius + 2.0 * focal * error / depth
        pixel = focal * at / depth + centre
        culled |= (pixel + margin <= 0.0) | (pixel - margin >= size)
        radii.append(radius)
    culled |= (radii[0] <= culling.radius_clip) & (radii[1] <= culling.radius_clip)
    rows = torch.arange(arena.layout.capacity, device=x.device)
    return ((rows < blocks.counts[:, None]) & ~culled).flatten().nonzero()[:, 0]


def noise(arena: Arena, blocks: Blocks, keys: Tensor, scales: Tensor, floor: float) -> Tensor:
    """Moves the means of all rows in use (base.MeanNoise; `keys` int64 [n], the bits of the hash's key). Returns each
    block's opacity mass and number of dead rows, float64 [n, 2]."""
    slots = blocks.slots.long()
    row = torch.arange(arena.layout.capacity, device=slots.device)
    used = row < blocks.counts[:, None]
    base = arena.plane("base")[slots]
    opacity = torch.sigmoid(base[:, 10])
    size = scales[:, None] * torch.sigmoid(100.0 * ((1.0 - opacity) - 0.995))
    draws = torch.stack([_normal(keys[:, None], row * _ROW_DRAWS + k) for k in range(3)], 1)  # [n, 3, C]
    rotations = _rotations(base[:, 3:7])  # [n, 3, 3, C]
    along = torch.einsum("nkac,nkc->nac", rotations, size[:, None] * draws) * torch.exp(base[:, 7:10]) ** 2
    means = base[:, 0:3] + torch.einsum("nkac,nac->nkc", rotations, along)
    arena.plane("base")[slots, 0:3] = torch.where(used[:, None], means, base[:, 0:3])
    alive = used & (opacity > floor)
    mass = torch.where(alive, opacity, 0.0).sum(1, dtype=torch.float64)
    return torch.stack([mass, (used & ~alive).sum(1, dtype=torch.float64)], 1)


def _rotations(quats: Tensor) -> Tensor:
    """[n, 3, 3, C] of quats [n, 4, C], wxyz, not normalised."""
    w, x, y, z = torch.nn.functional.normalize(quats, dim=1, eps=1e-12).unbind(1)
    rows = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    )
    return torch.stack([torch.stack(row, 1) for row in rows], 1)


_GOLDEN, _MIX1, _MIX2 = (x - (1 << 64) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_ROW_DRAWS = 8  # counters set apart for each row


def _normal(key: Tensor, counter: Tensor) -> Tensor:
    """Number `counter` of each key's normal numbers, float32."""
    h = key + (counter + 1) * _GOLDEN
    h = (h ^ _shift(h, 30)) * _MIX1
    h = (h ^ _shift(h, 27)) * _MIX2
    h = h ^ _shift(h, 31)
    u = (_shift(h, 32).to(torch.float32) + 0.5) * 2.0**-32
    v = (h & 0xFFFFFFFF).to(torch.float32) * 2.0**-32
    return torch.sqrt(torch.clamp_min(-2.0 * torch.log(u), 0.0)) * torch.cos(2.0 * math.pi * v)


def _shift(x: Tensor, n: int) -> Tensor:
    """Unsigned shift to the right of int64, which torch shifts with its sign."""
    return (x >> n) & ((1 << (64 - n)) - 1)


def _split(arena: Arena, blocks: Blocks, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Slot and row within it of packed rows."""
    capacity = arena.layout.capacity
    return blocks.slots.long()[rows // capacity], rows % capacity


def gather(arena: Arena, blocks: Blocks, rows: Tensor, sh_degree: int) -> Params:
    """Packs and activates rows."""
    slot, row = _split(arena, blocks, rows)
    base = arena.plane("base")[slot, :, row]
    rest = arena.plane("rest")[slot, : 3 * (sh_degree + 1) ** 2 - 3, row]
    return Params(
        means=base[:, BASE_FIELDS["means"]].contiguous(),
        quats=base[:, BASE_FIELDS["quats"]].contiguous(),
        scales=torch.exp(base[:, BASE_FIELDS["scales"]]),
        opacities=torch.sigmoid(base[:, 10]),
        sh=torch.cat([base[:, BASE_FIELDS["sh0"]], rest], 1).view(len(rows), (sh_degree + 1) ** 2, 3),
    )


def _stored_grads(params: Params, grads: Params) -> Tensor:
    """Gradients with respect to what the record stores, float32 [R, 14 + 3 (bands - 1)]."""
    opacities = params.opacities * (1.0 - params.opacities) * grads.opacities
    parts = [grads.means, grads.quats, params.scales * grads.scales, opacities[:, None], grads.sh.flatten(1)]
    return torch.cat(parts, 1)


def adam_rows(
    arena: Arena, blocks: Blocks, rows: Tensor, take: Tensor, params: Params, grads: Params, adam: AdamNumbers
) -> None:
    """Adam on the rows where `take` (bool [R]) is set."""
    slot, row = _split(arena, blocks, rows[take])
    _adam(arena, slot, row, _stored_grads(params, grads)[take], adam)


def clear_marks(arena: Arena, slots: Tensor) -> None:
    """Marks of the slots (int32 [m]) to zero: `grads` holds nothing."""
    arena.plane("grads")[slots.long(), -1] = 0.0


def add_grads(arena: Arena, blocks: Blocks, rows: Tensor, take: Tensor, params: Params, grads: Params) -> None:
    """Adds gradients to the `grads` planes of the rows where `take` is set, and marks these rows."""
    slot, row = _split(arena, blocks, rows[take])
    new = _stored_grads(params, grads)[take]
    plane = arena.plane("grads")
    marked = plane[slot, -1, row] > 0.0
    plane[slot, : new.shape[1], row] = torch.where(marked[:, None], plane[slot, : new.shape[1], row], 0.0) + new
    plane[slot, -1, row] = 1.0


def adam_marked(arena: Arena, slots: Tensor, counts: Tensor, sh_degree: int, adam: AdamNumbers) -> Tensor:
    """Adam on the marked rows of the slots (int32 [m]), from their `grads` planes; returns how many, int32 [m]."""
    capacity = arena.layout.capacity
    marks = arena.plane("grads")[slots.long(), -1] > 0.0
    marks &= torch.arange(capacity, device=marks.device) < counts[:, None]
    block, row = marks.nonzero(as_tuple=True)
    slot = slots.long()[block]
    grads = arena.plane("grads")[slot, : BASE_COMPONENTS + 3 * (sh_degree + 1) ** 2 - 3, row]
    _adam(arena, slot, row, grads, adam)
    return marks.sum(1, dtype=torch.int32)


def adam_rest(arena: Arena, slots: Tensor, counts: Tensor, took: Tensor, sh_degree: int, adam: AdamNumbers) -> None:
    """Adam without gradients on the rows of the slots (int32 [m]) that are not in `took` (bool [m, capacity])."""
    rows = torch.arange(arena.layout.capacity, device=took.device)
    block, row = ((rows < counts[:, None]) & ~took).nonzero(as_tuple=True)
    none = arena.floats.new_zeros(len(row), BASE_COMPONENTS + 3 * (sh_degree + 1) ** 2 - 3)
    _adam(arena, slots.long()[block], row, none, adam)


def _adam(arena: Arena, slot: Tensor, row: Tensor, grads: Tensor, adam: AdamNumbers) -> None:
    base_rates = [rate for rate, field in zip(adam.rates, BASE_FIELDS.values(), strict=False) for _ in _range(field)]
    for kind, grad, rate in (
        ("base", grads[:, :BASE_COMPONENTS], grads.new_tensor(base_rates)),
        ("rest", grads[:, BASE_COMPONENTS:], grads.new_tensor(adam.rates[-1])),
    ):
        n = grad.shape[1]
        param, m, v = (arena.plane(prefix + kind) for prefix in ("", "m_", "v_"))
        m0, v0 = m[slot, :n, row], v[slot, :n, row]
        new_m = m0 + (grad - m0) * adam.gain1
        new_v = v0 * adam.beta2 + grad * grad * adam.gain2
        step = rate * new_m / (torch.sqrt(new_v) * adam.inv_sqrt_bias2 + adam.eps)
        param[slot, :n, row] = param[slot, :n, row] - step
        m[slot, :n, row] = new_m
        v[slot, :n, row] = new_v


def _range(field: slice) -> range:
    return range(field.start, field.stop)


def bounds(arena: Arena, blocks: Blocks, reach: Reach | None = None) -> Tensor:
    """Least mean, greatest mean and greatest scale of each block's rows in use, wherever momentum can take them within
    `reach`; float32 [n, 7]."""
    base = arena.plane("base")[blocks.slots.long()]
    means = farthest = base[:, 0:3]
    scales = base[:, 7:10]
    if reach is not None:
        m, v = (arena.plane(name)[blocks.slots.long()] for name in ("m_base", "v_base"))
        ways = m / (torch.sqrt(v) + reach.eps)
        farthest = means - reach.means * ways[:, 0:3]
        scales = torch.maximum(scales, scales - reach.scales * ways[:, 7:10])
    used = torch.arange(arena.layout.capacity, device=base.device) < blocks.counts[:, None]
    least = torch.minimum(means, farthest).masked_fill(~used[:, None], float("inf")).amin(2)
    most = torch.maximum(means, farthest).masked_fill(~used[:, None], float("-inf")).amax(2)
    scale = scales.masked_fill(~used[:, None], float("-inf")).amax((1, 2))
    return torch.cat([least, most, (torch.exp(scale) * EXTENT_MARGIN)[:, None]], 1)
