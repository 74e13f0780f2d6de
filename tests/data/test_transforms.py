"""transforms.json of nerfstudio, instant-ngp, Blender and MatrixCity."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plyfile import PlyData, PlyElement

from tests.data import build
from tidegs.data.colmap import read_colmap
from tidegs.data.distortion_map import MapCache
from tidegs.data.load import load_scene
from tidegs.data.scene import Scene
from tidegs.data.world import rotation_of
from tidegs.errors import SceneError

INTRINSICS = {"w": 48, "h": 36, "fl_x": 43.0, "fl_y": 44.0, "cx": 25.5, "cy": 17.0}


def camera_to_world(i: int, n: int) -> np.ndarray:
    """The pose of build.pose in OpenGL axes."""
    qvec, tvec = build.pose(i, n)
    viewmat = np.eye(4)
    viewmat[:3, :3], viewmat[:3, 3] = rotation_of(qvec), tvec
    return np.linalg.inv(viewmat) @ np.diag([1.0, -1.0, -1.0, 1.0])


def frames(names: list[str], **more: Any) -> list[dict[str, Any]]:
    return [
        {"file_path": name, "transform_matrix": camera_to_world(i, len(names)).tolist(), **more}
        for i, name in enumerate(names)
    ]


def write(root: Path, document: dict[str, Any], name: str = "transforms.json") -> Path:
    root.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(json.dumps(document))
    return root


def pictures(root: Path, names: list[str]) -> None:
    for i, name in enumerate(names):
        build.save(root / name, build.picture(i))


def write_ply(path: Path, xyz: np.ndarray, rgb: np.ndarray | None, text: bool, kind: str = "u1") -> None:
    fields = [("x", "f8"), ("y", "f8"), ("z", "f8")]
    if rgb is not None:
        fields += [("red", kind), ("green", kind), ("blue", kind)]
    rows = np.zeros(len(xyz), fields)
    rows["x"], rows["y"], rows["z"] = xyz.T
    if rgb is not None:
        rows["red"], rows["green"], rows["blue"] = rgb.T
    PlyData([PlyElement.describe(rows, "vertex")], text=text).write(path)


def same_cameras(a: Scene, b: Scene) -> None:
    for x, y in zip(a.cameras, b.cameras, strict=True):
        assert np.allclose(x.viewmat, y.viewmat, atol=1e-9)
        assert np.allclose(x.K, y.K)
        assert (x.width, x.height) == (y.width, y.height)


NAMES = [f"images/{i}.png" for i in range(6)]


@pytest.mark.parametrize("text", [False, True])
def test_nerfstudio_gives_the_cameras_of_the_same_colmap_model(tmp_path: Path, text: bool) -> None:
    root = write(tmp_path / "n", {**INTRINSICS, "frames": frames(NAMES), "ply_file_path": "pc.ply"})
    pictures(root, NAMES)
    write_ply(root / "pc.ply", *build.points(), text)
    ours, reference = load_scene(root), load_scene(build.scene(tmp_path / "c", [n[7:] for n in NAMES]))
    same_cameras(ours, reference)
    assert ours.test == (0,)
    assert np.allclose(ours.points.gather().xyz, reference.points.gather().xyz, atol=1e-6)
    assert np.array_equal(ours.points.gather().rgb, reference.points.gather().rgb)


@pytest.mark.parametrize(
    ("keys", "model"),
    [
        ({"k1": -0.24, "k2": 0.08, "p1": 0.0015, "p2": -0.001, "camera_model": "OPENCV"}, "OPENCV"),
        ({"k1": -0.03, "k2": 0.006, "k3": -0.002, "k4": 0.0003, "camera_model": "OPENCV_FISHEYE"}, "OPENCV_FISHEYE"),
        ({"k1": -0.03, "k2": 0.006, "k3": -0.002, "k4": 0.0003, "is_fisheye": True}, "OPENCV_FISHEYE"),
        ({"k1": -0.2, "k2": 0.05, "p1": 0.001, "p2": -0.0008, "k3": -0.01}, "FULL_OPENCV"),
        ({"k1": 0, "k2": 0.0, "camera_model": "PINHOLE"}, "PINHOLE"),
    ],
)
def test_distortion_keys_become_the_colmap_model_of_the_same_meaning(
    tmp_path: Path, keys: dict[str, Any], model: str
) -> None:
    root = write(tmp_path, {**INTRINSICS, **keys, "frames": frames(NAMES)})
    pictures(root, NAMES)
    camera = load_scene(root).cameras[0].source.camera  # type: ignore[attr-defined]
    order = {"FULL_OPENCV": ("k1", "k2", "p1", "p2", "k3", "k4", "k5", "k6"), "OPENCV": ("k1", "k2", "p1", "p2")}
    names = order.get(model, ("k1", "k2", "k3", "k4") if model == "OPENCV_FISHEYE" else ())
    assert camera.model == model
    assert camera.params == (43.0, 44.0, 25.5, 17.0, *(keys.get(n, 0.0) for n in names))


def test_frames_may_have_cameras_of_their_own(tmp_path: Path) -> None:
    rows = frames(NAMES)
    rows[2].update(fl_x=50.0, k1=0.1)
    root = write(tmp_path, {**INTRINSICS, "frames": rows})
    pictures(root, NAMES)
    sources = [c.source.camera for c in load_scene(root).cameras]  # type: ignore[attr-defined]
    assert [s.camera_id for s in sources] == [1, 1, 2, 1, 1, 1]
    assert (sources[2].model, sources[2].params[0]) == ("OPENCV", 50.0)


@pytest.mark.parametrize("held", ["test", "val"])
def test_blender_splits_by_file_and_has_no_extensions(tmp_path: Path, held: str) -> None:
    train, test = [f"./train/r_{i}" for i in range(4)], [f"./{held}/r_{i}" for i in range(3)]
    angle = 2 * math.atan(24 / 43)
    write(tmp_path, {"camera_angle_x": angle, "frames": frames(train)}, "transforms_train.json")
    root = write(tmp_path, {"camera_angle_x": angle, "frames": frames(test)}, f"transforms_{held}.json")
    pictures(root, [f"{n}.png" for n in train + test])
    scene = load_scene(root)
    assert [scene.cameras[i].name for i in scene.test] == [n[2:] for n in test]
    assert [scene.cameras[i].name for i in scene.train] == [n[2:] for n in train]
    assert np.allclose(scene.cameras[0].K, [[43, 0, 24], [0, 43, 18], [0, 0, 1]])
    assert "no 3D points" in scene.warnings[0]


def test_lists_of_names_choose_and_split(tmp_path: Path) -> None:
    lists = {"train_filenames": NAMES[:3], "val_filenames": [f"./{n}" for n in NAMES[3:5]]}
    root = write(tmp_path, {**INTRINSICS, **lists, "frames": frames(NAMES)})
    pictures(root, NAMES)
    scene = load_scene(root)
    assert [c.name for c in scene.cameras] == NAMES[:5]
    assert scene.test == (3, 4)


def test_matrix_city_poses_with_scaled_axes_and_frame_numbers(tmp_path: Path) -> None:
    rows = []
    for i in range(4):
        pose = camera_to_world(i, 4)
        pose[:3, :3] *= 0.01
        rows.append({"frame_index": i, "rot_mat": pose.tolist()})
    root = write(tmp_path / "m", {"camera_angle_x": 2 * math.atan(24 / 43), "frames": rows})
    pictures(root, [f"{i:04d}.png" for i in range(4)])
    reference = write(tmp_path / "n", {**INTRINSICS, "fl_y": 43.0, "cx": 24.0, "cy": 18.0, "frames": frames(NAMES[:4])})
    pictures(reference, NAMES[:4])
    same_cameras(load_scene(root), load_scene(reference))


def test_matrix_city_names_lead_out_of_the_folder(tmp_path: Path) -> None:
    names = [f"../../train/block_1/{i:04d}.png" for i in range(4)]
    root = write(tmp_path / "pose" / "block_all", {**INTRINSICS, "frames": frames(names)}, "transforms_train.json")
    pictures(tmp_path / "train" / "block_1", [f"{i:04d}.png" for i in range(4)])
    assert len(load_scene(root).cameras) == 4


def test_masks_and_smaller_images_beside_the_named_folder(tmp_path: Path) -> None:
    root = write(tmp_path, {**INTRINSICS, "frames": frames(NAMES, mask_path="masks/all.png")})
    pictures(root, NAMES)
    for i, name in enumerate(NAMES):
        build.save(root / name.replace("images", "images_2"), build.picture(20 + i, (24, 18)))
    keep = np.where(np.arange(48) < 20, 255, 0).astype(np.uint8) * np.ones((36, 1), np.uint8)
    build.save(root / "masks" / "all.png", keep)
    rgb, mask = load_scene(root, factor=2).cameras[1].source.load(MapCache())  # type: ignore[attr-defined]
    assert np.array_equal(rgb, build.picture(21, (24, 18)))
    assert np.array_equal(mask, keep[::2, ::2])
    (root / "masks" / "all.png").unlink()
    with pytest.raises(SceneError, match=r"masks/all\.png: the mask of image 'images/0\.png' is missing"):
        load_scene(root)


@pytest.mark.parametrize(
    ("kind", "factor", "expected"), [("u1", 1, [10, 20, 30]), ("f4", 1 / 255, [10, 20, 30]), ("u2", 256, [10, 20, 30])]
)
def test_point_colours_of_any_type(tmp_path: Path, kind: str, factor: float, expected: list[int]) -> None:
    root = write(tmp_path, {**INTRINSICS, "frames": frames(NAMES), "ply_file_path": "pc.ply"})
    pictures(root, NAMES)
    write_ply(root / "pc.ply", np.zeros((2, 3)), np.array([[10, 20, 30]] * 2) * factor, False, kind)
    assert load_scene(root).points.gather().rgb.tolist() == [expected] * 2


def test_points_without_colour_are_grey_and_bad_clouds_are_named(tmp_path: Path) -> None:
    root = write(tmp_path, {**INTRINSICS, "frames": frames(NAMES), "ply_file_path": "pc.ply"})
    pictures(root, NAMES)
    write_ply(root / "pc.ply", np.zeros((2, 3)), None, True)
    assert load_scene(root).points.gather().rgb.tolist() == [[128] * 3] * 2
    whole = (root / "pc.ply").read_bytes()
    for content in (b"", b"hello", whole[: len(whole) - 5], b"ply\nformat ascii 1.0\nelement face 0\nend_header\n"):
        (root / "pc.ply").write_bytes(content)
        with pytest.raises(SceneError, match=r"pc\.ply: the point cloud cannot be read"):
            load_scene(root)
    (root / "pc.ply").unlink()
    assert "ply_file_path 'pc.ply' does not exist" in load_scene(root).warnings[0]


def test_a_colmap_model_wins_where_it_is_expected_and_not_elsewhere(tmp_path: Path) -> None:
    root = write(tmp_path, {**INTRINSICS, "frames": frames(NAMES)})
    pictures(root, NAMES)
    build.scene(root, [n[7:] for n in NAMES[:3]], folder="backup/old", write_pictures=False)
    assert len(load_scene(root).cameras) == 6
    build.scene(root, [n[7:] for n in NAMES[:4]], folder="colmap/sparse/0", write_pictures=False)
    assert len(load_scene(root).cameras) == 4
    assert read_colmap(root).folder == root / "colmap" / "sparse" / "0"


def _row(**change: Any) -> dict[str, Any]:
    row = {**frames(["a.png"])[0], **change}
    return {k: v for k, v in row.items() if v is not ...}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ([], r"the list 'frames' is missing or empty"),
        ({}, r"the list 'frames' is missing or empty"),
        ({"frames": []}, r"the list 'frames' is missing or empty"),
        ({**INTRINSICS, "frames": [_row(file_path=...)]}, r"frame 1 has no 'file_path'"),
        ({**INTRINSICS, "frames": [_row(transform_matrix=...)]}, r"frame 1 has no 'transform_matrix' of 4x4"),
        ({**INTRINSICS, "frames": [_row(transform_matrix=[[1, 2], [3, 4]])]}, r"frame 1 has no 'transform_matrix'"),
        ({**INTRINSICS, "frames": [_row(transform_matrix=[[1], [3, 4]])]}, r"frame 1 has no 'transform_matrix'"),
        ({**INTRINSICS, "frames": [_row(transform_matrix=np.zeros((4, 4)).tolist())]}, r"are no rotation"),
        ({**INTRINSICS, "frames": [_row(transform_matrix=np.diag([1, 1, -1, 1]).tolist())]}, r"are no rotation"),
        ({**INTRINSICS, "frames": [_row(), _row()]}, r"frame 2 names the image 'a\.png' a second time"),
        ({**INTRINSICS, "camera_model": "EQUIRECTANGULAR", "frames": [_row()]}, r"camera_model 'EQUIRECTANGULAR'"),
        ({**INTRINSICS, "fl_x": 0, "fl_y": 0, "frames": [_row()]}, r"frame 1 has no usable focal length"),
        ({**INTRINSICS, "k1": "x", "frames": [_row()]}, r"frame 1 has k1 = 'x', which is not a number"),
        ({"fl_x": 43, "frames": [_row()]}, r"neither w and h are given nor is the image 'a\.png' there"),
    ],
)
def test_bad_documents_are_named(tmp_path: Path, document: Any, expected: str) -> None:
    root = write(tmp_path, document)
    with pytest.raises(SceneError, match=rf"transforms\.json: .*{expected}") as caught:
        load_scene(root)
    assert "\n" not in str(caught.value)


def test_bad_json_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "transforms.json").write_text('{\n"frames": [,]\n}')
    with pytest.raises(SceneError, match=r"transforms\.json: line 2 is not JSON"):
        load_scene(tmp_path)
