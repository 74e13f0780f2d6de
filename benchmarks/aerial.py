"""A generated aerial scene of Gaussians, its cameras, and an arena that holds it: what the CPU benchmarks run on.

The ground is a rectangle with walls on it. Sizes follow the spacing, so that the ellipses (alpha >= 1/255) over a pixel
are about as many as in a trained scene: some 15 where Gaussians are larger than a pixel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tidegs.device.base import PassBlocks, View
from tidegs.device.cpu import CpuDevice
from tidegs.gaussians.layout import RecordLayout

VISIBLE = 0.7  # of the ground, in each view


@dataclass(frozen=True)
class Arena:
    """A device with the scene in its arena."""

    device: CpuDevice
    layout: RecordLayout
    blocks: PassBlocks
    state: np.ndarray  # uint8, the arena before the first step


def views(width: int, height: int, count: int = 4) -> list[View]:
    """Cameras that look down from height 2 at the ground, a little apart and a little askew."""
    f = 1.1 * width
    K = np.array([[f, 0, width / 2], [0, f, height / 2], [0, 0, 1]], np.float32)
    out = []
    for i in range(count):
        a = 2 * math.pi * i / count
        tilt = 0.12
        pitch = np.array([[1, 0, 0], [0, math.cos(tilt), -math.sin(tilt)], [0, math.sin(tilt), math.cos(tilt)]])
        R = pitch @ np.diag([1.0, -1.0, -1.0])
        position = np.array([0.08 * math.cos(a), 0.05 * math.sin(a), 2.0])
        viewmat = np.eye(4, dtype=np.float32)
        viewmat[:3, :3], viewmat[:3, 3] = R, -R @ position
        out.append(View(viewmat, K, width, height))
    return out


def rows(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Stored parameters, float32 [14, n] and [45, n], sorted along a Morton curve over the ground."""
    rng = np.random.default_rng(seed)
    half = np.array([1.0, 0.562]) / 1.1 / math.sqrt(VISIBLE)
    spacing = math.sqrt(4 * half.prod() / n)
    xy = rng.uniform(-1, 1, (n, 2)) * half
    cell = np.clip(((xy / half + 1) * 512).astype(np.int64), 0, 1023)
    code = sum((cell[:, 0] >> i & 1) << 2 * i | (cell[:, 1] >> i & 1) << 2 * i + 1 for i in range(10))
    xy = xy[np.argsort(code, kind="stable")]
    base = np.zeros((14, n), np.float32)
    base[0:2] = xy.T
    base[2] = 0.08 * (np.sin(9 * xy[:, 0]) * np.sin(11 * xy[:, 1]) > 0.3) * rng.uniform(0, 1, n)
    yaw, wall = rng.uniform(0, math.pi, n), rng.uniform(0, 1, n) < 0.15
    base[3], base[6] = np.cos(yaw / 2), np.sin(yaw / 2)
    base[4] = np.where(wall, 0.7, 0) + 0.05 * rng.normal(size=n)
    base[7:9] = math.log(0.6 * spacing) + 0.5 * rng.normal(size=(2, n))
    base[9] = base[7] - 1.5
    base[10] = rng.normal(-0.5, 1.8, n)
    base[11:14] = rng.normal(0.0, 0.8, (3, n))
    return base, (0.1 * rng.normal(size=(45, n))).astype(np.float32)


def open_arena(n: int, device: CpuDevice, capacity: int = 4096, seed: int = 0) -> Arena:
    """The scene of n Gaussians in blocks of `capacity`; every page of the arena is touched."""
    layout = RecordLayout(capacity)
    starts = list(range(0, n, capacity))
    device.open_arena(layout, len(starts))
    base, rest = rows(n, seed)
    counts = np.array([min(capacity, n - a) for a in starts], np.int32)
    device.arena[:] = 0
    for slot, (a, count) in enumerate(zip(starts, counts, strict=True)):
        layout.view(device.arena[slot], "base")[:, :count] = base[:, a : a + count]
        layout.view(device.arena[slot], "rest")[:, :count] = rest[:, a : a + count]
    blocks = PassBlocks(np.arange(len(starts), dtype=np.int32), counts, np.full(len(starts), 15, np.uint8))
    return Arena(device, layout, blocks, device.arena.copy())
