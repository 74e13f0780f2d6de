"""Undistortion: the same camera and picture as COLMAP's own undistorter, exact rescaling, truth on real photos."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import PIL.Image  # noqa: F401  before pycolmap
import pycolmap
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data import build
from tidegs.data.colmap_model import CAMERA_MODELS, MODEL_IDS, ColmapCamera
from tidegs.data.distortion_map import MapCache, distortion_map
from tidegs.data.image_source import make_source
from tidegs.data.load import load_scene
from tidegs.data.undistort import is_distorted, pinhole_of, rescale

MODELS = sorted(build.PARAMS)
UNDISTORTED = ("SIMPLE_PINHOLE", "PINHOLE")


def _native(camera: ColmapCamera) -> pycolmap.Camera:
    return pycolmap.Camera(model=camera.model, width=camera.width, height=camera.height, params=list(camera.params))


def _psnr(a: np.ndarray, b: np.ndarray) -> float:
    error = np.mean((a.astype(np.float64) - b) ** 2)
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


@pytest.mark.parametrize("model", MODELS)
def test_camera_and_picture_are_those_of_colmap(tmp_path: Path, model: str) -> None:
    camera = build.camera(model)
    build.save(tmp_path / "a.png", build.picture(3))
    source = make_source(tmp_path, tmp_path / "a.png", build.SIZE, camera)
    ours, mask = source.load(MapCache())
    theirs, their_camera = pycolmap.undistort_image(
        pycolmap.UndistortCameraOptions(), pycolmap.Bitmap.from_array(build.picture(3)), _native(camera)
    )
    assert mask is None
    assert (source.pinhole.width, source.pinhole.height) == (their_camera.width, their_camera.height)
    assert np.allclose(source.pinhole.params, _four(their_camera))
    assert ours.shape == (source.pinhole.height, source.pinhole.width, 3)
    difference = np.abs(ours.astype(int) - theirs.to_array())[1:-1, 1:-1]  # COLMAP leaves outermost pixels black
    assert difference.max() <= 3  # COLMAP interpolates in float, OpenCV in steps of 1/32 pixel
    assert source.distorted or np.array_equal(ours, build.picture(3))
    assert source.distorted == is_distorted(camera) == (model not in UNDISTORTED)


def _four(camera: pycolmap.Camera) -> tuple[float, ...]:
    return (camera.focal_length_x, camera.focal_length_y, camera.principal_point_x, camera.principal_point_y)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(MODELS), st.integers(40, 900), st.integers(40, 900), st.data())
def test_the_camera_of_the_result_is_that_of_colmap(model: str, width: int, height: int, data: st.DataObject) -> None:
    """Any size, principal point and strength of distortion, to lenses that fold before the corner."""
    fields = CAMERA_MODELS[MODEL_IDS[model]][1]
    params = []
    for name, value in zip(fields, build.PARAMS[model], strict=True):
        if name in ("f", "fx", "fy"):
            params.append(value * max(width, height) / 48 * data.draw(st.floats(0.6, 2)))
        elif name in ("cx", "cy"):
            params.append((width if name == "cx" else height) * data.draw(st.floats(0.2, 0.8)))
        elif name in ("alpha", "beta", "omega"):
            params.append(value * data.draw(st.floats(0.8, 1.1)))
        else:
            params.append(value * data.draw(st.floats(-2, 2)))
    camera = ColmapCamera(1, model, width, height, tuple(params))
    if is_distorted(camera):
        ours = pinhole_of(camera)
        theirs = pycolmap.undistort_camera(pycolmap.UndistortCameraOptions(), _native(camera))
        assert (ours.width, ours.height) == (theirs.width, theirs.height)
        assert np.allclose(ours.params, _four(theirs), rtol=1e-12)


@pytest.mark.parametrize("model", MODELS)
def test_no_pixel_of_the_result_falls_outside_the_photo(model: str) -> None:
    camera = build.camera(model)
    coarse, _ = distortion_map(camera, pinhole_of(camera))
    assert coarse.min() >= -1
    assert coarse[..., 0].max() < camera.width
    assert coarse[..., 1].max() < camera.height


@pytest.mark.parametrize("size", [(24, 18), (96, 72), (31, 23), (100, 36)])
@pytest.mark.parametrize("model", MODELS)
def test_rescaling_scales_projections_exactly(model: str, size: tuple[int, int]) -> None:
    camera = build.camera(model)
    rays = np.column_stack([np.random.default_rng(0).uniform(-0.3, 0.3, (50, 2)), np.ones(50)])
    before, after = _native(camera).img_from_cam(rays), _native(rescale(camera, *size)).img_from_cam(rays)
    assert np.allclose(after, before * np.array(size) / np.array(build.SIZE), atol=1e-9)


def test_a_principal_point_off_the_centre_is_kept(tmp_path: Path) -> None:
    """The ray through a pixel of the result is the ray of the photo's pixel that it shows."""
    camera = ColmapCamera(1, "SIMPLE_RADIAL", 48, 36, (43.0, 33.0, 12.0, -0.1))
    pinhole = pinhole_of(camera)
    fx, fy, cx, cy = pinhole.params
    x, y = np.meshgrid(np.arange(pinhole.width), np.arange(pinhole.height))
    rays = np.stack([(x + 0.5 - cx) / fx, (y + 0.5 - cy) / fy, np.ones(x.shape)], axis=-1)
    coarse, fine = distortion_map(camera, pinhole)
    fraction = np.stack([fine & 31, fine >> 5], axis=-1) / 32
    seen = _native(camera).cam_from_img((coarse + fraction + 0.5).reshape(-1, 2))
    assert np.abs(seen - rays[..., :2].reshape(-1, 2)).max() * fx < 1 / 32  # half of OpenCV's step each way
    assert cx / pinhole.width > 0.6
    assert cy / pinhole.height < 0.4


def test_maps_are_computed_once_for_a_camera_and_bounded() -> None:
    made: list[int] = []

    def compute(camera: ColmapCamera, pinhole: ColmapCamera) -> tuple[np.ndarray, np.ndarray]:
        made.append(camera.camera_id)
        return np.zeros(60, np.uint8), np.zeros(40, np.uint8)

    cameras = [ColmapCamera(i, "SIMPLE_RADIAL", 48, 36, (43.0 + i, 24.0, 18.0, 0.1)) for i in range(3)]
    cache = MapCache(200, compute)
    for i in (0, 1, 0, 1, 2, 1, 0):  # 2 throws 0 out, the one used longest ago
        cache.get(cameras[i], cameras[i])
    assert made == [0, 1, 2, 0]


MODEL_SCENES = [
    "SIMPLE_PINHOLE", "PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV", "OPENCV_FISHEYE", "FULL_OPENCV", "FOV",
    "SIMPLE_RADIAL_FISHEYE", "RADIAL_FISHEYE", "THIN_PRISM_FISHEYE",
]  # fmt: skip


@pytest.mark.parametrize("model", MODEL_SCENES)
def test_real_photos_undistort_to_the_pinhole_truth(shared: Path, model: str) -> None:
    """shared/odd/model_*: photos of scenes/plush resampled into each model; warped back they must be those of plush."""
    folder = shared / "odd" / f"model_{model}"
    if not folder.is_dir():
        pytest.skip(f"no {folder.name} here")
    assert model in json.loads((shared / "odd" / "models.json").read_text())
    scene, truth = load_scene(folder), {c.name: c for c in load_scene(shared / "scenes" / "plush").cameras}
    values = []
    for camera in scene.cameras[:3]:
        reference = truth[camera.name]
        ours, theirs = (c.source.load(MapCache())[0] for c in (camera, reference))
        to_reference = reference.K @ np.linalg.inv(camera.K)
        x, y = np.meshgrid(np.arange(camera.width) + 0.5, np.arange(camera.height) + 0.5)
        where = np.stack([x, y, np.ones_like(x)], axis=-1) @ to_reference.T
        where = (where[..., :2] - 0.5).astype(np.float32)
        # The photos of the test were made at about half size, so the truth is blurred alike before it is sampled.
        blurred = cv2.GaussianBlur(theirs, (0, 0), 0.5 * reference.K[0, 0] / camera.K[0, 0] * 0.9)
        warped = cv2.remap(blurred, where[..., 0], where[..., 1], cv2.INTER_LINEAR)
        inside = (where >= 4).all(-1) & (where[..., 0] < reference.width - 5) & (where[..., 1] < reference.height - 5)
        inside[:3], inside[-3:], inside[:, :3], inside[:, -3:] = False, False, False, False
        values.append(_psnr(ours[inside], warped[inside]))
    assert min(values) > 40  # a shift of half a pixel costs 8 dB


@pytest.mark.parametrize(
    ("name", "limit"),
    [*((f"odd/model_{m}", 1e-3) for m in MODEL_SCENES), ("scenes/room", 1.0), ("scenes/caliterra", 1.0)],
)
def test_points_project_to_their_keypoints(shared: Path, name: str, limit: float) -> None:
    """Seed points through scene frame, viewmat and K fall where the model's keypoints lie once undistorted (median)."""
    if not (shared / name).is_dir():
        pytest.skip(f"no {name} here")
    scene = load_scene(shared / name)
    theirs = pycolmap.Reconstruction(str(shared / name / "sparse" / "0"))
    errors = []
    for camera in scene.cameras[::10]:
        image = next(i for i in theirs.images.values() if i.name == camera.name)
        seen = [p for p in image.points2D if p.has_point3D()]
        world = np.array([theirs.points3D[p.point3D_id].xyz for p in seen])
        local = scene.transform.to_scene(world) @ camera.viewmat[:3, :3].T + camera.viewmat[:3, 3]
        rays = theirs.cameras[image.camera_id].cam_from_img(np.array([p.xy for p in seen]))
        projected = (local / local[:, 2:]) @ camera.K.T
        expected = np.column_stack([rays, np.ones(len(rays))]) @ camera.K.T
        errors.append(np.linalg.norm(projected - expected, axis=1))
    assert np.median(np.concatenate(errors)) < limit
