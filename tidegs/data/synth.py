"""Writes generated cities: a whole COLMAP scene, or points alone as PLY shards.

Invariant: the same settings give the same bytes, for any number of threads; a folder appears whole or not at all.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import simplejpeg
from tqdm import tqdm

from tidegs.data.colmap_model import ColmapCamera, ColmapImage
from tidegs.data.colmap_write import write_model
from tidegs.data.synth_cameras import AERIAL_FOCAL, STREET_FOCAL, aerial_grid, intrinsics, street_path
from tidegs.data.synth_city import City, generate_city, render_view
from tidegs.errors import ConfigError, SceneError

_JPEG_QUALITY = 97  # with 4:4:4 chroma: the error of the file format stays far below that of any reconstruction
_BATCH = 1 << 16  # candidate points at a time
_LEAST_SEEN = 0.002  # share of candidate points seen by two cameras under which seen points are not searched for


@dataclass(frozen=True)
class SynthSettings:
    """What to generate. Lengths in metres."""

    seed: int = 0
    extent: tuple[float, float] = (200.0, 200.0)
    aerial: int = 60  # cameras
    street: int = 20  # cameras
    width: int = 480
    height: int = 320
    points: int = 60_000
    seen_points: bool = True  # only points that two cameras see, as structure from motion finds them
    altitude: float = 90.0  # of the aerial cameras
    oblique: float = 0.5  # share of the aerial cameras that do not look straight down
    district: float = 0.0  # side of the square in the middle that the aerial cameras fly over; 0: the whole city
    point_noise: float = 0.02  # standard deviation of each coordinate
    sky_share: float = 0.02  # fraction of candidate points on the sky's dome
    samples: int = 2  # rays a pixel: samples x samples
    image_format: str = "jpg"  # or "png"
    text: bool = True  # sparse/0/*.txt beside *.bin
    origin: tuple[float, float, float] = (0.0, 0.0, 0.0)  # added to all coordinates, float64

    def __post_init__(self) -> None:
        if min(self.aerial, self.street) < 0 or self.aerial + self.street + self.points < 1:
            raise ConfigError("a generated scene needs cameras or points: --aerial, --street and --points are all zero")
        if self.points < 0 or self.points > 2**40:
            raise ConfigError(f"--points {self.points} is not between 0 and 2^40")
        if min(self.width, self.height) < 8 or max(self.width, self.height) > 32768:
            raise ConfigError(f"--size {self.width} {self.height} is not between 8 and 32768 pixels on each side")
        if not 1 <= self.samples <= 8:
            raise ConfigError(f"--samples {self.samples} is not between 1 and 8")
        if self.image_format not in ("jpg", "png"):
            raise ConfigError(f"--image-format {self.image_format} is neither jpg nor png")
        if not 0.0 <= self.point_noise <= 10.0:
            raise ConfigError(f"--point-noise {self.point_noise} is not between 0 and 10 m")
        if not 0.0 <= self.oblique <= 1.0:
            raise ConfigError(f"--oblique {self.oblique} is not between 0 and 1")
        if not self.district >= 0.0:
            raise ConfigError(f"--district {self.district} is not a number of metres")
        if not np.isfinite(self.origin).all():
            raise ConfigError(f"--origin {self.origin} is not three finite numbers")


PRESETS: dict[str, SynthSettings] = {
    "demo": SynthSettings(),
    "tiny": SynthSettings(extent=(100.0, 100.0), aerial=8, street=4, width=96, height=64, points=3_000),
}


@dataclass(frozen=True)
class SynthView:
    """One camera of a generated scene."""

    name: str  # of the image file
    viewmat: np.ndarray  # float64 [4, 4], city frame to OpenCV camera frame
    K: np.ndarray  # float64 [3, 3]
    camera_id: int  # in the COLMAP model: 1 aerial, 2 street


def scene_views(city: City, settings: SynthSettings) -> list[SynthView]:
    """The cameras of a scene in the order of their names. ConfigError where the altitude does not suit the city."""
    s = settings
    if s.aerial and not city.solids.top + 5.0 < s.altitude * 0.97:
        raise ConfigError(f"--altitude {s.altitude:g} m is not above the roofs, which reach {city.solids.top:.0f} m")
    if s.aerial and np.hypot(1.04 * s.altitude, np.hypot(*s.extent) / 2.0) >= city.solids.dome:
        raise ConfigError(
            f"--altitude {s.altitude:g} m pierces the sky, a dome of {city.solids.dome:.0f} m around the city"
        )
    digits = max(4, len(str(max(s.aerial, s.street))))
    views = []
    groups = (("aerial", s.aerial, AERIAL_FOCAL), ("street", s.street, STREET_FOCAL))
    for camera_id, (label, count, focal) in enumerate(groups, 1):
        aerial = label == "aerial"
        poses = aerial_grid(city, count, s.altitude, s.oblique, s.district) if aerial else street_path(city, count)
        K = intrinsics(s.width, s.height, focal)
        for i, viewmat in enumerate(poses):
            views.append(SynthView(f"{label}_{i:0{digits}d}.{s.image_format}", viewmat, K, camera_id))
    return views


def write_scene(out: Path, settings: SynthSettings, progress: bool = True) -> None:
    """Writes images/ and sparse/0 (COLMAP) of a generated city into the new folder `out`.

    Raises ConfigError for settings that do not fit each other or where `out` exists and is not empty, SceneError where
    the folder cannot be written.
    """
    s = settings
    city = generate_city(s.seed, s.extent)
    views = scene_views(city, s)
    if not views:
        raise ConfigError("a scene needs a camera: set --aerial or --street, or write --points-only")
    with new_folder(out) as folder:
        (folder / "images").mkdir()
        for view in tqdm(views, "images", unit="img", disable=not progress):
            image = render_view(city, view.viewmat, view.K, s.width, s.height, s.samples)
            _write_image(folder / "images" / view.name, image)
        cameras = {v.camera_id: _colmap_camera(v, s) for v in views}
        images = [_colmap_image(i, v, s) for i, v in enumerate(views, 1)]
        write_model(
            folder / "sparse" / "0", cameras.values(), images, _scene_points(city, views, s, progress), text=s.text
        )


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder under a temporary name that becomes `out` when the block ends well, and is removed when it does not."""
    out = out.absolute()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} exists and is not an empty folder: name a new one, or remove it first")
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        try:
            temporary.mkdir(parents=True)
            yield temporary
            os.replace(temporary, out)
        except OSError as e:
            raise SceneError(
                f"cannot write the scene {out}: {e.strerror or e}; free space or name another folder"
            ) from e
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _write_image(path: Path, image: np.ndarray) -> None:
    if path.suffix == ".png":
        path.write_bytes(cv2.imencode(".png", image[..., ::-1])[1].tobytes())
    else:
        path.write_bytes(simplejpeg.encode_jpeg(image, _JPEG_QUALITY, "RGB", "444"))


def _colmap_camera(view: SynthView, s: SynthSettings) -> ColmapCamera:
    K = view.K
    params = (float(K[0, 0]), float(K[1, 1]), float(K[0, 2]), float(K[1, 2]))
    return ColmapCamera(view.camera_id, "PINHOLE", s.width, s.height, params)


def _colmap_image(image_id: int, view: SynthView, s: SynthSettings) -> ColmapImage:
    R = view.viewmat[:3, :3]
    tx, ty, tz = (float(v) for v in view.viewmat[:3, 3] - R @ np.asarray(s.origin))
    return ColmapImage(image_id, _quaternion(R), (tx, ty, tz), view.camera_id, view.name)


def _quaternion(R: np.ndarray) -> tuple[float, float, float, float]:
    """wxyz of a rotation matrix (Shepperd 1978: divide by the largest component), w not negative."""
    squares = np.array([np.trace(R), *(2.0 * np.diag(R) - np.trace(R))])  # 4 q^2 - 1
    k = int(np.argmax(squares))
    pivot = np.sqrt(1.0 + squares[k])  # 2 |q_k|
    odd = (R[2, 1] - R[1, 2], R[0, 2] - R[2, 0], R[1, 0] - R[0, 1])  # 4 w (x, y, z)
    xy, xz, yz = R[0, 1] + R[1, 0], R[0, 2] + R[2, 0], R[1, 2] + R[2, 1]  # 4 x y, ...
    rows = (
        (pivot * pivot, *odd),
        (odd[0], pivot * pivot, xy, xz),
        (odd[1], xy, pivot * pivot, yz),
        (odd[2], xz, yz, pivot * pivot),
    )
    w, x, y, z = np.array(rows[k]) / (2.0 * pivot) * (-1.0 if rows[k][0] < 0.0 else 1.0)
    return float(w), float(x), float(y), float(z)


def _scene_points(
    city: City, views: list[SynthView], s: SynthSettings, progress: bool
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Exactly s.points points, origin added, in chunks."""
    with tqdm(total=s.points, desc="points", unit="pt", unit_scale=True, disable=not progress) as bar:
        chunks = _seen_points(city, views, s) if s.seen_points else _all_points(city, s)
        for xyz, rgb in chunks:
            bar.update(len(xyz))
            yield xyz + np.asarray(s.origin), rgb


def _all_points(city: City, s: SynthSettings) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    return city.sample_points(s.points, s.seed, noise=s.point_noise, sky_share=s.sky_share)


def _seen_points(city: City, views: list[SynthView], s: SynthSettings) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Points that at least two cameras see (one, where there is one camera), from as many candidates as that takes."""
    need = min(2, len(views))
    probe, _ = next(city.sample_points(20_000, s.seed, noise=s.point_noise, sky_share=s.sky_share))
    share = float((_times_seen(city, views, probe, s) >= need).mean())
    if share < _LEAST_SEEN:
        raise ConfigError(
            f"only {share:.2%} of the city is seen by {need} cameras, too little to draw seen points from: "
            f"add cameras, lower --extent, or take --points-from all"
        )
    left = s.points
    candidates = city.sample_points(
        int(1.2 * s.points / share) + 10_000, s.seed, noise=s.point_noise, sky_share=s.sky_share
    )
    for xyz, rgb in candidates:
        for at in range(0, len(xyz), _BATCH):
            near, colors = xyz[at : at + _BATCH], rgb[at : at + _BATCH]
            keep = np.flatnonzero(_times_seen(city, views, near, s) >= need)[:left]
            left -= len(keep)
            yield near[keep], colors[keep]
            if not left:
                return


def _times_seen(city: City, views: list[SynthView], xyz: np.ndarray, s: SynthSettings) -> np.ndarray:
    seen = np.zeros(len(xyz), np.int32)
    slack = 0.02 + 4.0 * s.point_noise
    for v in views:
        seen += city.visible(v.viewmat, v.K, s.width, s.height, xyz, slack)
    return seen
