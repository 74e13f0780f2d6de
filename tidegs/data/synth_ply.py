"""Writes points of a generated city as PLY shards, streamed: memory does not grow with their number.

Invariant: shard k holds points k n / shards up to (k + 1) n / shards of the hashed order, so every shard covers the
whole city, as a scanner's files do not follow space either.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from tqdm import tqdm

from tidegs.data.synth import SynthSettings, new_folder
from tidegs.data.synth_city import City, generate_city
from tidegs.errors import ConfigError


def vertex_dtype(double: bool) -> np.dtype:
    """A vertex: x y z float32 (15 bytes), or float64 (27 bytes) where an origin is set; red green blue uint8."""
    kind = "<f8" if double else "<f4"
    return np.dtype([(a, kind) for a in ("x", "y", "z")] + [(a, "u1") for a in ("red", "green", "blue")])


def write_point_shards(out: Path, settings: SynthSettings, shards: int = 1, progress: bool = True) -> None:
    """Writes points_0000.ply ... into the new folder `out`: binary little-endian, x y z and red green blue.

    Points lie anywhere on the city (none on the sky), seen or not, in no useful order. Raises ConfigError where there
    are fewer points than shards or `out` is not empty, SceneError where the files cannot be written.
    """
    s = settings
    if not 1 <= shards <= max(1, min(s.points, 9999)):
        raise ConfigError(f"--ply-shards {shards} is not between 1 and the number of points (at most 9999)")
    city = generate_city(s.seed, s.extent)
    with (
        new_folder(out) as folder,
        tqdm(total=s.points, desc="points", unit="pt", unit_scale=True, disable=not progress) as bar,
    ):
        for k in range(shards):
            start, stop = s.points * k // shards, s.points * (k + 1) // shards
            _write_shard(folder / f"points_{k:04d}.ply", city, s, start, stop, bar)


def _write_shard(path: Path, city: City, s: SynthSettings, start: int, stop: int, bar: tqdm) -> None:
    dtype = vertex_dtype(any(s.origin))
    names = {"<f4": "float", "<f8": "double", "|u1": "uchar"}
    lines = [f"property {names[dtype[name].str]} {name}" for name in dtype.names or ()]
    header = ["ply", "format binary_little_endian 1.0", f"element vertex {stop - start}", *lines, "end_header", ""]
    with open(path, "wb") as f:
        f.write("\n".join(header).encode())
        for xyz, rgb in city.sample_points(s.points, s.seed, start, stop, noise=s.point_noise):
            rows = np.empty(len(xyz), dtype)
            for axis in range(3):
                rows["xyz"[axis]] = xyz[:, axis] + s.origin[axis]
                rows[("red", "green", "blue")[axis]] = rgb[:, axis]
            f.write(rows.data)
            bar.update(len(rows))
        f.flush()
        os.fsync(f.fileno())
