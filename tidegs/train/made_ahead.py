"""Stores made ahead of a run, from points or Gaussians of any number: a scene's, a file's, or a generated city's.

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
from tidegs.data.point_cloud import is_point_cloud, stream_ply_points
from tidegs.data.scene import Scene, WorldTransform
from tidegs.data.synth import SynthSettings, write_scene
from tidegs.data.synth_city import City, generate_city
from tidegs.errors import ConfigError
from tidegs.gaussians.layout import RecordLayout
from tidegs.gaussians.open import open_gaussians
from tidegs.store.block_store import BlockStore
from tidegs.store.ingest import IngestOptions, ingest_points
from tidegs.train.log import say
from tidegs.train.session import ingest_file, ingest_scene, input_of, open_scene, record_layout
from tidegs.train.state import MadeAhead, made_ahead
from tidegs.train.strategies.choose import resolved

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
        init_scale=config.first_scale,
        init_opacity=config.first_opacity,
        spacing=city.spacing(settings.points) * transform.scale,
        progress=sys.stderr.isatty(),
    )
    layout = RecordLayout(config.block_capacity, config.sh_degree)
    ingest_points(store, _points(city, settings, transform), layout, options, MadeAhead(transform).dump()).close()


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


def make_store(root: Path, store: Path, config: TrainConfig, memory: int, init: Path | None, quiet: bool) -> int:
    """Streams the points of a scene, or of a file in its frame (a PLY of points, or Gaussians of any format), into a
    new block store; `memory` bounds the ingest, in bytes. A long ingest that was stopped goes on where
    input and settings are the same; else what it left there is replaced. Returns the number of Gaussians. Raises
    TidegsError."""
    scene = open_scene(root, config, quiet)
    if init and not is_point_cloud(init):
        file = open_gaussians(init)
        meta = MadeAhead(scene.transform, file.sh_degree).dump()
        ingest_file(scene, store, resolved(config, None), file, quiet, memory, meta)
        return file.count
    points = stream_ply_points(init, scene.transform) if init else scene.require_points()
    settings = resolved(config, points.count)
    source = input_of(scene, config, init)
    ingest_scene(points, store, settings, quiet, memory, MadeAhead(scene.transform).dump(), source)
    with BlockStore.open(store, readonly=True) as made:
        held = int(made.table["count"].sum())
    if held < points.count:
        dropped = f"{points.count - held:,} of {points.count:,} points"
        say(f"warning: {dropped} were left out: their coordinates are not finite or absurdly far", quiet)
    return held


def begin_ahead(store: Path, scene: Scene, config: TrainConfig, init: Path | None) -> TrainConfig:
    """The settings of a run of the scene that begins in the store, its strategy resolved. Raises ConfigError where it
    may not begin there."""
    with BlockStore.open(store, readonly=True) as opened:
        ahead, layout, count = made_ahead(opened), opened.layout, int(opened.table["count"].sum())
    if ahead is None:
        raise ConfigError(f"{store} already holds a block store; choose another folder with --store")
    if init:
        raise ConfigError(f"{store} was made ahead and holds what the run begins with: leave out --init")
    frame = ahead.frame
    made_for = (*frame.center, frame.scale, layout.capacity, layout.sh_degree)
    wanted = (*scene.transform.center, scene.transform.scale, config.block_capacity, config.sh_degree)
    if not np.allclose(made_for, wanted, rtol=1e-12, atol=0):
        raise ConfigError(
            f"{store} was made for another scene, or for blocks of {layout.capacity} and SH degree {layout.sh_degree}: "
            f"use the scene and settings that it was made for, or choose another folder with --store"
        )
    if config.store_dtype != layout.store_dtype:
        raise ConfigError(
            f"{store} was made with --store-dtype {layout.store_dtype}, not {config.store_dtype}: train with the same"
        )
    grows = layout.stat_components > 0 and ahead.trained_degree is None
    config = resolved(config, count if grows else None)
    if record_layout(config).stat_components > layout.stat_components:
        raise ConfigError(
            f"{store} was made without the statistics that strategy {config.strategy} goes by: make it with "
            f"--strategy {config.strategy}, or train with --strategy none"
        )
    return config


def trained_degree(store: Path) -> int:
    """SH degree of the Gaussians that a store was made of ahead of a run; 0 where there is no such store."""
    if not (store / "root").exists():
        return 0
    with BlockStore.open(store, readonly=True) as opened:
        ahead = made_ahead(opened)
    return (ahead and ahead.trained_degree) or 0
