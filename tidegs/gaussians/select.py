"""Which Gaussians of a stream to keep: those in a box, those that show most.

Invariant: memory does not grow with the stream; the choice is exact and depends on the rows and their order alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from tidegs.errors import ConfigError
from tidegs.gaussians.packing import field, sigmoid

Chunks = Callable[[], Iterable[np.ndarray]]


@dataclass(frozen=True)
class Selection:
    """What to keep: Gaussians whose means lie in `crop` (x0 y0 z0 x1 y1 z1, ends included; the rows' frame), and of
    these the `max_count` of greatest `importance`, in their order. None keeps all."""

    crop: tuple[float, ...] | None = None
    max_count: int | None = None

    def __post_init__(self) -> None:
        if self.crop and not all(low <= high for low, high in zip(self.crop[:3], self.crop[3:], strict=True)):
            raise ConfigError(
                f"--crop {' '.join(map('{:g}'.format, self.crop))}: give least x y z, then greatest x y z"
            )
        if self.max_count is not None and self.max_count < 1:
            raise ConfigError(f"--max-count is {self.max_count}; it must be at least 1")

    def apply(self, chunks: Chunks) -> Iterator[np.ndarray]:
        """The kept rows. `chunks()` is called once more for each of two passes where `max_count` is set."""
        cut = None if self.max_count is None else _find_cut(lambda: self._cropped(chunks()), self.max_count)
        for rows in self._cropped(chunks()):
            kept = rows if cut is None else rows[cut.keep(rows)]
            if len(kept):
                yield kept

    def _cropped(self, chunks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        for rows in chunks:
            if self.crop is None:
                yield rows
            else:
                means = field(rows, "means")
                low, high = np.array(self.crop[:3]), np.array(self.crop[3:])
                yield rows[((means >= low) & (means <= high)).all(1)]


def importance(rows: np.ndarray) -> np.ndarray:
    """float32 [n]: opacity times the area of the greatest cross-section, the product of the two greatest scales. Volume
    would throw out the flat Gaussians that surfaces are made of first; NaN counts as 0."""
    two = np.sort(field(rows, "scales"), axis=1)[:, 1:]
    with np.errstate(over="ignore", invalid="ignore"):
        value = sigmoid(field(rows, "opacities")[:, 0]) * np.exp(two.sum(1))
    return np.nan_to_num(value.astype(np.float32), nan=0.0, posinf=np.inf)


@dataclass
class _Cut:
    """The bits of the least importance that is kept, and how many of exactly that are."""

    least: int
    ties: int

    def keep(self, rows: np.ndarray) -> np.ndarray:
        bits = _bits(rows)
        tied = np.flatnonzero(bits == self.least)
        kept = bits > self.least
        kept[tied[: self.ties]] = True
        self.ties -= min(self.ties, len(tied))
        return kept


def _bits(rows: np.ndarray) -> np.ndarray:
    """Non-negative floats are ordered as their bits are."""
    return importance(rows).view(np.uint32)


def _find_cut(chunks: Chunks, most: int) -> _Cut | None:
    """Two histograms of 65,536 counts, of the upper and then of the lower half of the bits; None where all fit."""
    upper, left = _from_above(chunks, most, lambda bits: bits >> 16)
    if upper is None:
        return None
    lower, ties = _from_above(chunks, left, lambda bits: (bits & 0xFFFF)[bits >> 16 == upper])
    return _Cut(upper << 16 | (lower or 0), ties)


def _from_above(chunks: Chunks, most: int, digits: Callable[[np.ndarray], np.ndarray]) -> tuple[int | None, int]:
    """The digit with which the count from above reaches `most`, and how many of it are wanted."""
    counts = np.zeros(1 << 16, np.int64)
    for rows in chunks():
        counts += np.bincount(digits(_bits(rows)), minlength=1 << 16)
    above = np.cumsum(counts[::-1])[::-1]
    if above[0] <= most:
        return None, int(counts[0])
    digit = int(np.flatnonzero(above > most)[-1])
    return digit, most - int(above[digit] - counts[digit])
