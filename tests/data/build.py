"""Small scenes for tests: cameras on an arc looking at the origin, pictures of smooth colour, a few points."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from PIL import Image

from tidegs.data.colmap_model import ColmapCamera, ColmapImage
from tidegs.data.colmap_write import write_model

SIZE = (48, 36)

# Parameters with visible distortion for a picture of 48 x 36, one of each camera model that has a pinhole equivalent.
PARAMS: dict[str, tuple[float, ...]] = {
    "SIMPLE_PINHOLE": (43.0, 24.0, 18.0),
    "PINHOLE": (43.0, 44.0, 25.5, 17.0),
    "SIMPLE_RADIAL": (43.0, 25.0, 17.5, -0.18),
    "RADIAL": (43.0, 24.0, 18.0, -0.22, 0.06),
    "OPENCV": (43.0, 43.4, 24.4, 17.7, -0.24, 0.08, 0.0015, -0.001),
    "OPENCV_FISHEYE": (43.0, 43.0, 24.0, 18.0, -0.03, 0.006, -0.002, 0.0003),
    "FULL_OPENCV": (43.0, 43.0, 24.0, 18.0, -0.2, 0.05, 0.001, -0.0008, -0.01, 0.03, 0.01, 0.002),
    "FOV": (43.0, 43.0, 24.0, 18.0, 0.9),
    "SIMPLE_RADIAL_FISHEYE": (43.0, 24.0, 18.0, -0.04),
    "RADIAL_FISHEYE": (43.0, 24.0, 18.0, -0.05, 0.01),
    "THIN_PRISM_FISHEYE": (43.0, 43.0, 24.0, 18.0, -0.03, 0.005, 0.0008, -0.0006, 0.0, 0.0, 0.001, -0.0012),
    "RAD_TAN_THIN_PRISM_FISHEYE": (43.0, 43.0, 24.0, 18.0, *(-0.01,) * 6, 0.001, 0.001, *(0.001,) * 4),
    "SIMPLE_DIVISION": (43.0, 24.0, 18.0, -0.1),
    "DIVISION": (43.0, 43.5, 24.0, 18.0, -0.1),
    "SIMPLE_FISHEYE": (43.0, 24.0, 18.0),
    "FISHEYE": (43.0, 43.5, 24.0, 18.0),
    "EUCM": (43.0, 43.0, 24.0, 18.0, 0.6, 1.1),
}


def camera(model: str = "PINHOLE", camera_id: int = 1, size: tuple[int, int] = SIZE) -> ColmapCamera:
    return ColmapCamera(camera_id, model, *size, PARAMS[model])


def picture(seed: int, size: tuple[int, int] = SIZE) -> np.ndarray:
    """A smooth picture, uint8 [h, w, 3], that differs by seed."""
    y, x = np.mgrid[: size[1], : size[0]]
    rng = np.random.default_rng(seed)
    waves = [np.sin(x * a + y * b + c) for a, b, c in rng.uniform(-0.3, 0.3, (3, 3))]
    return np.uint8(127.5 + 120 * np.stack(waves, axis=-1))


def pose(i: int, n: int, center: tuple[float, float, float] = (0.0, 0.0, 0.0)) -> tuple[tuple, tuple]:
    """(qvec, tvec) of camera i of n on a circle of radius 3 about `center`, turned about y to face it."""
    angle = 2 * np.pi * i / n
    rotation = np.array([[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]])
    t = np.array([0, 0, 3.0]) - rotation @ np.array(center)
    return (float(np.cos(angle / 2)), 0.0, float(np.sin(angle / 2)), 0.0), tuple(map(float, t))


def images(names: list[str], camera_id: int = 1, center: tuple[float, float, float] = (0.0, 0.0, 0.0)) -> list:
    return [ColmapImage(10 + i, *pose(i, len(names), center), camera_id, name) for i, name in enumerate(names)]


def points(n: int = 20, center: tuple[float, float, float] = (0.0, 0.0, 0.0)) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    return rng.normal(size=(n, 3)) * 0.3 + center, rng.integers(0, 256, (n, 3)).astype(np.uint8)


def scene(
    root: Path,
    names: list[str] | None = None,
    *,
    cameras: list[ColmapCamera] | None = None,
    photos: list[ColmapImage] | None = None,
    cloud: tuple[np.ndarray, np.ndarray] | None = None,
    folder: str = "sparse/0",
    text: bool = False,
    write_pictures: bool = True,
) -> Path:
    """Writes a scene and returns its root."""
    names = [f"{i:02}.png" for i in range(9)] if names is None else names
    cameras = [camera()] if cameras is None else cameras
    photos = images(names, cameras[0].camera_id) if photos is None else photos
    write_model(root / folder, cameras, photos, points() if cloud is None else cloud, binary=not text, text=text)
    if write_pictures:
        by_id = {c.camera_id: c for c in cameras}
        for i, photo in enumerate(photos):
            c = by_id[photo.camera_id]
            save(root / "images" / photo.name, picture(i, (c.width, c.height)))
    return root


def save(path: Path, pixels: np.ndarray, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = {"": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".tif": "TIFF"}.get(path.suffix.lower())
    Image.fromarray(pixels).save(path, kind, **options)


def points_with_tracks(path: Path, xyz: np.ndarray, rgb: np.ndarray, tracks: list[int]) -> None:
    """A points3D.bin whose point i has a track of tracks[i] entries."""
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(xyz)))
        for i, (p, c, track) in enumerate(zip(xyz, rgb, tracks, strict=True)):
            f.write(struct.pack("<Q3d3BdQ", 2**40 + i, *p, *c, 0.5, track) + b"\x7f" * 8 * track)
