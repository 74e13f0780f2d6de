"""Seed points on their way from a file to the scene frame: chunk by chunk, NaN and Inf left out and counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tidegs.data.inputs import Chunks
from tidegs.data.scene import Points, WorldTransform

_FAR = 1e6  # scene units; float32 still resolves this to 0.06, beyond it a point is noise of the reconstruction


def to_scene(chunks: Chunks, transform: WorldTransform) -> Iterator[tuple[Points, int]]:
    """For each chunk of world points (xyz float64 [n, 3], rgb uint8 [n, 3]): those in the scene frame, and how many
    were dropped because a coordinate is not finite or lies beyond a million scene units."""
    for xyz, rgb in chunks:
        with np.errstate(invalid="ignore", over="ignore"):
            scene = transform.to_scene(xyz)
            good = (np.abs(scene) < _FAR).all(axis=1)
        yield Points(scene[good].astype(np.float32), rgb[good]), int(len(good) - np.count_nonzero(good))


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


def gather(chunks: Chunks, transform: WorldTransform) -> tuple[Points, int]:
    """All points of the chunks in the scene frame, and how many were dropped."""
    parts, dropped = [], 0
    for part, bad in to_scene(chunks, transform):
        parts.append(part)
        dropped += bad
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
