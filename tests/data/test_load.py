"""Opening scenes: files by name, sizes, splits, the scene frame, what is left out and what is said about it."""

from __future__ import annotations

import os
import tracemalloc
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from tests.data import build
from tidegs.data import load
from tidegs.data.colmap_model import ColmapCamera, ColmapImage
from tidegs.data.distortion_map import MapCache
from tidegs.data.images import ImageCache
from tidegs.data.load import load_scene
from tidegs.data.scene import Scene
from tidegs.errors import ImageError, SceneError


def pixels(scene: Scene, index: int) -> np.ndarray:
    return scene.cameras[index].source.load(MapCache())[0]  # type: ignore[attr-defined]


def positions(scene: Scene) -> np.ndarray:
    return np.array([-c.viewmat[:3, :3].T @ c.viewmat[:3, 3] for c in scene.cameras])


def test_a_plain_scene(tmp_path: Path) -> None:
    scene = load_scene(build.scene(tmp_path))
    assert [c.name for c in scene.cameras] == [f"{i:02}.png" for i in range(9)]
    assert (scene.test, scene.train) == ((0, 8), (1, 2, 3, 4, 5, 6, 7))
    assert scene.warnings == ()
    assert np.array_equal(scene.cameras[3].K, [[43, 0, 25.5], [0, 44, 17], [0, 0, 1]])
    assert (scene.cameras[3].width, scene.cameras[3].height) == (48, 36)
    assert np.array_equal(pixels(scene, 3), build.picture(3))
    xyz, rgb = build.points()
    seeds = scene.require_points().gather()
    assert (seeds.xyz.dtype, seeds.rgb.dtype) == (np.float32, np.uint8)
    assert np.allclose(scene.transform.to_world(seeds.xyz), xyz, atol=1e-6)
    assert np.array_equal(seeds.rgb, rgb)


@pytest.mark.parametrize(("every", "test"), [(0, ()), (3, (0, 3, 6)), (100, (0,))])
def test_every_nth_image_by_name_is_held_out(tmp_path: Path, every: int, test: tuple[int, ...]) -> None:
    scene = load_scene(build.scene(tmp_path), test_every=every)
    assert scene.test == test
    assert scene.train == tuple(i for i in range(9) if i not in test)


def test_a_single_image_is_trained_on_and_said_so(tmp_path: Path) -> None:
    scene = load_scene(build.scene(tmp_path, ["a.png"]))
    assert scene.train == (0,)
    assert "all are trained on" in scene.warnings[0]
    assert scene.extent == 1.1
    depth = np.linalg.norm(scene.points.gather().xyz - positions(scene)[0], axis=1)
    assert np.isclose(np.median(depth), 1)  # no two cameras to measure by: the points' distance is one unit


def test_scene_frame_is_centred_and_scaled_by_the_cameras(tmp_path: Path) -> None:
    scene = load_scene(build.scene(tmp_path))
    assert np.allclose(positions(scene).mean(0), 0, atol=1e-12)
    assert np.isclose(np.linalg.norm(positions(scene), axis=1).max(), 1)
    assert scene.extent == 1.1
    assert np.isclose(scene.transform.scale, 1 / 3)


def test_georeferenced_coordinates_lose_nothing(tmp_path: Path) -> None:
    center = (4_567_890.5, -1_234_567.25, 5_000_123.75)
    names = [f"{i}.png" for i in range(6)]
    near = load_scene(build.scene(tmp_path / "near", names))
    photos, cloud = build.images(names, center=center), build.points(center=center)
    far = load_scene(build.scene(tmp_path / "far", names, photos=photos, cloud=cloud))
    for a, b in zip(near.cameras, far.cameras, strict=True):
        assert np.allclose(a.viewmat, b.viewmat, atol=1e-8)
    assert np.allclose(near.points.gather().xyz, far.points.gather().xyz, atol=1e-6)
    assert np.allclose(far.transform.to_world(far.points.gather().xyz), cloud[0], atol=1e-5)


def test_quaternions_of_any_length_give_rotations(tmp_path: Path) -> None:
    names = [f"{i}.png" for i in range(5)]
    plain = build.images(names)
    scaled = [
        ColmapImage(p.image_id, tuple(f * q for q in p.qvec), p.tvec, p.camera_id, p.name)  # type: ignore[arg-type]
        for p, f in zip(plain, (2.0, -1.0, 0.5, 1e-3, 1e6), strict=True)
    ]
    a = load_scene(build.scene(tmp_path / "a", names, photos=plain))
    b = load_scene(build.scene(tmp_path / "b", names, photos=scaled))
    for x, y in zip(a.cameras, b.cameras, strict=True):
        assert np.allclose(x.viewmat, y.viewmat, atol=1e-12)


@pytest.mark.parametrize("distance", [1e3, 1e9])
def test_a_stray_camera_does_not_shape_the_scene(tmp_path: Path, distance: float) -> None:
    names = [f"{i:02}.png" for i in range(20)]
    photos = build.images(names)
    stray = ColmapImage(99, (1.0, 0.0, 0.0, 0.0), (distance, 0.0, 0.0), 1, "zz.png")
    scene = load_scene(build.scene(tmp_path, photos=[*photos, stray]))
    assert np.isclose(scene.transform.scale, 1 / 3)
    assert len(scene.cameras) == 21
    assert "1 cameras lie far from all others (first: 'zz.png')" in scene.warnings[0]


def test_two_places_of_cameras_are_both_of_the_scene(tmp_path: Path) -> None:
    """Close-ups and an overview are no strays, however far apart."""
    names = [f"{i:02}.png" for i in range(20)]
    photos = build.images(names[:12]) + build.images(names[12:], center=(500.0, 0.0, 0.0))
    scene = load_scene(build.scene(tmp_path, photos=photos))
    assert scene.warnings == ()
    assert np.linalg.norm(positions(scene), axis=1).max() <= 1 + 1e-12


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_points_without_a_place_are_dropped_and_counted(tmp_path: Path, bad: float) -> None:
    xyz, rgb = build.points()
    xyz[3, 1] = xyz[7, 0] = bad
    scene = load_scene(build.scene(tmp_path, cloud=(xyz, rgb)))
    assert scene.points.count == 18
    assert "2 points with coordinates that are not finite" in scene.warnings[0]
    assert np.isfinite(scene.points.gather().xyz).all()


def test_many_points_stay_in_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    xyz, rgb = build.points(100)
    xyz[50] = np.nan
    root = build.scene(tmp_path, cloud=(xyz, rgb))
    held = load_scene(root).points
    monkeypatch.setattr(load, "STREAM_POINTS", 99)
    stream = load_scene(root).require_points()
    assert stream.count == 100
    for _ in range(2):
        chunks = list(stream.chunks(7))
        assert max(c.count for c in chunks) <= 7
        assert np.array_equal(np.concatenate([c.xyz for c in chunks]), held.gather().xyz)
        assert np.array_equal(np.concatenate([c.rgb for c in chunks]), held.gather().rgb)
    assert np.array_equal(stream.gather().xyz, held.gather().xyz)


@pytest.mark.parametrize("absent", [True, False])
def test_a_scene_without_points_opens_but_cannot_train(tmp_path: Path, absent: bool) -> None:
    root = build.scene(tmp_path, cloud=build.points(0))
    if absent:
        (root / "sparse" / "0" / "points3D.bin").unlink()
    scene = load_scene(root)
    assert scene.points.count == 0
    assert "no 3D points" in scene.warnings[0]
    with pytest.raises(SceneError, match=r"no 3D points to start from .* --init-random 100000"):
        scene.require_points()


NAMES = [
    "a b.png", "q'\"s.png", "UPPER.PNG", "no_ext", "%20.png", "two..dots.v1.png", "emoji_🍌.png", "é_nfc.png",
    unicodedata.normalize("NFD", "é_nfd.png"), "cam 0/x.png", "cam 1/x.png", "相机/图像 001.png", "кам/б.png",
    os.fsdecode(b"latin_\xe9.png"),
]  # fmt: skip


def test_names_of_any_kind_are_found(tmp_path: Path) -> None:
    scene = load_scene(build.scene(tmp_path, NAMES))
    assert scene.warnings == ()
    assert [c.name for c in scene.cameras] == sorted(NAMES)
    for i, camera in enumerate(scene.cameras):
        assert np.array_equal(pixels(scene, i), build.picture(NAMES.index(camera.name)))


@pytest.mark.parametrize(
    ("in_model", "on_disk"),
    [
        ("sub\\a.png", "sub/a.png"),
        ("A.PNG", "a.png"),
        ("a.JPG", "a.jpg"),
        ("a.jpg", "a.png"),
        (unicodedata.normalize("NFC", "é.png"), unicodedata.normalize("NFD", "é.png")),
        ("./a.png", "a.png"),
        ("sub//a.png", "sub/a.png"),
    ],
)
def test_names_written_otherwise_are_found(tmp_path: Path, in_model: str, on_disk: str) -> None:
    root = build.scene(tmp_path, [in_model, "z.png"], write_pictures=False)
    build.save(root / "images" / on_disk, build.picture(0))
    build.save(root / "images" / "z.png", build.picture(1))
    scene = load_scene(root)
    assert {c.path for c in scene.cameras} == {root / "images" / on_disk, root / "images" / "z.png"}


def test_a_name_that_two_files_could_mean_is_not_guessed(tmp_path: Path) -> None:
    root = build.scene(tmp_path, ["a.jpg", "z.png"], write_pictures=False)
    for name in ("a.png", "a.webp", "z.png", "sub/a.jpg"):
        build.save(root / "images" / name, build.picture(0))
    scene = load_scene(root)
    assert [c.name for c in scene.cameras] == ["z.png"]
    assert "1 of 2 images are missing and left out (first: 'a.jpg')" in scene.warnings[0]


@pytest.mark.parametrize("names", [["a.jpg", "a.png"], ["A.png", "a.png"], ["a.png", "a.webp"]])
def test_a_file_is_never_used_for_two_names(tmp_path: Path, names: list[str]) -> None:
    root = build.scene(tmp_path, names, write_pictures=False)
    build.save(root / "images" / "a.png", build.picture(0))
    scene = load_scene(root)
    assert [c.name for c in scene.cameras] == ["a.png"]
    assert f"1 of 2 images are missing and left out (first: '{next(n for n in names if n != 'a.png')}')" in str(
        scene.warnings
    )


def test_missing_images_are_left_out_and_counted(tmp_path: Path) -> None:
    root = build.scene(tmp_path)
    for name in ("01.png", "05.png"):
        (root / "images" / name).unlink()
    scene = load_scene(root)
    assert [c.name for c in scene.cameras] == [f"{i:02}.png" for i in range(9) if i not in (1, 5)]
    assert "2 of 9 images are missing and left out (first: '01.png', '05.png')" in scene.warnings[0]


def test_no_image_at_all_is_an_error_unless_none_is_needed(tmp_path: Path) -> None:
    root = build.scene(tmp_path, write_pictures=False, cameras=[build.camera("SIMPLE_RADIAL")])
    with pytest.raises(SceneError, match=r"none of the model's 9 images was found .*first: '00\.png', '01\.png'"):
        load_scene(root)
    bare = load_scene(root, need_images=False)
    for i in range(9):
        build.save(root / "images" / f"{i:02}.png", build.picture(i))
    whole = load_scene(root)
    for a, b in zip(bare.cameras, whole.cameras, strict=True):
        assert np.array_equal(a.K, b.K)
        assert np.array_equal(a.viewmat, b.viewmat)
        assert (a.name, a.path, a.width, a.height) == (b.name, b.path, b.width, b.height)


def test_an_image_folder_of_another_name(tmp_path: Path) -> None:
    root = build.scene(tmp_path)
    (root / "images").rename(root / "frames")
    with pytest.raises(SceneError, match="or name their folder"):
        load_scene(root, images="images")
    assert len(load_scene(root, images="frames").cameras) == 9
    (root / "frames").rename(root / "input")
    assert len(load_scene(root).cameras) == 9


def test_extra_files_are_ignored(tmp_path: Path) -> None:
    root = build.scene(tmp_path)
    (root / "images" / "Thumbs.db").write_bytes(b"x")
    (root / "images" / ".hidden").mkdir()
    build.save(root / "images" / "zz.png", build.picture(0))
    assert len(load_scene(root).cameras) == 9


def test_links_and_loops_of_folders(tmp_path: Path) -> None:
    root = build.scene(tmp_path / "scene", ["cam/a.png", "cam/b.png"])
    (root / "images" / "cam").rename(tmp_path / "elsewhere")
    (root / "images" / "cam").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "loop").symlink_to(tmp_path / "elsewhere")
    assert len(load_scene(root).cameras) == 2


@pytest.mark.parametrize("model", ["PINHOLE", "SIMPLE_RADIAL"])
def test_images_of_another_size_scale_the_camera(tmp_path: Path, model: str) -> None:
    root = build.scene(tmp_path, cameras=[build.camera(model)])
    whole = load_scene(root)
    for i in range(9):
        build.save(root / "images" / f"{i:02}.png", build.picture(i, (24, 18)))
    half = load_scene(root)
    assert "9 images are not of the size that cameras.bin states" in half.warnings[0]
    assert np.allclose(half.cameras[0].K[:2, :2], whole.cameras[0].K[:2, :2] / 2)
    assert abs(half.cameras[0].width - whole.cameras[0].width / 2) <= 1
    assert pixels(half, 0).shape == (half.cameras[0].height, half.cameras[0].width, 3)


@pytest.mark.parametrize(("size", "expected"), [((36, 48), "turned after the model was made"), ((48, 30), "is 48x30")])
def test_images_of_another_aspect_are_an_error(tmp_path: Path, size: tuple[int, int], expected: str) -> None:
    root = build.scene(tmp_path)
    build.save(root / "images" / "04.png", build.picture(4, size))
    with pytest.raises(SceneError, match=r"04\.png: the image is .*camera 1 in .*cameras\.bin is 48x36.*") as caught:
        load_scene(root)
    assert expected in str(caught.value)


def test_an_unreadable_header_is_an_error_at_once(tmp_path: Path) -> None:
    root = build.scene(tmp_path)
    (root / "images" / "04.png").write_bytes(b"")
    with pytest.raises(ImageError, match=r"04\.png: the file is empty or not an image"):
        load_scene(root)


def test_smaller_images_are_taken_by_name_from_their_folder(tmp_path: Path) -> None:
    names = ["a.jpg", "b.jpg", "sub/c.jpg"]
    root = build.scene(tmp_path, names)
    for i, name in ((0, "a.png"), (1, "b.JPG"), (2, "sub/c.jpg")):  # other extensions, and one file more
        build.save(root / "images_2" / name, build.picture(10 + i, (24, 18)))
    build.save(root / "images_2" / "0_first.png", build.picture(99, (24, 18)))
    scene = load_scene(root, factor=2)
    assert scene.warnings == ()
    assert [c.path.name for c in scene.cameras] == ["a.png", "b.JPG", "c.jpg"]
    assert np.array_equal(pixels(scene, 0), build.picture(10, (24, 18)))
    assert np.allclose(scene.cameras[0].K, [[21.5, 0, 12.75], [0, 22, 8.5], [0, 0, 1]])
    assert (scene.cameras[0].width, scene.cameras[0].height) == (24, 18)


def test_images_are_downscaled_by_area_where_there_is_no_folder(tmp_path: Path) -> None:
    scene = load_scene(build.scene(tmp_path), factor=4)
    blocks = build.picture(3).reshape(9, 4, 12, 4, 3).mean(axis=(1, 3))
    assert np.abs(pixels(scene, 3) - blocks).max() <= 0.5 + 1e-9
    assert np.allclose(scene.cameras[3].K, [[43 / 4, 0, 25.5 / 4], [0, 11, 17 / 4], [0, 0, 1]])


def test_a_factor_that_does_not_divide_keeps_the_camera_right(tmp_path: Path) -> None:
    camera = ColmapCamera(1, "SIMPLE_PINHOLE", 50, 37, (43.0, 24.0, 18.0))
    scene = load_scene(build.scene(tmp_path, cameras=[camera]), factor=4)
    assert (scene.cameras[0].width, scene.cameras[0].height) == (12, 9)
    assert np.allclose(scene.cameras[0].K[:2], [[43 * 12 / 50, 0, 24 * 12 / 50], [0, 43 * 9 / 37, 18 * 9 / 37]])


def test_only_smaller_images_exist(tmp_path: Path) -> None:
    root = build.scene(tmp_path)
    (root / "images").rename(root / "images_4")
    with pytest.raises(SceneError, match=r"images_4 exist: set the factor"):
        load_scene(root)
    for i in range(9):
        build.save(root / "images_4" / f"{i:02}.png", build.picture(i, (12, 9)))
    for options in ({}, {"images": "images_4"}):
        scene = load_scene(root, factor=4, **options)  # type: ignore[arg-type]
        assert {(c.width, c.height) for c in scene.cameras} == {(12, 9)}
        assert np.array_equal(pixels(scene, 5), build.picture(5, (12, 9)))


def test_cameras_of_many_models_sizes_and_ids_in_one_scene(tmp_path: Path) -> None:
    cameras, photos = [], []
    for i, model in enumerate(sorted(build.PARAMS)):
        cameras.append(ColmapCamera(2**31 + 7 * i, model, 48, 36, build.PARAMS[model]))
        photos.append(ColmapImage(i, *build.pose(i, 20), cameras[-1].camera_id, f"{model}.png"))
    portrait = ColmapCamera(5, "PINHOLE", 36, 48, (43.0, 43.0, 18.0, 24.0))
    photos.append(ColmapImage(2**32 - 2, *build.pose(19, 20), 5, "portrait.png"))
    scene = load_scene(build.scene(tmp_path, cameras=[*cameras, portrait], photos=photos))
    assert len(scene.cameras) == len(build.PARAMS) + 1
    for i, camera in enumerate(scene.cameras):
        assert pixels(scene, i).shape == (camera.height, camera.width, 3)
    portraits = [c for c in scene.cameras if c.name == "portrait.png"]
    assert (portraits[0].width, portraits[0].height) == (36, 48)


@pytest.mark.parametrize("suffix", [".png", None])
@pytest.mark.parametrize("invert", [False, True])
def test_masks_are_found_by_image_name(tmp_path: Path, suffix: str | None, invert: bool) -> None:
    root = build.scene(tmp_path, ["a.jpg", "sub/b.jpg", "c.jpg"])
    keep = np.zeros((36, 48), np.uint8)
    keep[:, :20] = 255
    for name in ("a.jpg", "sub/b.jpg"):
        target = f"{name}{suffix}" if suffix else name.replace(".jpg", ".png")
        build.save(root / "masks" / target, ~keep if invert else keep)
    scene = load_scene(root, invert_masks=invert)
    masks = {c.name: c.source.load(MapCache())[1] for c in scene.cameras}  # type: ignore[attr-defined]
    assert masks["c.jpg"] is None
    assert np.array_equal(masks["a.jpg"], keep)
    assert np.array_equal(masks["sub/b.jpg"], keep)
    assert scene.warnings == (f"{root / 'masks'}: 1 of 3 images have no mask (first: 'c.jpg')",)
    small = load_scene(root, factor=2, invert_masks=invert).cameras[0]
    assert np.array_equal(small.source.load(MapCache())[1], keep[::2, ::2])  # type: ignore[attr-defined]


def test_a_named_mask_folder_must_exist(tmp_path: Path) -> None:
    with pytest.raises(SceneError, match=r"matte: there is no such mask folder"):
        load_scene(build.scene(tmp_path), masks="matte")


@pytest.mark.parametrize(("options", "expected"), [({"factor": 0}, "factor 0"), ({"test_every": -1}, "test_every -1")])
def test_bad_options_are_named(tmp_path: Path, options: dict[str, int], expected: str) -> None:
    with pytest.raises(SceneError, match=expected):
        load_scene(build.scene(tmp_path), **options)  # type: ignore[arg-type]


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = build.scene(tmp_path)

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied", str(root / "sparse" / "0" / "cameras.bin"))

    monkeypatch.setattr(load, "read_colmap", refuse)
    with pytest.raises(SceneError, match=r"cameras\.bin: cannot be read \(Permission denied\); check disk and rights"):
        load_scene(root)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(SceneError, match="there is no such folder"):
        load_scene(tmp_path / "absent")


@pytest.mark.slow
def test_ten_thousand_images_stream_in_flat_memory(tmp_path: Path) -> None:
    """Each with a camera of its own, through a cache of 200: memory after the first hundred does not grow."""
    n = 10_000
    cameras = [ColmapCamera(i, "SIMPLE_RADIAL", 48, 36, (43.0 + i / n, 24.0, 18.0, -0.1)) for i in range(n)]
    photos = [ColmapImage(i, *build.pose(i, n), i, f"{i % 7}/{i:05}.jpg") for i in range(n)]
    scene = load_scene(build.scene(tmp_path, cameras=cameras, photos=photos))
    assert len(scene.cameras) == n
    order = np.random.default_rng(0).permutation(n).tolist()
    with ImageCache(scene.cameras, 200 * 48 * 36 * 4, threads=2) as cache:
        cache.announce(order)
        for i in order[:100]:
            cache.get(i)
        tracemalloc.start()
        for i in order[100:]:
            cache.get(i)
        held, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert max(held, peak) < 8 << 20
