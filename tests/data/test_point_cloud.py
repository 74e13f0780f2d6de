"""Point clouds of PLY files: every encoding gives the same points, and a large file is never in memory as a whole."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from plyfile import PlyData, PlyElement

from tidegs.data import point_cloud
from tidegs.data.point_cloud import count_ply_points, is_point_cloud, read_ply_points, stream_ply_points
from tidegs.data.scene import WorldTransform
from tidegs.errors import SceneError
from tidegs.gaussians.ply import write_ply


def write(path: Path, n: int, text: bool = False, byte_order: str = "<") -> np.ndarray:
    rng = np.random.default_rng(0)
    rows = np.zeros(
        n, [("x", "f4"), ("nx", "f8"), ("z", "f8"), ("y", "f4"), ("blue", "u1"), ("red", "u1"), ("green", "u1")]
    )
    for name in "xyz":
        rows[name] = rng.normal(size=n).astype(np.float32)
    for name in ("red", "green", "blue"):
        rows[name] = rng.integers(0, 256, n)
    PlyData([PlyElement.describe(rows, "vertex")], text=text, byte_order=byte_order).write(path)
    return rows


@pytest.mark.parametrize(("text", "byte_order"), [(True, "="), (False, "<"), (False, ">")])
def test_every_encoding_gives_the_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bool, byte_order: str
) -> None:
    monkeypatch.setattr(point_cloud, "_CHUNK", 100)
    rows = write(tmp_path / "a.ply", 250, text, byte_order)
    chunks = list(read_ply_points(tmp_path / "a.ply"))
    assert [len(xyz) for xyz, _ in chunks] == [100, 100, 50]
    xyz, rgb = (np.concatenate(parts) for parts in zip(*chunks, strict=True))
    np.testing.assert_allclose(xyz, np.stack([rows[k] for k in "xyz"], axis=1), rtol=1e-6 if text else 0)
    assert np.array_equal(rgb, np.stack([rows[k] for k in ("red", "green", "blue")], axis=1))
    assert count_ply_points(tmp_path / "a.ply") == 250


@pytest.mark.parametrize("text", [False, True])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bool) -> None:
    monkeypatch.setattr(point_cloud, "_CHUNK", 1000)
    peaks = []
    for n in (4_000, 40_000):
        write(tmp_path / "a.ply", n, text)
        points = stream_ply_points(tmp_path / "a.ply", WorldTransform(np.zeros(3), 1.0))
        tracemalloc.start()
        assert sum(part.count for part in points.chunks()) == n
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


def test_a_file_of_gaussians_is_no_point_cloud(tmp_path: Path) -> None:
    write(tmp_path / "points.ply", 3)
    write_ply(tmp_path / "gaussians.ply", [np.zeros((3, 14), np.float32)], 0)
    (tmp_path / "a.splat").write_bytes(bytes(32))
    found = [is_point_cloud(tmp_path / name) for name in ("points.ply", "gaussians.ply", "a.splat", "none")]
    assert found == [True, False, False, False]


def test_what_is_wrong_is_one_sentence(tmp_path: Path) -> None:
    write(tmp_path / "a.ply", 10)
    whole = (tmp_path / "a.ply").read_bytes()
    (tmp_path / "a.ply").write_bytes(whole[:-1])
    with pytest.raises(
        SceneError, match=r"a\.ply: the point cloud cannot be read \(\d+ bytes, but its 10 vertices need"
    ):
        count_ply_points(tmp_path / "a.ply")
    (tmp_path / "a.ply").write_bytes(whole.replace(b"float x", b"float w"))
    with pytest.raises(SceneError, match="no x, y and z"):
        list(read_ply_points(tmp_path / "a.ply"))
