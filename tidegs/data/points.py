"""Seed points on their way from a file to the scene frame: chunk by chunk, NaN and Inf left out and counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tidegs.data.scene import Chunks, Points, WorldTransform

_FAR = 1e6  # scene units; float32 still resolves this to 0.06, beyond it a point is noise of the reconstruction

_RANDOM_CHUNK = 1 << 18


def to_scene(chunks: Chunks, transform: WorldTransform) -> Iterator[tuple[Points, np.ndarray]]:
    """For each chunk of world points (xyz float64 [n, 3], rgb uint8 [n, 3]): those in the scene frame that are
    kept, and which are (bool [n]): all but those with a coordinate that is not finite or beyond a million scene units.
    """
    for xyz, rgb in chunks:
        with np.errstate(invalid="ignore", over="ignore"):
            scene = transform.to_scene(xyz)
            good = (np.abs(scene) < _FAR).all(axis=1)
        yield Points(scene[good].astype(np.float32), rgb[good]), good


@dataclass(frozen=True)
class PointStream:
    """Points that stay in their file and are read anew for each use; a PointSource."""

    open: Callable[[], Chunks]
    transform: WorldTransform
    count: int  # as the file states; those that `to_scene` drops included

    def chunks(self, rows: int = 1 << 20) -> Iterator[Points]:
        """The points in file order, at most `rows` at a time."""
        for part, _ in to_scene(self.open(), self.transform):
            yield from part.chunks(rows)

    def gather(self) -> Points:
        """All points in memory."""
        return gather(self.open(), self.transform)[0]


@dataclass(frozen=True)
class RandomPoints:
    """Points of random place and colour, uniform in a cube about the origin of the scene frame; a PointSource."""

    count: int
    half_side: float  # scene units
    seed: int

    def chunks(self, rows: int = 1 << 20) -> Iterator[Points]:
        """The points in order, at most `rows` at a time; they do not depend on `rows`."""
        for first in range(0, self.count, _RANDOM_CHUNK):
            n = min(_RANDOM_CHUNK, self.count - first)
            draw = np.random.Generator(np.random.Philox(key=[self.seed, first]))
            xyz = draw.uniform(-self.half_side, self.half_side, (n, 3)).astype(np.float32)
            yield from Points(xyz, draw.integers(0, 256, (n, 3), np.uint8)).chunks(rows)

    def gather(self) -> Points:
        """All points in memory."""
        parts = list(self.chunks())
        return Points(np.concatenate([p.xyz for p in parts]), np.concatenate([p.rgb for p in parts]))


def gather(chunks: Chunks, transform: WorldTransform) -> tuple[Points, int]:
    """All points of the chunks in the scene frame, and how many were dropped."""
    parts, dropped = [], 0
    for part, good in to_scene(chunks, transform):
        parts.append(part)
        dropped += int(np.count_nonzero(~good))
    if not parts:
        return Points(np.empty((0, 3), np.float32), np.empty((0, 3), np.uint8)), 0
    return Points(np.concatenate([p.xyz for p in parts]), np.concatenate([p.rgb for p in parts])), dropped


def typical_depth(chunks: Chunks, position: np.ndarray) -> float:
    """Median distance from a position to the points of the first chunk; 1 where there are none."""
    for xyz, _ in chunks:
        distance = np.linalg.norm(xyz - position, axis=1)
        distance = distance[np.isfinite(distance) & (distance > 0)]
        return float(np.median(distance)) if len(distance) else 1.0
    return 1.0
