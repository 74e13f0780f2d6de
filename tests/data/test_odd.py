"""The folders of shared/odd and shared/scenes: each loads with known values or fails in its sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tidegs.data.distortion_map import MapCache
from tidegs.data.images import ImageCache
from tidegs.data.load import load_scene
from tidegs.errors import ImageError, SceneError

# name: images, test images, points, size of the first image, fx, cx, number of warnings. Counts are those of the models
# as pycolmap reads them; sizes and K of distorted ones those of COLMAP's image_undistorter.
LOADS = {
    "scenes/banana": (14, 2, 6278, (797, 530), 1384.92, 398.5, 0),
    "scenes/caliterra": (75, 10, 34765, (1195, 898), 910.62, 597.5, 0),
    "scenes/plush": (97, 13, 12572, (982, 733), 820.75, 491.0, 0),
    "scenes/room": (128, 16, 5751, (577, 770), 622.02, 288.5, 0),
    "scenes/southbuilding": (128, 16, 34329, (800, 597), 661.61, 400.0, 0),
    "odd/base_simple_radial": (14, 2, 653, (398, 264), 692.46, 199.0, 0),
    "odd/names": (14, 2, 653, (398, 264), 692.46, 199.0, 0),
    "odd/extra_images": (14, 2, 653, (398, 264), 692.46, 199.0, 0),
    "odd/points_empty": (14, 2, 0, (398, 264), 692.46, 199.0, 1),
    "odd/points_missing_file": (14, 2, 0, (398, 264), 692.46, 199.0, 1),
    "odd/unnormalised_quat": (14, 2, 653, (398, 264), 692.46, 199.0, 0),
    "odd/dims_mismatch": (14, 2, 653, (198, 131), 346.23, 99.0, 1),
    "odd/sparse_not_in_0": (14, 2, 653, (398, 264), 692.46, 199.0, 0),
    "odd/masks": (14, 2, 653, (398, 264), 692.46, 199.0, 0),
    "odd/text_model": (14, 2, 653, (398, 264), 692.46, 199.0, 0),
    "odd/text_model_crlf": (14, 2, 653, (398, 264), 692.46, 199.0, 0),
    "odd/nerfstudio_transforms": (14, 2, 653, (398, 264), 692.46, 199.0, 0),
    "odd/nerfstudio_lego_tiny": (2, 1, 0, (50, 50), 69.44, 25.0, 1),
    "odd/rig_synthetic": (24, 3, 600, (394, 295), 420.0, 197.0, 0),
    "odd/model_PINHOLE": (12, 2, 2228, (480, 360), 430.0, 243.0, 0),
    "odd/model_OPENCV": (12, 2, 2331, (519, 374), 430.0, 263.82, 0),
    "odd/model_OPENCV_FISHEYE": (12, 2, 2340, (541, 383), 430.0, 270.5, 0),
}


@pytest.fixture
def folder(shared: Path, request: pytest.FixtureRequest) -> Path:
    if not (shared / request.param).is_dir():
        pytest.skip(f"no {request.param} here")
    return shared / request.param


@pytest.mark.parametrize(("folder", "expected"), LOADS.items(), indirect=["folder"], ids=LOADS)
def test_loads_with_known_values(folder: Path, expected: tuple) -> None:
    scene = load_scene(folder)
    first = scene.cameras[0]
    assert expected == (
        len(scene.cameras), len(scene.test), scene.points.count, (first.width, first.height),
        round(first.K[0, 0], 2), round(first.K[0, 2], 2), len(scene.warnings),
    )  # fmt: skip
    assert sorted(scene.train + scene.test) == list(range(len(scene.cameras)))
    with ImageCache(scene.cameras, 64 << 20, 2) as cache:
        cache.announce(range(len(scene.cameras)))
        for i in (0, len(scene.cameras) - 1):
            assert cache.get(i).shape == (scene.cameras[i].height, scene.cameras[i].width, 3)


FAILS = {
    "odd/unknown_camera_model": r"cameras\.bin: camera 1 has the camera model id 99, which is not one of COLMAP's",
    "odd/truncated_jpeg": r"\.jpg: the file is empty or not an image of a known format; replace",
    "odd/real_incomplete_rigs_text": r"incomplete: cameras\.txt, frames\.txt, rigs\.txt but no images\.txt; export",
    "odd/real_incomplete_rigs_bin": r"incomplete: cameras\.bin, frames\.bin, rigs\.bin but no images\.bin; export",
    "odd/real_unicode_names_rigs_no_images": r"none of the model's 2 images was found .*'C.*pia de IMG_5139\.png'",
    "odd/real_two_cams_one_point": r"none of the model's 2 images was found",
    "odd/real_362_per_image_cameras_no_images": r"none of the model's 362 images was found .*'frame_0001\.png'",
}


@pytest.mark.parametrize(("folder", "sentence"), FAILS.items(), indirect=["folder"], ids=FAILS)
def test_fails_with_one_sentence(folder: Path, sentence: str) -> None:
    with pytest.raises(SceneError, match=sentence) as caught:
        load_scene(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("folder", "counts"),
    [
        ("odd/real_unicode_names_rigs_no_images", (2, 129)),
        ("odd/real_two_cams_one_point", (2, 1)),
        ("odd/real_362_per_image_cameras_no_images", (362, 8649)),
    ],
    indirect=["folder"],
)
def test_models_without_images_open_where_none_is_needed(folder: Path, counts: tuple[int, int]) -> None:
    scene = load_scene(folder, need_images=False)
    assert (len(scene.cameras), scene.points.count) == counts


@pytest.mark.parametrize("folder", ["odd/truncated_jpeg"], indirect=True)
def test_half_a_jpeg_is_an_error_of_get(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "sparse").symlink_to(folder / "sparse")
    broken = []
    for path in (folder / "images").iterdir():
        if path.stat().st_size:
            (tmp_path / "images" / path.name).symlink_to(path)
    scene = load_scene(tmp_path)
    assert "1 of 14 images are missing" in scene.warnings[0]
    with ImageCache(scene.cameras, 64 << 20, 2) as cache:
        cache.announce(range(13))
        for i in range(13):
            try:
                cache.get(i)
            except ImageError as error:
                broken.append(str(error))
    assert len(broken) == 1
    assert "the image is truncated or damaged; replace the file" in broken[0]


@pytest.mark.parametrize("folder", ["odd/names"], indirect=True)
def test_equal_base_names_are_different_images(folder: Path) -> None:
    scene = load_scene(folder)
    by_name = {c.name: c for c in scene.cameras}
    a, b = (by_name[n].source.load(MapCache())[0] for n in ("same/x.jpg", "other/x.jpg"))  # type: ignore[attr-defined]
    assert not np.array_equal(a, b)


@pytest.mark.parametrize("folder", ["odd/masks"], indirect=True)
def test_masks_have_the_size_of_their_image(folder: Path) -> None:
    for camera in load_scene(folder).cameras[:3]:
        _, mask = camera.source.load(MapCache())  # type: ignore[attr-defined]
        assert mask.shape == (camera.height, camera.width)
        assert set(np.unique(mask)) == {0, 255}


@pytest.mark.parametrize("name", ["text_model", "text_model_crlf", "unnormalised_quat", "sparse_not_in_0"])
def test_the_same_scene_in_another_form_has_the_same_cameras(shared: Path, name: str) -> None:
    if not (shared / "odd" / name).is_dir():
        pytest.skip(f"no {name} here")
    a, b = (load_scene(shared / "odd" / n) for n in (name, "base_simple_radial"))
    for x, y in zip(a.cameras, b.cameras, strict=True):
        assert x.name == y.name
        assert np.allclose(x.viewmat, y.viewmat, atol=1e-9)
    order = [np.lexsort(s.points.gather().xyz.T) for s in (a, b)]
    assert np.allclose(a.points.gather().xyz[order[0]], b.points.gather().xyz[order[1]], atol=1e-5)
