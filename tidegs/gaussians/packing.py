"""What the compact formats of Gaussians share: colours, opacities and quaternions as small integers, rows in order.

Invariant: values in rows are as everywhere in tidegs (log scales, logit opacities, wxyz quats); opacities that come
from eight bits are finite.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from tidegs.errors import FormatError
from tidegs.gaussians.layout import BASE_COMPONENTS, BASE_FIELDS, sh_rest_count

SH_C0 = 0.28209479177387814  # 1 / (2 sqrt(pi)): the constant band of the spherical harmonics
SQRT2 = 2.0**0.5
OPACITY_MARGIN = 1e-6  # opacities are kept this far from 0 and 1, where logits are infinite
_OTHERS = np.array([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]])


def field(rows: np.ndarray, name: str) -> np.ndarray:
    """An attribute of rows [n, 14 + 3 K]: a view [n, components]; "shN" gives component 3k + channel."""
    return rows[:, BASE_COMPONENTS:] if name == "shN" else rows[:, BASE_FIELDS[name]]


def empty_rows(n: int, sh_degree: int) -> np.ndarray:
    """Rows to fill, float32 [n, 14 + 3 K]."""
    return np.empty((n, BASE_COMPONENTS + 3 * sh_rest_count(sh_degree)), np.float32)


def check_rows(path: Path, rows: np.ndarray, sh_degree: int) -> None:
    """Raises FormatError where a chunk is not float [n, 14 + 3 K]."""
    components = BASE_COMPONENTS + 3 * sh_rest_count(sh_degree)
    if rows.ndim != 2 or rows.shape[1] != components:
        raise FormatError(
            f"{path}: a chunk of shape {rows.shape} came where [n, {components}] (SH {sh_degree}) was due"
        )


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Opacities of logits, infinite ones included."""
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-logits))


def logit(opacities: np.ndarray) -> np.ndarray:
    """Logits of opacities, kept finite: 0 and 1 are taken as 1e-6 and 1 - 1e-6."""
    p = np.clip(np.asarray(opacities, np.float64), OPACITY_MARGIN, 1 - OPACITY_MARGIN)
    return np.log(p / (1 - p))


def to_bytes(values: np.ndarray) -> np.ndarray:
    """Rounded to uint8, 0 to 255."""
    return np.clip(np.floor(values + 0.5), 0, 255).astype(np.uint8)


def unit_quats(quats: np.ndarray) -> np.ndarray:
    """Normalised, float32 [n, 4]; (1, 0, 0, 0) where there is no direction."""
    q = np.asarray(quats, np.float32)
    length = np.sqrt(np.einsum("ij,ij->i", q, q))
    ok = (length > 0) & np.isfinite(length)
    out = q / np.where(ok, length, 1)[:, None]
    out[~ok] = (1, 0, 0, 0)
    return out


def smallest_three(quats: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index of the greatest component and the three others, for the sign that makes the greatest positive: int64 [n],
    float32 [n, 3] within +-sqrt(1/2). Quats are of length 1, in any order of components."""
    largest = np.argmax(np.abs(quats), axis=1)
    sign = np.where(np.take_along_axis(quats, largest[:, None], 1) < 0, np.float32(-1), np.float32(1))
    return largest, np.take_along_axis(quats, _OTHERS[largest], 1) * sign


def from_smallest_three(largest: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The inverse of `smallest_three`, float32 [n, 4]."""
    out = np.empty((len(others), 4), np.float32)
    np.put_along_axis(out, _OTHERS[largest], others.astype(np.float32), 1)
    rest = np.sqrt(np.maximum(0, 1 - np.einsum("ij,ij->i", others, others)))
    np.put_along_axis(out, largest[:, None], rest.astype(np.float32)[:, None], 1)
    return out


def regroup(path: Path, chunks: Iterable[np.ndarray], sh_degree: int, rows: int) -> Iterator[np.ndarray]:
    """The same rows in chunks of `rows` (the last may be shorter), each in Morton order of its means. Raises
    FormatError where a chunk is of another shape."""
    held = empty_rows(rows, sh_degree)
    n = 0
    for chunk in chunks:
        check_rows(path, chunk, sh_degree)
        at = 0
        while at < len(chunk):
            take = min(rows - n, len(chunk) - at)
            held[n : n + take] = chunk[at : at + take]
            n, at = n + take, at + take
            if n == rows:
                yield held[_morton_order(field(held, "means"))]
                n = 0
    if n:
        yield held[:n][_morton_order(field(held[:n], "means"))]


def _morton_order(means: np.ndarray) -> np.ndarray:
    """The order of rows along a Z curve of 21 bits an axis (Morton 1966) over their box; ties in order."""
    low = means.min(0).astype(np.float64)
    side = max(float((means.max(0) - low).max()), 1e-30)
    cells = ((means - low) / side * 0x1FFFFF).astype(np.uint64)
    keys = np.zeros(len(means), np.uint64)
    for axis in range(3):
        bits = cells[:, axis]
        for shift, mask in (
            (32, 0x1F00000000FFFF),
            (16, 0x1F0000FF0000FF),
            (8, 0x100F00F00F00F00F),
            (4, 0x10C30C30C30C30C3),
            (2, 0x1249249249249249),
        ):
            bits = (bits | (bits << np.uint64(shift))) & np.uint64(mask)
        keys |= bits << np.uint64(axis)
    return np.argsort(keys, kind="stable")
