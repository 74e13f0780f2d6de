"""The content of a COLMAP model as plain data. Poses and units are those of the files, unchanged."""

from __future__ import annotations

from dataclasses import dataclass, field

# COLMAP's camera models (src/colmap/sensor/models.h): id, name, parameters in the order of the files.
CAMERA_MODELS: dict[int, tuple[str, tuple[str, ...]]] = {
    0: ("SIMPLE_PINHOLE", ("f", "cx", "cy")),
    1: ("PINHOLE", ("fx", "fy", "cx", "cy")),
    2: ("SIMPLE_RADIAL", ("f", "cx", "cy", "k")),
    3: ("RADIAL", ("f", "cx", "cy", "k1", "k2")),
    4: ("OPENCV", ("fx", "fy", "cx", "cy", "k1", "k2", "p1", "p2")),
    5: ("OPENCV_FISHEYE", ("fx", "fy", "cx", "cy", "k1", "k2", "k3", "k4")),
    6: ("FULL_OPENCV", ("fx", "fy", "cx", "cy", "k1", "k2", "p1", "p2", "k3", "k4", "k5", "k6")),
    7: ("FOV", ("fx", "fy", "cx", "cy", "omega")),
    8: ("SIMPLE_RADIAL_FISHEYE", ("f", "cx", "cy", "k")),
    9: ("RADIAL_FISHEYE", ("f", "cx", "cy", "k1", "k2")),
    10: ("THIN_PRISM_FISHEYE", ("fx", "fy", "cx", "cy", "k1", "k2", "p1", "p2", "k3", "k4", "sx1", "sy1")),
    11: (
        "RAD_TAN_THIN_PRISM_FISHEYE",
        ("fx", "fy", "cx", "cy", "k0", "k1", "k2", "k3", "k4", "k5", "p0", "p1", "s0", "s1", "s2", "s3"),
    ),
    12: ("SIMPLE_DIVISION", ("f", "cx", "cy", "k")),
    13: ("DIVISION", ("fx", "fy", "cx", "cy", "k")),
    14: ("SIMPLE_FISHEYE", ("f", "cx", "cy")),
    15: ("FISHEYE", ("fx", "fy", "cx", "cy")),
    16: ("EUCM", ("fx", "fy", "cx", "cy", "alpha", "beta")),
    17: ("EQUIRECTANGULAR", ("width", "height")),
}
MODEL_IDS: dict[str, int] = {name: i for i, (name, _) in CAMERA_MODELS.items()}


@dataclass(frozen=True)
class ColmapCamera:
    """One row of cameras.bin or cameras.txt. Pixel centres lie at +0.5."""

    camera_id: int
    model: str  # a key of MODEL_IDS
    width: int
    height: int
    params: tuple[float, ...]  # in the order of CAMERA_MODELS


@dataclass(frozen=True)
class ColmapImage:
    """One registered image: x_camera = R(qvec) x_world + tvec, OpenCV axes."""

    image_id: int
    qvec: tuple[float, float, float, float]  # wxyz, not necessarily normalised
    tvec: tuple[float, float, float]
    camera_id: int
    name: str  # relative to the image folder; bytes that are not UTF-8 as surrogate escapes
    seen: tuple[int, int] = field(default=(0, 0), compare=False)  # place and number of its 2D points in images.bin
