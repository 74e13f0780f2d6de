"""Stores made ahead of a run: a generated city of any number of points, streamed into blocks beside its scene folder.

Invariant: a run begins in such a store only where frame and settings are those that it was made for.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from tidegs.config import TrainConfig
from tidegs.data.load import load_scene
from tidegs.data.scene import Scene, WorldTransform
from tidegs.data.synth import SynthSettings, write_scene
from tidegs.data.synth_city import City, generate_city
from tidegs.errors import ConfigError
from tidegs.gaussians.layout import RecordLayout
from tidegs.store.block_store import BlockStore
from tidegs.store.ingest import IngestOptions, ingest_points
from tidegs.train.state import frame_of, write_frame

DENSITY = 1e9 / (5900.0 * 7900.0)  # points of a square metre of ground
_SHOWN = 100_000  # points that the scene folder holds


def extent_for(points: int) -> float:
    """Side in metres of the square city that `points` cover with DENSITY."""
    return max(50.0, math.sqrt(points / DENSITY))


def write_city(out: Path, store: Path, settings: SynthSettings, config: TrainConfig, memory: int = 1 << 30) -> None:
    """Writes a generated scene into the new folder `out`, with a sample of its points, and all its points into a new
    block store, streamed: `memory` bounds the ingest, in bytes. The points are uniform by area, so the first scale of
    each follows from their density. Raises ConfigError, SceneError, StoreError."""
    shown = min(settings.points, _SHOWN)
    write_scene(out, replace(settings, points=shown, seen_points=False, sky_share=0.0))
    transform = load_scene(out, test_every=config.test_every).transform
    city = generate_city(settings.seed, settings.extent)
    options = IngestOptions(
        memory_budget=memory,
        init_scale=config.init_scale,
        init_opacity=config.init_opacity,
        spacing=city.spacing(settings.points) * transform.scale,
        progress=sys.stderr.isatty(),
    )
    layout = RecordLayout(config.block_capacity, config.sh_degree)
    ingest_points(store, _points(city, settings, transform), layout, options, write_frame(transform)).close()


def _points(city: City, s: SynthSettings, transform: WorldTransform) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """All points in the scene frame; a chunk is made while the one before is in use."""
    chunks = city.sample_points(s.points, s.seed, noise=s.point_noise)
    with ThreadPoolExecutor(1) as pool:
        chunk = next(chunks, None)
        while chunk is not None:
            following = pool.submit(next, chunks, None)
            xyz, rgb = chunk
            yield transform.to_scene(xyz + np.asarray(s.origin)).astype(np.float32), rgb
            chunk = following.result()


def check_made_ahead(store: Path, scene: Scene, config: TrainConfig) -> None:
    """Raises ConfigError unless a run of the scene under these settings may begin in the store."""
    with BlockStore.open(store, readonly=True) as opened:
        frame, layout = frame_of(opened), opened.layout
    if frame is None:
        raise ConfigError(f"{store} already holds a block store; choose another folder with --store")
    made_for = (*frame.center, frame.scale, layout.capacity, layout.sh_degree)
    wanted = (*scene.transform.center, scene.transform.scale, config.block_capacity, config.sh_degree)
    if not np.allclose(made_for, wanted, rtol=1e-12, atol=0):
        raise ConfigError(
            f"{store} was made for another scene, or for blocks of {layout.capacity} and SH degree {layout.sh_degree}: "
            f"use the scene and settings that it was made for, or choose another folder with --store"
        )
