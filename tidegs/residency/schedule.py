"""The order of cameras: an endless stream of steps, from a seed.

Invariant: step k depends on the seed, the tour and k alone, so training resumes at any step; random numbers are hashes
of (seed, epoch, place), the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np


@dataclass(frozen=True)
class Step:
    """A batch of cameras (indices into the views) and one optimizer update."""

    index: int
    cameras: tuple[int, ...]


@dataclass(frozen=True)
class Schedule:
    """Epochs of all cameras, one after another, cut into batches.

    Without a `tour` every epoch is a true shuffle. With one (see `tidegs.residency.tours`) every epoch follows it from
    another start, one way or the other, and is shuffled inside windows of `window` cameras.
    """

    cameras: int
    batch: int
    seed: int
    tour: np.ndarray | None = None  # int [cameras], a permutation; part of the state where it came from working sets
    window: int = 1

    def epoch(self, number: int) -> np.ndarray:
        """The cameras of an epoch in order, int32 [cameras]."""
        chance = _hashes(self.seed, number, self.cameras + 2)
        if self.tour is None:
            return np.argsort(chance[2:], kind="stable").astype(np.int32)
        order = np.roll(np.asarray(self.tour, np.int32), -int(chance[0] % np.uint64(self.cameras)))
        if chance[1] & np.uint64(1):
            order = order[::-1]
        if self.window > 1:
            windows = np.arange(self.cameras) // self.window
            order = order[np.lexsort((chance[2:], windows))]
        return np.ascontiguousarray(order)

    def steps(self, start: int = 0, stop: int | None = None) -> Iterator[Step]:
        """Steps start, start + 1, ... up to `stop` (exclusive), or without end."""
        at = start * self.batch
        epoch, skip = divmod(at, self.cameras)
        left = self.epoch(epoch)[skip:]
        for index in count(start) if stop is None else range(start, stop):
            while len(left) < self.batch:
                epoch += 1
                left = np.concatenate([left, self.epoch(epoch)])
            yield Step(index, tuple(left[: self.batch].tolist()))
            left = left[self.batch :]


def _hashes(seed: int, epoch: int, n: int) -> np.ndarray:
    """uint64 [n], SplitMix64 (Steele et al. 2014) at counters 0..n-1 of the stream (seed, epoch)."""
    start = _mix(np.array([seed & 0xFFFFFFFFFFFFFFFF], np.uint64))
    start = _mix(start ^ np.array([epoch], np.uint64))
    return _mix(start + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))


def _mix(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
