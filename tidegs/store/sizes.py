"""Splats of like size go into the same blocks: one huge splat would blow up the bounds of a block of small ones.

Invariant: the class of a splat depends on its size and on the histogram of all sizes, never on their order.
"""

from __future__ import annotations

import numpy as np

CLASSES = 4
_BINS_PER_OCTAVE = 8
_CLASS_BINS = 3 * _BINS_PER_OCTAVE  # a class spans a factor of 8
_LEAST, _BINS = -2048, 4096  # 256 octaves each way


class SizeHistogram:
    """Counts of log extents in bins of an eighth of an octave."""

    def __init__(self) -> None:
        self.counts = np.zeros(_BINS, np.int64)

    def add(self, log_extent: np.ndarray, times: int = 1) -> None:
        """Takes float32 [n]: the natural log of each splat's greatest scale; so many splats of each."""
        self.counts += np.bincount(_bins(log_extent), minlength=_BINS) * times

    def class_counts(self, least: int) -> tuple[np.ndarray, np.ndarray]:
        """int64 [CLASSES] splats of each class, and int64 [CLASSES]: the class that stands in for each; a class of
        fewer than `least` splats joins the one below it."""
        classes = _classes(np.arange(_BINS), self._median())
        counts = np.bincount(classes, self.counts, CLASSES).astype(np.int64)
        joined = np.arange(CLASSES)
        for k in range(CLASSES - 1, 0, -1):
            if counts[k] < least:
                joined[joined == k] = k - 1
                counts[k - 1] += counts[k]
                counts[k] = 0
        return counts, joined

    def classify(self, log_extent: np.ndarray) -> np.ndarray:
        """The class of each splat, before classes are joined: 0 up to 8 times the median size, 1 up to 64, ..."""
        return _classes(_bins(log_extent), self._median())

    def _median(self) -> int:
        total = np.cumsum(self.counts)
        return int(np.searchsorted(total, total[-1] // 2, side="right"))


def _bins(log_extent: np.ndarray) -> np.ndarray:
    at = np.floor(log_extent.astype(np.float64) * (_BINS_PER_OCTAVE / np.log(2.0))) - _LEAST
    return np.clip(at, 0, _BINS - 1).astype(np.int64)


def _classes(bins: np.ndarray, median: int) -> np.ndarray:
    return np.clip((bins - median) // _CLASS_BINS, 0, CLASSES - 1)
