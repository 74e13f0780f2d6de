"""Reading COLMAP models: what was written is read, what is damaged is named."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import PIL.Image  # noqa: F401  before pycolmap
import pycolmap
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data import build
from tidegs.data import colmap_binary
from tidegs.data.colmap import read_colmap
from tidegs.data.colmap_binary import read_cameras_bin, read_images_bin, read_points_bin
from tidegs.data.colmap_model import CAMERA_MODELS, ColmapCamera, ColmapImage
from tidegs.data.colmap_text import read_cameras_txt, read_images_txt, read_points_txt
from tidegs.data.colmap_write import write_model
from tidegs.errors import SceneError

ids = st.integers(0, 2**32 - 1)
finite = st.floats(allow_nan=False, allow_infinity=False)
names = st.binary(min_size=1, max_size=40).map(lambda b: b.replace(b"\0", b"x").replace(b"\n", b"y")).map(os.fsdecode)
# A text file cannot tell blanks at the ends of a name, nor a carriage return, from its own.
text_names = names.map(lambda n: "n" + n.replace("\r", "").strip(" \t\v\f") + ".jpg")


@st.composite
def camera_rows(draw: st.DrawFn) -> list[ColmapCamera]:
    out = []
    for camera_id in draw(st.lists(ids, max_size=4, unique=True)):
        name, fields = CAMERA_MODELS[draw(st.sampled_from(sorted(CAMERA_MODELS)))]
        params = tuple(draw(st.lists(finite, min_size=len(fields), max_size=len(fields))))
        size = draw(st.tuples(st.integers(1, 2**40), st.integers(1, 2**40)))
        out.append(ColmapCamera(camera_id, name, *size, params))
    return out


def image_rows(name: st.SearchStrategy[str]) -> st.SearchStrategy[list[ColmapImage]]:
    four, three = st.tuples(*(finite,) * 4), st.tuples(*(finite,) * 3)
    return st.lists(st.builds(ColmapImage, ids, four, three, ids, name), max_size=4)


@settings(max_examples=25, deadline=None)
@given(camera_rows(), image_rows(names), st.integers(0, 5))
def test_binary_round_trip(cameras: list[ColmapCamera], photos: list[ColmapImage], n: int) -> None:
    with TemporaryDirectory() as folder:
        xyz, rgb = build.points(n)
        write_model(Path(folder), cameras, photos, iter([(xyz[:1], rgb[:1]), (xyz[1:], rgb[1:])]))
        assert read_cameras_bin(Path(folder) / "cameras.bin") == cameras
        assert read_images_bin(Path(folder) / "images.bin") == photos
        chunks = list(read_points_bin(Path(folder) / "points3D.bin"))
        assert sorted(os.listdir(folder)) == ["cameras.bin", "images.bin", "points3D.bin"]
    assert np.array_equal(np.concatenate([np.empty((0, 3)), *(c[0] for c in chunks)]), xyz)
    assert np.array_equal(np.concatenate([np.empty((0, 3), np.uint8), *(c[1] for c in chunks)]), rgb)


@settings(max_examples=25, deadline=None)
@given(camera_rows(), image_rows(text_names), st.integers(0, 5), st.booleans(), st.booleans())
def test_text_round_trip(
    cameras: list[ColmapCamera], photos: list[ColmapImage], n: int, crlf: bool, no_point_lines: bool
) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        xyz, rgb = build.points(n)
        write_model(folder, cameras, photos, (xyz, rgb), binary=False, text=True)
        for path in folder.iterdir():
            data = path.read_bytes()
            if no_point_lines and path.name == "images.txt":
                data = data.replace(b"\n\n", b"\n")
            path.write_bytes(b"# remark\n\n" + (data.replace(b"\n", b"\r\n") if crlf else data))
        assert read_cameras_txt(folder / "cameras.txt") == cameras
        assert read_images_txt(folder / "images.txt") == photos
        chunks = list(read_points_txt(folder / "points3D.txt"))
    assert np.array_equal(np.concatenate([np.empty((0, 3)), *(c[0] for c in chunks)]), xyz)
    assert np.array_equal(np.concatenate([np.empty((0, 3), np.uint8), *(c[1] for c in chunks)]), rgb)


def test_pycolmap_reads_what_is_written(tmp_path: Path) -> None:
    cameras = [ColmapCamera(i + 1, m, 48, 36, build.PARAMS[m]) for i, m in enumerate(build.PARAMS)]
    photos = build.images(["a b/é.jpg", "c.png"], 3)
    xyz, rgb = build.points(30)
    write_model(tmp_path, cameras, photos, (xyz, rgb))
    model = pycolmap.Reconstruction()
    model.read_binary(str(tmp_path))
    assert {i: (c.model_name, c.width, tuple(c.params)) for i, c in model.cameras.items()} == {
        c.camera_id: (c.model, c.width, c.params) for c in cameras
    }
    for photo in photos:
        theirs = model.images[photo.image_id]
        assert (theirs.name, theirs.camera_id) == (photo.name, photo.camera_id)
        assert np.allclose(theirs.cam_from_world().translation, photo.tvec)
    assert np.array_equal([model.points3D[i + 1].xyz for i in range(30)], xyz)
    assert np.array_equal([model.points3D[i + 1].color for i in range(30)], rgb)


@pytest.mark.parametrize("buffer", [60, 64, 200, 1 << 20])
def test_points_with_tracks_through_any_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buffer: int) -> None:
    monkeypatch.setattr(colmap_binary, "_BUFFER", buffer)
    xyz, rgb = build.points(50)
    build.points_with_tracks(tmp_path / "points3D.bin", xyz, rgb, [i % 7 * (i % 3) for i in range(50)])
    chunks = list(read_points_bin(tmp_path / "points3D.bin"))
    assert np.array_equal(np.concatenate([c[0] for c in chunks]), xyz)
    assert np.array_equal(np.concatenate([c[1] for c in chunks]), rgb)


def test_two_dimensional_points_are_skipped(tmp_path: Path) -> None:
    photos = build.images(["a.jpg", "b.jpg"])
    rows = b""
    for photo, n in zip(photos, (3, 1000), strict=True):
        rows += struct.pack("<I7dI", photo.image_id, *photo.qvec, *photo.tvec, photo.camera_id)
        rows += photo.name.encode() + b"\0" + struct.pack("<Q", n) + b"\x01" * 24 * n
    (tmp_path / "images.bin").write_bytes(struct.pack("<Q", 2) + rows)
    assert read_images_bin(tmp_path / "images.bin") == photos
    lines = [f"{p.image_id} {' '.join(map(repr, (*p.qvec, *p.tvec)))} 1 {p.name}" for p in photos]
    (tmp_path / "images.txt").write_text(f"{lines[0]}\n1.5 2.5 -1 3 4 17\n# remark\n{lines[1]}\n")
    assert read_images_txt(tmp_path / "images.txt") == photos


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("cameras.bin", read_cameras_bin),
        ("images.bin", read_images_bin),
        ("points3D.bin", lambda p: list(read_points_bin(p))),
    ],
)
def test_every_truncation_is_an_error_that_names_the_file(tmp_path: Path, name: str, read: object) -> None:
    write_model(tmp_path, [build.camera("OPENCV")], build.images(["a.jpg", "b.jpg"]), build.points(3))
    path = tmp_path / name
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        with pytest.raises(SceneError, match=rf"{name}: .*truncated|{name}: .*does not end"):
            read(path)  # type: ignore[operator]


def test_absurd_counts_and_tracks_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "points3D.bin"
    path.write_bytes(struct.pack("<Q", 2**60))
    with pytest.raises(SceneError, match=r"says it has 1152921504606846976 points"):
        list(read_points_bin(path))
    build.points_with_tracks(path, *build.points(2), [0, 0])
    data = bytearray(path.read_bytes())
    data[8 + 43 : 8 + 51] = struct.pack("<Q", 2**63)
    path.write_bytes(data)
    with pytest.raises(SceneError, match="within point 1 of 2"):
        list(read_points_bin(path))


def _broken(root: Path, cameras: list[ColmapCamera], photos: list[ColmapImage], text: bool) -> str:
    build.scene(root, cameras=cameras, photos=photos, write_pictures=False, text=text)
    with pytest.raises(SceneError) as caught:
        read_colmap(root)
    message = str(caught.value)
    assert "\n" not in message
    assert str(root / "sparse" / "0") in message
    return message


def _camera(**change: object) -> ColmapCamera:
    values = {"camera_id": 1, "model": "PINHOLE", "width": 48, "height": 36, "params": (43.0, 43.0, 24.0, 18.0)}
    return ColmapCamera(**{**values, **change})  # type: ignore[arg-type]


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize(
    ("cameras", "expected"),
    [
        ([_camera(camera_id=2)], "'a.jpg' refers to camera id 1, which is not in cameras"),
        ([_camera(params=(0.0, 43.0, 24.0, 18.0))], "focal length fx = 0 pixels for an image of 48x36"),
        ([_camera(params=(43.0, -1.0, 24.0, 18.0))], "focal length fy = -1 pixels"),
        ([_camera(params=(float("nan"), 43.0, 24.0, 18.0))], "has fx = nan"),
        ([_camera(params=(43.0, 43.0, float("inf"), 18.0))], "has cx = inf"),
        ([_camera(width=0)], "has the size 0x36"),
        ([_camera(model="EQUIRECTANGULAR", params=(48.0, 36.0))], "cannot become a pinhole camera"),
        ([_camera(), _camera()], "camera id 1 occurs twice"),
    ],
)
def test_bad_cameras_are_named(tmp_path: Path, cameras: list[ColmapCamera], expected: str, text: bool) -> None:
    assert expected in _broken(tmp_path, cameras, build.images(["a.jpg"]), text)


@pytest.mark.parametrize(
    ("photos", "expected"),
    [
        ([], "the model has no registered image"),
        ([ColmapImage(1, (0.0, 0, 0, 0), (0.0, 0, 0), 1, "a.jpg")], "'a.jpg' has no valid pose (QW QX"),
        ([ColmapImage(1, (1.0, 0, 0, 0), (0.0, float("nan"), 0), 1, "a.jpg")], "'a.jpg' has no valid pose"),
        ([ColmapImage(i, (1.0, 0, 0, 0), (0.0, 0, 0), 1, "a.jpg") for i in (4, 9)], "occurs twice, as image ids 4 and"),
    ],
)
def test_bad_images_are_named(tmp_path: Path, photos: list[ColmapImage], expected: str) -> None:
    assert expected in _broken(tmp_path, [_camera()], photos, False)


@pytest.mark.parametrize(
    ("file", "line", "expected"),
    [
        ("cameras.txt", "1 PINHOLE 48", "line 2 has fewer than the four words"),
        ("cameras.txt", "1 PINHOLE 48 36 43 43 24", "line 2 has 3 parameters where PINHOLE has 4 (fx fy cx cy)"),
        ("cameras.txt", "1 PINHOLE 48 36 43 43 24 x", "line 2 has a word that is not a number"),
        ("cameras.txt", "1 LENS 48 36 43", "line 2 names the camera model 'LENS'"),
        ("images.txt", "1 1 0 0 0 0 0 0 1", "line 2 has fewer than ten words"),
        ("images.txt", "1 1 0 0 q 0 0 0 1 a.jpg", "line 2 is not an image"),
        ("points3D.txt", "1 0 0 0 1 2", "line 2 is not a point"),
        ("points3D.txt", "1 0 0 0 1 2 256", "line 2 is not a point"),
        ("points3D.txt", "1 0 y 0 1 2 3", "line 2 is not a point"),
    ],
)
def test_bad_lines_are_numbered(tmp_path: Path, file: str, line: str, expected: str) -> None:
    build.scene(tmp_path, text=True, write_pictures=False)
    (tmp_path / "sparse" / "0" / file).write_text(f"# remark\n{line}\n")
    with pytest.raises(SceneError) as caught:
        list(read_colmap(tmp_path).points())
    assert f"{file}: {expected}" in str(caught.value)


def test_unknown_camera_model_id(tmp_path: Path) -> None:
    build.scene(tmp_path, write_pictures=False)
    path = tmp_path / "sparse" / "0" / "cameras.bin"
    data = bytearray(path.read_bytes())
    data[12:16] = struct.pack("<i", 99)
    path.write_bytes(data)
    with pytest.raises(SceneError, match=r"cameras\.bin: camera 1 has the camera model id 99"):
        read_colmap(tmp_path)


@pytest.mark.parametrize("folder", ["sparse/0", "sparse", "colmap/sparse/0", ".", "export/model", "a/b/c"])
def test_the_model_is_found_where_it_lies(tmp_path: Path, folder: str) -> None:
    build.scene(tmp_path, folder=folder)
    model = read_colmap(tmp_path)
    assert (model.folder, len(model.images), model.warnings) == (tmp_path / folder, 9, ())


def test_binary_wins_over_text(tmp_path: Path) -> None:
    build.scene(tmp_path, ["a.png", "b.png"], write_pictures=False)
    build.scene(tmp_path, ["c.png"], write_pictures=False, text=True, cloud=build.points(5))
    model = read_colmap(tmp_path)
    assert [i.name for i in model.images] == ["a.png", "b.png"]
    assert sum(len(xyz) for xyz, _ in model.points()) == 20


def test_the_largest_sub_model_is_taken_and_named(tmp_path: Path) -> None:
    for number, count in ((0, 2), (1, 5), (2, 3)):
        names = [f"{number}_{i}.png" for i in range(count)]
        build.scene(tmp_path, names, folder=f"sparse/{number}", text=number == 2, write_pictures=False)
    model = read_colmap(tmp_path)
    assert model.folder == tmp_path / "sparse" / "1"
    assert model.warnings == (
        f"{tmp_path}: 3 COLMAP models were found; using sparse/1 (5 images), not sparse/0 (2), sparse/2 (3)",
    )


def test_a_damaged_sub_model_does_not_keep_the_others_from_loading(tmp_path: Path) -> None:
    for number, count in ((0, 5), (1, 2)):
        build.scene(tmp_path, [f"{i}.png" for i in range(count)], folder=f"sparse/{number}", write_pictures=False)
    (tmp_path / "sparse" / "0" / "images.bin").write_bytes(b"\5")
    assert read_colmap(tmp_path).folder == tmp_path / "sparse" / "1"


def test_an_undistorted_model_wins_over_the_distorted_one_beside_it(tmp_path: Path) -> None:
    build.scene(tmp_path, [f"{i}.png" for i in range(5)], folder="distorted/sparse/0")
    build.scene(tmp_path, ["0.png"])
    assert read_colmap(tmp_path).folder == tmp_path / "sparse" / "0"


@pytest.mark.parametrize(
    ("lost", "expected"),
    [
        ("images.bin", "incomplete: cameras.bin, points3D.bin but no images.bin"),
        ("cameras.bin", "incomplete: images.bin, points3D.bin but no cameras.bin"),
    ],
)
def test_an_incomplete_model_is_named(tmp_path: Path, lost: str, expected: str) -> None:
    build.scene(tmp_path)
    (tmp_path / "sparse" / "0" / lost).unlink()
    with pytest.raises(SceneError, match=expected):
        read_colmap(tmp_path)


def test_nothing_found_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(SceneError, match=r"no scene was found.*sparse/0.*transforms\.json"):
        read_colmap(tmp_path)


def test_rigs_and_frames_of_any_content_do_not_matter(tmp_path: Path) -> None:
    build.scene(tmp_path, write_pictures=False)
    plain = read_colmap(tmp_path)
    (tmp_path / "sparse" / "0" / "rigs.bin").write_bytes(b"\1\2")
    (tmp_path / "sparse" / "0" / "frames.bin").write_bytes(b"")
    assert read_colmap(tmp_path) == plain


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    write_model(tmp_path, [build.camera()], build.images(["a.jpg"]), build.points(3))
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def chunks() -> object:
        yield build.points(5)
        raise RuntimeError("the source failed")

    with pytest.raises(RuntimeError, match="the source failed"):
        write_model(tmp_path, [build.camera()], build.images(["a.jpg"]), chunks())  # type: ignore[arg-type]
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


@pytest.mark.parametrize("name", ["banana", "caliterra", "plush", "room", "southbuilding"])
def test_captured_scenes_agree_with_pycolmap(shared: Path, name: str) -> None:
    model = read_colmap(shared / "scenes" / name)
    theirs = pycolmap.Reconstruction(str(model.folder))
    assert [i.name for i in model.images] == sorted(i.name for i in theirs.images.values())
    for image in model.images:
        pose = theirs.images[image.image_id].cam_from_world()
        assert np.array_equal(pose.translation, image.tvec)
        assert np.array_equal(pose.rotation.quat, (*image.qvec[1:], image.qvec[0]))  # xyzw
    for camera_id, camera in model.cameras.items():
        c = theirs.cameras[camera_id]
        assert (c.model_name, c.width, c.height, tuple(c.params)) == (
            camera.model, camera.width, camera.height, camera.params,
        )  # fmt: skip
    ours = [(*p, *c) for xyz, rgb in model.points() for p, c in zip(xyz.tolist(), rgb.tolist(), strict=True)]
    assert sorted(ours) == sorted((*p.xyz.tolist(), *p.color.tolist()) for p in theirs.points3D.values())
