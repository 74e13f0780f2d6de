"""Which points an image shows: read for one image at a time, in the scene frame."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from tests.data import build
from tidegs.data.colmap_write import write_model
from tidegs.data.load import load_scene
from tidegs.errors import SceneError

NOTHING = 2**64 - 1  # the id of a 2D point that no 3D point was made of


def write_observations(model: Path, seen: dict[str, list[int]]) -> None:
    """Writes images.bin anew with 2D points of these ids, by name of image."""
    data = (model / "images.bin").read_bytes()
    out, at = data[:8], 8
    for _ in range(struct.unpack("<Q", data[:8])[0]):
        end = data.index(b"\0", at + 64) + 1
        ids = seen[data[at + 64 : end - 1].decode()]
        out += data[at:end] + struct.pack("<Q", len(ids)) + b"".join(struct.pack("<ddQ", 1, 2, i) for i in ids)
        at = end + 8
    (model / "images.bin").write_bytes(out)


def test_points_of_an_image_in_the_scene_frame(tmp_path: Path) -> None:
    xyz, rgb = build.points(30)
    xyz[4] = np.nan
    root = build.scene(tmp_path, photos=build.images(["a.png", "b.png", "c.png"]), cloud=(xyz, rgb))
    write_observations(root / "sparse" / "0", {"a.png": [3, NOTHING, 20, 3, 5], "b.png": [], "c.png": [99, 30]})
    scene = load_scene(root)
    assert scene.observed is not None
    observed = scene.observed()
    world = scene.transform.to_scene(xyz).astype(np.float32)
    assert np.array_equal(observed.points("a.png"), world[[2, 19]])  # ids count from 1; the fifth point is NaN
    assert len(observed.points("b.png")) == 0
    assert np.array_equal(observed.points("c.png"), world[[29]])


def test_models_without_2d_points_and_text_are_named(tmp_path: Path) -> None:
    root = build.scene(tmp_path / "one", photos=build.images(["a.png", "b.png"]))
    with pytest.raises(SceneError, match=r"images.bin: no image has 2D points, .* leave out --depth-loss"):
        load_scene(root).observed()  # type: ignore[misc]
    model = root / "sparse" / "0"
    write_model(model, [build.camera()], build.images(["a.png", "b.png"]), build.points(), binary=False, text=True)
    for path in model.glob("*.bin"):
        path.unlink()
    with pytest.raises(SceneError, match=r"--depth-loss reads binary models .* model_converter --output_type BIN"):
        load_scene(root).observed()  # type: ignore[misc]


def test_a_file_that_became_shorter_is_named(tmp_path: Path) -> None:
    root = build.scene(tmp_path, photos=build.images(["a.png", "b.png"]))
    model = root / "sparse" / "0"
    write_observations(model, {"a.png": [1, 2], "b.png": [3]})
    observed = load_scene(root).observed()  # type: ignore[misc]
    (model / "images.bin").write_bytes((model / "images.bin").read_bytes()[:-1])
    assert len(observed.points("a.png")) == 2
    with pytest.raises(SceneError, match=r"images.bin: the file became shorter"):
        observed.points("b.png")
