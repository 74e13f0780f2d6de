"""Triton kernels over the slots of the arena; see twins.py for what each computes.

Invariant: a kernel reads and writes planes in place by slot list, one lane a row, so that lanes of neighbouring rows
touch neighbouring memory; addresses in the arena are 64 bits wide. No atomics: the results do not vary from run to run.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _at(arena, slots, packed, mask, SLOT_FLOATS: tl.constexpr, CAPACITY: tl.constexpr):
    """Address of component 0 of each packed row in its slot."""
    slot = tl.load(slots + packed // CAPACITY, mask=mask, other=0).to(tl.int64)
    return arena + slot * SLOT_FLOATS + packed % CAPACITY


@triton.jit
def _tile(arena, slots, counts, SLOT_FLOATS: tl.constexpr, ROWS: tl.constexpr):
    """Of a program of a grid (blocks, CAPACITY / ROWS): its block, rows, which of them are in use, and the address of
    component 0 of each."""
    block = tl.program_id(0)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    at = arena + tl.load(slots + block).to(tl.int64) * SLOT_FLOATS + row
    return block, row, row < tl.load(counts + block), at


@triton.jit
def _radius(at, depth, focal, centre, size, scale, sigmas, eps2d):
    slope = tl.minimum(tl.maximum(at / depth, -(centre + 0.15 * size) / focal), (size - centre + 0.15 * size) / focal)
    length = scale * focal / depth
    return 1.0001 * tl.ceil(sigmas * tl.sqrt(length * length * (1.0 + slope * slope) + eps2d)) + 1.0


@triton.jit
def cull_kernel(
    arena, slots, counts, keep,
    r0, r1, r2, r3, r4, r5, r6, r7, r8, t0, t1, t2, t_error,
    fx, fy, centre_x, centre_y, width, height, near, far, least_depth, eps2d, radius_clip,
    SLOT_FLOATS: tl.constexpr, CAPACITY: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """keep [n * CAPACITY] (int8) = 1 where gsplat may find the row visible. Grid: (n, CAPACITY / ROWS)."""
    block, row, used, at = _tile(arena, slots, counts, SLOT_FLOATS, ROWS)
    x = tl.load(at, mask=used, other=0.0)
    y = tl.load(at + CAPACITY, mask=used, other=0.0)
    z = tl.load(at + 2 * CAPACITY, mask=used, other=0.0)
    scale = tl.load(at + 7 * CAPACITY, mask=used, other=0.0)
    scale = tl.maximum(scale, tl.load(at + 8 * CAPACITY, mask=used, other=0.0))
    scale = tl.exp(tl.maximum(scale, tl.load(at + 9 * CAPACITY, mask=used, other=0.0)))
    opacity = 1.0 / (1.0 + tl.exp(-tl.load(at + 10 * CAPACITY, mask=used, other=0.0)))

    cx = r0 * x + r1 * y + r2 * z + t0
    cy = r3 * x + r4 * y + r5 * z + t1
    cz = r6 * x + r7 * y + r8 * z + t2
    error = 1e-5 * (tl.abs(x) + tl.abs(y) + tl.abs(z) + t_error)
    depth = tl.maximum(cz, least_depth)
    share = opacity * 1.001 * 255.0
    sigmas = tl.minimum(tl.sqrt(2.0 * tl.log(tl.maximum(share, 1.0))), 3.33)
    rx = _radius(cx, depth, fx, centre_x, width, scale, sigmas, eps2d)
    ry = _radius(cy, depth, fy, centre_y, height, scale, sigmas, eps2d)
    margin_x, margin_y = rx + 2.0 * fx * error / depth, ry + 2.0 * fy * error / depth
    px, py = fx * cx / depth + centre_x, fy * cy / depth + centre_y

    culled = (cz < near - error) | (cz > far + error) | (share < 1.0)
    culled = culled | (px + margin_x <= 0.0) | (px - margin_x >= width)
    culled = culled | (py + margin_y <= 0.0) | (py - margin_y >= height)
    culled = culled | ((rx <= radius_clip) & (ry <= radius_clip))
    tl.store(keep + block * CAPACITY + row, tl.where(used & (culled == 0), 1, 0).to(tl.int8))


@triton.jit
def gather_kernel(
    arena, slots, rows, n, means, quats, scales, opacities, sh,
    REST: tl.constexpr, REST_AT: tl.constexpr, SLOT_FLOATS: tl.constexpr, CAPACITY: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Packs and activates rows; REST components of shN."""
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mask = i < n
    at = _at(arena, slots, tl.load(rows + i, mask=mask, other=0), mask, SLOT_FLOATS, CAPACITY)
    for c in tl.static_range(3):
        tl.store(means + i * 3 + c, tl.load(at + c * CAPACITY, mask=mask), mask=mask)
        tl.store(scales + i * 3 + c, tl.exp(tl.load(at + (7 + c) * CAPACITY, mask=mask)), mask=mask)
        tl.store(sh + i * (3 + REST) + c, tl.load(at + (11 + c) * CAPACITY, mask=mask), mask=mask)
    for c in tl.static_range(4):
        tl.store(quats + i * 4 + c, tl.load(at + (3 + c) * CAPACITY, mask=mask), mask=mask)
    tl.store(opacities + i, 1.0 / (1.0 + tl.exp(-tl.load(at + 10 * CAPACITY, mask=mask))), mask=mask)
    for c in range(REST):
        tl.store(sh + i * (3 + REST) + 3 + c, tl.load(at + REST_AT + c * CAPACITY, mask=mask), mask=mask)


@triton.jit
def _adam(param, moment1, moment2, grad, mask, rate, gain1, beta2, gain2, eps, inv_sqrt_bias2):
    """One component of each lane's row; see rows.adam_numbers."""
    m = tl.load(moment1, mask=mask, other=0.0)
    v = tl.load(moment2, mask=mask, other=0.0)
    m = m + (grad - m) * gain1
    v = v * beta2 + grad * grad * gain2
    step = rate * m / (tl.sqrt(v) * inv_sqrt_bias2 + eps)
    tl.store(param, tl.load(param, mask=mask, other=0.0) - step, mask=mask)
    tl.store(moment1, m, mask=mask)
    tl.store(moment2, v, mask=mask)


@triton.jit
def _stored_grad(c: tl.constexpr, i, mask, scales, opacities, g_means, g_quats, g_scales, g_opacities, g_sh, REST):
    """Gradient of component c of `base`, with respect to what the record stores."""
    if c < 3:
        grad = tl.load(g_means + i * 3 + c, mask=mask, other=0.0)
    elif c < 7:
        grad = tl.load(g_quats + i * 4 + c - 3, mask=mask, other=0.0)
    elif c < 10:
        grad = tl.load(g_scales + i * 3 + c - 7, mask=mask, other=0.0)
        grad = grad * tl.load(scales + i * 3 + c - 7, mask=mask, other=0.0)
    elif c < 11:
        opacity = tl.load(opacities + i, mask=mask, other=0.0)
        grad = tl.load(g_opacities + i, mask=mask, other=0.0) * opacity * (1.0 - opacity)
    else:
        grad = tl.load(g_sh + i * (3 + REST) + c - 11, mask=mask, other=0.0)
    return grad


@triton.jit
def _rate(c: tl.constexpr, means_rate, quats_rate, scales_rate, opacities_rate, sh0_rate):
    if c < 3:
        rate = means_rate
    elif c < 7:
        rate = quats_rate
    elif c < 10:
        rate = scales_rate
    elif c < 11:
        rate = opacities_rate
    else:
        rate = sh0_rate
    return rate


@triton.jit
def adam_rows_kernel(
    arena, slots, rows, take, n, scales, opacities, g_means, g_quats, g_scales, g_opacities, g_sh,
    means_rate, quats_rate, scales_rate, opacities_rate, sh0_rate, shN_rate, gain1, beta2, gain2, eps, inv_sqrt_bias2,
    REST: tl.constexpr, REST_AT: tl.constexpr, M_BASE: tl.constexpr, M_REST: tl.constexpr,
    V_BASE: tl.constexpr, V_REST: tl.constexpr,
    SLOT_FLOATS: tl.constexpr, CAPACITY: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Adam on packed rows from their gradients."""
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mask = i < n
    mask = mask & (tl.load(take + i, mask=mask, other=0) != 0)
    at = _at(arena, slots, tl.load(rows + i, mask=mask, other=0), mask, SLOT_FLOATS, CAPACITY)
    for c in tl.static_range(14):
        grad = _stored_grad(c, i, mask, scales, opacities, g_means, g_quats, g_scales, g_opacities, g_sh, REST)
        rate = _rate(c, means_rate, quats_rate, scales_rate, opacities_rate, sh0_rate)
        to = at + c * CAPACITY
        _adam(to, to + M_BASE, to + V_BASE, grad, mask, rate, gain1, beta2, gain2, eps, inv_sqrt_bias2)
    for c in range(REST):
        grad = tl.load(g_sh + i * (3 + REST) + 3 + c, mask=mask, other=0.0)
        to = at + c * CAPACITY
        _adam(to + REST_AT, to + M_REST, to + V_REST, grad, mask, shN_rate, gain1, beta2, gain2, eps, inv_sqrt_bias2)


@triton.jit
def add_grads_kernel(
    arena, slots, rows, take, n, scales, opacities, g_means, g_quats, g_scales, g_opacities, g_sh,
    REST: tl.constexpr, GRADS_AT: tl.constexpr, MARKS_AT: tl.constexpr,
    SLOT_FLOATS: tl.constexpr, CAPACITY: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Adds gradients of packed rows to their `grads` planes, and marks the rows."""
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mask = i < n
    mask = mask & (tl.load(take + i, mask=mask, other=0) != 0)
    at = _at(arena, slots, tl.load(rows + i, mask=mask, other=0), mask, SLOT_FLOATS, CAPACITY)
    old = mask & (tl.load(at + MARKS_AT, mask=mask, other=0.0) > 0.0)
    for c in tl.static_range(14):
        grad = _stored_grad(c, i, mask, scales, opacities, g_means, g_quats, g_scales, g_opacities, g_sh, REST)
        to = at + GRADS_AT + c * CAPACITY
        tl.store(to, tl.load(to, mask=old, other=0.0) + grad, mask=mask)
    for c in range(REST):
        grad = tl.load(g_sh + i * (3 + REST) + 3 + c, mask=mask, other=0.0)
        to = at + GRADS_AT + (14 + c) * CAPACITY
        tl.store(to, tl.load(to, mask=old, other=0.0) + grad, mask=mask)
    tl.store(at + MARKS_AT, tl.full((ROWS,), 1.0, tl.float32), mask=mask)


@triton.jit
def adam_marked_kernel(
    arena, slots, counts, marked,
    means_rate, quats_rate, scales_rate, opacities_rate, sh0_rate, shN_rate, gain1, beta2, gain2, eps, inv_sqrt_bias2,
    REST: tl.constexpr, REST_AT: tl.constexpr, M_BASE: tl.constexpr, M_REST: tl.constexpr,
    V_BASE: tl.constexpr, V_REST: tl.constexpr, GRADS_AT: tl.constexpr, MARKS_AT: tl.constexpr,
    SLOT_FLOATS: tl.constexpr, CAPACITY: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Adam on the marked rows of whole slots; how many: marked int32 [m, CAPACITY / ROWS]. Grid: the same."""
    block, _, used, at = _tile(arena, slots, counts, SLOT_FLOATS, ROWS)
    mask = used & (tl.load(at + MARKS_AT, mask=used, other=0.0) > 0.0)
    for c in tl.static_range(14):
        rate = _rate(c, means_rate, quats_rate, scales_rate, opacities_rate, sh0_rate)
        to = at + c * CAPACITY
        grad = tl.load(to + GRADS_AT, mask=mask, other=0.0)
        _adam(to, to + M_BASE, to + V_BASE, grad, mask, rate, gain1, beta2, gain2, eps, inv_sqrt_bias2)
    for c in range(REST):
        to = at + c * CAPACITY
        grad = tl.load(to + GRADS_AT + 14 * CAPACITY, mask=mask, other=0.0)
        _adam(to + REST_AT, to + M_REST, to + V_REST, grad, mask, shN_rate, gain1, beta2, gain2, eps, inv_sqrt_bias2)
    tl.store(marked + block * (CAPACITY // ROWS) + tl.program_id(1), tl.sum(mask.to(tl.int32), 0))


@triton.jit
def adam_rest_kernel(
    arena, slots, counts, took,
    means_rate, quats_rate, scales_rate, opacities_rate, sh0_rate, shN_rate, gain1, beta2, gain2, eps, inv_sqrt_bias2,
    REST: tl.constexpr, REST_AT: tl.constexpr, M_BASE: tl.constexpr, M_REST: tl.constexpr,
    V_BASE: tl.constexpr, V_REST: tl.constexpr,
    SLOT_FLOATS: tl.constexpr, CAPACITY: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Adam without gradients on the rows of whole slots that `took` (int8 [m, CAPACITY]) has not. Grid: (m, CAPACITY /
    ROWS)."""
    block, row, used, at = _tile(arena, slots, counts, SLOT_FLOATS, ROWS)
    mask = used & (tl.load(took + block * CAPACITY + row, mask=used, other=1) == 0)
    none = tl.full((ROWS,), 0.0, tl.float32)
    for c in tl.static_range(14):
        rate = _rate(c, means_rate, quats_rate, scales_rate, opacities_rate, sh0_rate)
        to = at + c * CAPACITY
        _adam(to, to + M_BASE, to + V_BASE, none, mask, rate, gain1, beta2, gain2, eps, inv_sqrt_bias2)
    for c in range(REST):
        to = at + c * CAPACITY
        _adam(to + REST_AT, to + M_REST, to + V_REST, none, mask, shN_rate, gain1, beta2, gain2, eps, inv_sqrt_bias2)


@triton.jit
def _normal(key, counter):
    """See twins._normal."""
    h = key + (counter + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
    h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9
    h = (h ^ (h >> 27)) * 0x94D049BB133111EB
    h = h ^ (h >> 31)
    u = ((h >> 32).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    v = (h & 0xFFFFFFFF).to(tl.float32) * 2.3283064365386963e-10
    return tl.sqrt(tl.maximum(-2.0 * tl.log(u), 0.0)) * tl.cos(6.283185307179586 * v)


@triton.jit
def noise_kernel(
    arena, slots, counts, keys, scales, floor, mass, dead,
    SLOT_FLOATS: tl.constexpr, CAPACITY: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Noise on the means of whole slots; mass float32 and dead int32 [n, CAPACITY / ROWS], by tile. Grid: the same."""
    block, row, used, at = _tile(arena, slots, counts, SLOT_FLOATS, ROWS)
    key = tl.load(keys + block).to(tl.uint64, bitcast=True)
    opacity = 1.0 / (1.0 + tl.exp(-tl.load(at + 10 * CAPACITY, mask=used, other=0.0)))
    size = tl.load(scales + block) / (1.0 + tl.exp(tl.minimum(100.0 * (opacity - 0.005), 80.0)))
    n0 = size * _normal(key, row * 8)
    n1 = size * _normal(key, row * 8 + 1)
    n2 = size * _normal(key, row * 8 + 2)

    w = tl.load(at + 3 * CAPACITY, mask=used, other=1.0)
    x = tl.load(at + 4 * CAPACITY, mask=used, other=0.0)
    y = tl.load(at + 5 * CAPACITY, mask=used, other=0.0)
    z = tl.load(at + 6 * CAPACITY, mask=used, other=0.0)
    inverse = 1.0 / tl.maximum(tl.sqrt(w * w + x * x + y * y + z * z), 1e-12)
    w, x, y, z = w * inverse, x * inverse, y * inverse, z * inverse
    r00, r01, r02 = 1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y - w * z), 2.0 * (x * z + w * y)
    r10, r11, r12 = 2.0 * (x * y + w * z), 1.0 - 2.0 * (x * x + z * z), 2.0 * (y * z - w * x)
    r20, r21, r22 = 2.0 * (x * z - w * y), 2.0 * (y * z + w * x), 1.0 - 2.0 * (x * x + y * y)
    s0 = tl.exp(2.0 * tl.load(at + 7 * CAPACITY, mask=used, other=0.0))
    s1 = tl.exp(2.0 * tl.load(at + 8 * CAPACITY, mask=used, other=0.0))
    s2 = tl.exp(2.0 * tl.load(at + 9 * CAPACITY, mask=used, other=0.0))
    a0 = s0 * (r00 * n0 + r10 * n1 + r20 * n2)
    a1 = s1 * (r01 * n0 + r11 * n1 + r21 * n2)
    a2 = s2 * (r02 * n0 + r12 * n1 + r22 * n2)
    tl.store(at, tl.load(at, mask=used, other=0.0) + r00 * a0 + r01 * a1 + r02 * a2, mask=used)
    at1, at2 = at + CAPACITY, at + 2 * CAPACITY
    tl.store(at1, tl.load(at1, mask=used, other=0.0) + r10 * a0 + r11 * a1 + r12 * a2, mask=used)
    tl.store(at2, tl.load(at2, mask=used, other=0.0) + r20 * a0 + r21 * a1 + r22 * a2, mask=used)

    tile = block * (CAPACITY // ROWS) + tl.program_id(1)
    alive = used & (opacity > floor)
    tl.store(mass + tile, tl.sum(tl.where(alive, opacity, 0.0), 0))
    tl.store(dead + tile, tl.sum((used & (opacity <= floor)).to(tl.int32), 0))


@triton.jit
def _way(at, M_BASE: tl.constexpr, V_BASE: tl.constexpr, mask, reach, eps):
    """Where momentum alone takes a component at most; see rows.Reach."""
    moment = tl.load(at + M_BASE, mask=mask, other=0.0)
    return -reach * moment / (tl.sqrt(tl.load(at + V_BASE, mask=mask, other=0.0)) + eps)


@triton.jit
def bounds_kernel(
    arena, slots, counts, out, margin, means_reach, scales_reach, eps,
    DENSE: tl.constexpr, M_BASE: tl.constexpr, V_BASE: tl.constexpr,
    SLOT_FLOATS: tl.constexpr, CAPACITY: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """out [n, 7]: least mean, greatest mean, greatest scale times `margin`, of each block's rows in use; where DENSE,
    wherever momentum can take them. Grid: (n,)."""
    block = tl.program_id(0)
    count = tl.load(counts + block)
    at = arena + tl.load(slots + block).to(tl.int64) * SLOT_FLOATS
    inf = float("inf")
    extent = tl.full((ROWS,), -inf, tl.float32)
    for c in tl.static_range(3):
        least = tl.full((ROWS,), inf, tl.float32)
        most = tl.full((ROWS,), -inf, tl.float32)
        for first in range(0, count, ROWS):
            row = first + tl.arange(0, ROWS)
            used = row < count
            mean, scale = at + c * CAPACITY + row, at + (7 + c) * CAPACITY + row
            low = tl.load(mean, mask=used, other=inf)
            high = tl.load(mean, mask=used, other=-inf)
            size = tl.load(scale, mask=used, other=-inf)
            if DENSE:
                way = _way(mean, M_BASE, V_BASE, used, means_reach, eps)
                low, high = tl.minimum(low, low + way), tl.maximum(high, high + way)
                size = tl.maximum(size, size + _way(scale, M_BASE, V_BASE, used, scales_reach, eps))
            least, most, extent = tl.minimum(least, low), tl.maximum(most, high), tl.maximum(extent, size)
        tl.store(out + block * 7 + c, tl.min(least, 0))
        tl.store(out + block * 7 + 3 + c, tl.max(most, 0))
    tl.store(out + block * 7 + 6, tl.exp(tl.max(extent, 0)) * margin)
