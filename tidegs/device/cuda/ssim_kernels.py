"""Triton kernels of L1 + D-SSIM and its gradient, over images of three interleaved channels; see ssim.py.

Invariant: the window is applied along rows and along columns in kernels of their own, so each value is read 22 times,
not 121; sums are kept for each program, so they do not vary from run to run.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def filter_rows_kernel(image, target, window, out, height, width, COLUMNS: tl.constexpr):
    """out [4, 3, height, width - 10]: the window along rows over x, y, x^2 + y^2 and x y, less 0.5 each."""
    row, channel = tl.program_id(1), tl.program_id(2)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    valid = width - 10
    mask = column < valid
    x_sum = tl.zeros((COLUMNS,), tl.float32)
    y_sum = tl.zeros((COLUMNS,), tl.float32)
    squares = tl.zeros((COLUMNS,), tl.float32)
    product = tl.zeros((COLUMNS,), tl.float32)
    for k in tl.static_range(11):
        weight = tl.load(window + k)
        at = (row * width + column + k) * 3 + channel
        x = tl.load(image + at, mask=mask, other=0.0) - 0.5
        y = tl.load(target + at, mask=mask, other=0).to(tl.float32) / 255.0 - 0.5
        x_sum += weight * x
        y_sum += weight * y
        squares += weight * (x * x + y * y)
        product += weight * (x * y)
    plane = 3 * height * valid
    to = out + (channel * height + row) * valid + column
    tl.store(to, x_sum, mask=mask)
    tl.store(to + plane, y_sum, mask=mask)
    tl.store(to + 2 * plane, squares, mask=mask)
    tl.store(to + 3 * plane, product, mask=mask)


@triton.jit
def maps_kernel(filtered, window, maps, sums, height, width, COLUMNS: tl.constexpr):
    """From the filtered rows, down the columns: maps [3, 3, height - 10, width - 10], the derivatives of SSIM with
    respect to E[x], E[x^2] and E[xy] (Wang et al. 2004, eq. 13); sums [programs] of SSIM."""
    row, channel = tl.program_id(1), tl.program_id(2)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    valid = width - 10
    mask = column < valid
    x = tl.zeros((COLUMNS,), tl.float32)
    y = tl.zeros((COLUMNS,), tl.float32)
    squares = tl.zeros((COLUMNS,), tl.float32)
    product = tl.zeros((COLUMNS,), tl.float32)
    plane = 3 * height * valid
    for k in tl.static_range(11):
        weight = tl.load(window + k)
        at = filtered + (channel * height + row + k) * valid + column
        x += weight * tl.load(at, mask=mask, other=0.0)
        y += weight * tl.load(at + plane, mask=mask, other=0.0)
        squares += weight * tl.load(at + 2 * plane, mask=mask, other=0.0)
        product += weight * tl.load(at + 3 * plane, mask=mask, other=0.0)
    mean_x, mean_y = x + 0.5, y + 0.5
    a, b = 2.0 * mean_x * mean_y + 0.0001, 2.0 * (product - x * y) + 0.0009
    c, d = mean_x * mean_x + mean_y * mean_y + 0.0001, squares - x * x - y * y + 0.0009
    inverse = 1.0 / (c * d)
    by_a, by_b = b * inverse, a * inverse
    ssim = a * by_a
    by_c, by_d = -ssim * d * inverse, -ssim * c * inverse
    rows = height - 10
    to = maps + (channel * rows + row) * valid + column
    tl.store(to, 2.0 * (mean_y * by_a - y * by_b + mean_x * by_c - x * by_d), mask=mask)
    tl.store(to + 3 * rows * valid, by_d, mask=mask)
    tl.store(to + 6 * rows * valid, 2.0 * by_b, mask=mask)
    program = (channel * rows + row) * tl.num_programs(0) + tl.program_id(0)
    tl.store(sums + program, tl.sum(tl.where(mask, ssim, 0.0), 0))


@triton.jit
def spread_columns_kernel(maps, window, out, height, width, COLUMNS: tl.constexpr):
    """out [3, 3, height, width - 10]: each map spread along columns by the window, the transpose of filtering."""
    row, channel = tl.program_id(1), tl.program_id(2)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    valid, rows = width - 10, height - 10
    mask = column < valid
    for kind in tl.static_range(3):
        total = tl.zeros((COLUMNS,), tl.float32)
        for k in tl.static_range(11):
            source = row - k
            inside = mask & (source >= 0) & (source < rows)
            at = maps + ((kind * 3 + channel) * rows + source) * valid + column
            total += tl.load(window + k) * tl.load(at, mask=inside, other=0.0)
        tl.store(out + ((kind * 3 + channel) * height + row) * valid + column, total, mask=mask)


@triton.jit
def gradient_kernel(
    image, target, window, spread, grad, sums, height, width, l1_weight, ssim_weight,
    WITH_SSIM: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """grad [height, width, 3] = l1_weight sign(x - y) + ssim_weight d(sum of SSIM)/dx; sums [programs] of |x - y|."""
    row, channel = tl.program_id(1), tl.program_id(2)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < width
    at = (row * width + column) * 3 + channel
    x = tl.load(image + at, mask=mask, other=0.0) - 0.5
    y = tl.load(target + at, mask=mask, other=0).to(tl.float32) / 255.0 - 0.5
    difference = tl.where(mask, x - y, 0.0)
    total = l1_weight * (tl.where(difference > 0.0, 1.0, 0.0) - tl.where(difference < 0.0, 1.0, 0.0))
    if WITH_SSIM:
        valid = width - 10
        plane = 3 * height * valid
        by_mean = tl.zeros((COLUMNS,), tl.float32)
        by_square = tl.zeros((COLUMNS,), tl.float32)
        by_product = tl.zeros((COLUMNS,), tl.float32)
        for k in tl.static_range(11):
            weight = tl.load(window + k)
            source = column - k
            inside = (source >= 0) & (source < valid)
            place = spread + (channel * height + row) * valid + source
            by_mean += weight * tl.load(place, mask=inside, other=0.0)
            by_square += weight * tl.load(place + plane, mask=inside, other=0.0)
            by_product += weight * tl.load(place + 2 * plane, mask=inside, other=0.0)
        total += ssim_weight * (by_mean + 2.0 * x * by_square + y * by_product)
    tl.store(grad + at, total, mask=mask)
    program = (channel * height + row) * tl.num_programs(0) + tl.program_id(0)
    tl.store(sums + program, tl.sum(tl.abs(difference), 0))
