"""A generated city as an object: it can be looked at (`render_view`) and scanned (`sample_points`).

Frame: metres, x east, y north, z up, ground at z = 0, centred on the origin; inside a dome that carries the sky.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from tidegs.data.synth_cast import find_seen, render_rows
from tidegs.data.synth_hash import seed_key
from tidegs.data.synth_layout import Solids, lay_out
from tidegs.data.synth_sample import face_table, fill_points
from tidegs.errors import ConfigError

MIN_EXTENT, MAX_EXTENT = 50.0, 20_000.0  # metres
_CHUNK = 1 << 19  # greatest number of points in a chunk, which stays in the cache; part of what a seed means


@dataclass(frozen=True)
class City:
    """The solids of a city; see `generate_city`."""

    seed: int
    extent: tuple[float, float]  # metres along x and y
    solids: Solids

    def sample_points(
        self,
        n: int,
        seed: int = 0,
        start: int = 0,
        stop: int | None = None,
        *,
        noise: float = 0.0,
        sky_share: float = 0.0,
        footprint: float = 0.15,
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Points start .. stop of a set of n, in chunks of (xyz float64 [m, 3] metres, rgb uint8 [m, 3]), streamed.

        Uniform by area over what is not buried in another solid (the ground outside the city ten times sparser), in
        hashed order: successive points are anywhere. Any range gives the same points as the whole.
        noise: standard deviation of each coordinate, metres. sky_share: fraction of points on the sky's dome.
        footprint: width in metres over which colours are averaged.
        """
        faces, key = face_table(self.solids, sky_share), seed_key(seed, 3)
        stop = n if stop is None else stop
        chunks = -(-n // _CHUNK)
        for chunk in range(chunks):
            begin = chunk * (n // chunks) + min(chunk, n % chunks)
            size = n // chunks + (chunk < n % chunks)
            if stop <= begin or begin + size <= start:
                continue
            xyz, rgb = np.empty((size, 3)), np.empty((size, 3), np.uint8)
            fill = partial(fill_points, self.solids, faces, key, n, chunk, chunks, footprint, noise, xyz, rgb)
            _in_threads(fill, size)
            inside = slice(max(0, start - begin), stop - begin)
            yield xyz[inside], rgb[inside]

    def spacing(self, n: int) -> float:
        """Expected root mean square distance, in metres, of a point of `n` in the city to the three nearest: squared
        distances to the k-th of a Poisson process in the plane are k / (pi density) on average."""
        area = face_table(self.solids, 0.0).cumulative[-1]
        return math.sqrt(2.0 * area / (math.pi * n))

    def visible(
        self, viewmat: np.ndarray, K: np.ndarray, width: int, height: int, xyz: np.ndarray, slack: float = 0.02
    ) -> np.ndarray:
        """bool [n]: which points (float64 [n, 3]) fall inside the image and are not hidden from its camera.

        slack: a surface this close in front of a point (metres) does not hide it.
        """
        seen = np.empty(len(xyz), np.bool_)
        points = np.ascontiguousarray(xyz, np.float64)
        find_seen(self.solids, viewmat, _eye(viewmat), _pinhole(K), (width, height), points, slack, seen)
        return seen


def generate_city(seed: int = 0, extent: float | tuple[float, float] = 200.0) -> City:
    """A city of extent metres (one number: a square) in blocks of about 50 m; the same seed gives the same city.

    Raises ConfigError where the extent is not between 50 m and 20 km.
    """
    x, y = (extent, extent) if isinstance(extent, (int, float)) else extent
    if not all(math.isfinite(e) and MIN_EXTENT <= e <= MAX_EXTENT for e in (x, y)):
        raise ConfigError(f"extent {x} x {y} m is not between {MIN_EXTENT:g} and {MAX_EXTENT:g} m on each side")
    return City(seed, (float(x), float(y)), lay_out(seed, (float(x), float(y))))


def render_view(
    city: City, viewmat: np.ndarray, K: np.ndarray, width: int, height: int, samples: int = 2
) -> np.ndarray:
    """What a pinhole camera sees, ray-cast with samples x samples rays a pixel: uint8 [height, width, 3], RGB.

    viewmat [4, 4]: city frame to OpenCV camera frame; K [3, 3] pixels, pixel centres at +0.5. The camera must be inside
    the dome and above the ground, else ConfigError.
    """
    eye = _eye(viewmat)
    if eye[2] <= 0.0 or np.linalg.norm(eye) >= city.solids.dome:
        raise ConfigError(f"camera at {np.round(eye, 2).tolist()} is under the ground or outside the sky's dome")
    image = np.empty((height, width, 3), np.uint8)
    rot = np.ascontiguousarray(viewmat[:3, :3].T, np.float64)
    _in_threads(partial(render_rows, city.solids, rot, eye, _pinhole(K), samples, image), height)
    return image


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _in_threads(work: Callable[[int, int], None], count: int) -> None:
    """work(first, last) for ranges that make up 0 .. count, on all cores: kernels release the interpreter's lock."""
    cores = available_cores()
    marks = [count * k // (8 * cores) for k in range(8 * cores + 1)]
    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(work, marks[:-1], marks[1:]))


def _eye(viewmat: np.ndarray) -> np.ndarray:
    return np.asarray(-viewmat[:3, :3].T @ viewmat[:3, 3], np.float64)


def _pinhole(K: np.ndarray) -> np.ndarray:
    return np.array([K[0, 0], K[1, 1], K[0, 2], K[1, 2]], np.float64)
