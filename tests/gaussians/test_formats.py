"""Compact formats: what is written is read back by us and by independent readers (GaussForge, gsply) within the steps
of the format; files of others; one sentence for each way in which a file is wrong."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import struct
import zipfile
from pathlib import Path

import gaussforge
import gsply
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from plyfile import PlyData

from tidegs.errors import FormatError
from tidegs.gaussians.compressed_ply import write_compressed_ply
from tidegs.gaussians.layout import sh_rest_count
from tidegs.gaussians.open import Finite, open_gaussians
from tidegs.gaussians.packing import field, regroup, sigmoid
from tidegs.gaussians.palette import codebook, nearest_code, row_palette
from tidegs.gaussians.ply import BASE_PROPERTIES, rest_properties, write_ply
from tidegs.gaussians.sog_write import write_sog
from tidegs.gaussians.splat import RECORD, write_splat
from tidegs.gaussians.spz import write_spz

WRITERS = {
    "compressed-ply": ("a.compressed.ply", write_compressed_ply),
    "splat": ("a.splat", write_splat),
    "spz": ("a.spz", write_spz),
    "sog": ("a.sog", write_sog),
}
# Largest errors: means and log scales (absolute), degrees of rotation, opacity, sh0, shN. Scenes are 10 units wide.
STEPS = {
    "compressed-ply": (6e-3, 6e-3, 0.25, 2e-3, 0.02, 0.0157),
    "splat": (0, 1e-6, 1.0, 2e-3, 0.007, None),
    "spz": (1.3e-4, 0.032, 0.3, 2e-3, 0.014, 0.07),
    "sog": (2e-4, 0.15, 1.0, 2e-3, 0.04, 0.03),
}


def gaussians(n: int, sh_degree: int, seed: int = 0) -> np.ndarray:
    """Like a trained scene: colours mostly within 0 and 1, opacities of all sizes, quats not normalised."""
    r = np.random.default_rng(seed)
    parts = [
        r.uniform(-5, 5, (n, 3)),
        r.normal(size=(n, 4)),
        r.normal(-3, 1, (n, 3)),
        r.normal(0, 3, (n, 1)),
        r.uniform(-1.7, 1.7, (n, 3)),
        r.normal(0, 0.15, (n, 3 * sh_rest_count(sh_degree))),
    ]
    return np.concatenate(parts, 1).astype(np.float32)


def written(kind: str, folder: Path, rows: np.ndarray, sh_degree: int, parts: int = 3) -> tuple[Path, np.ndarray]:
    """The file, and the rows in its order."""
    name, write = WRITERS[kind]
    assert write(folder / name, iter(np.array_split(rows, parts)), sh_degree) == len(rows)
    ordered = rows if kind == "splat" else np.concatenate(list(regroup(folder, [rows], sh_degree, 1 << 16)))
    return folder / name, ordered


def assert_close(kind: str, rows: np.ndarray, found: np.ndarray) -> None:
    means, scales, degrees, opacity, sh0, rest = STEPS[kind]
    assert found.shape[1] == (14 if rest is None else rows.shape[1])
    assert np.abs(field(rows, "means") - field(found, "means")).max() <= means
    assert np.abs(field(rows, "scales") - field(found, "scales")).max() <= scales
    a, b = (q / np.linalg.norm(q, axis=1, keepdims=True) for q in (field(rows, "quats"), field(found, "quats")))
    assert np.degrees(2 * np.arccos(np.clip(np.abs((a * b).sum(1)), 0, 1))).max() <= degrees
    assert np.abs(sigmoid(field(rows, "opacities")) - sigmoid(field(found, "opacities"))).max() <= opacity
    assert np.abs(field(rows, "sh0") - field(found, "sh0")).max() <= sh0
    if rest is not None and rows.shape[1] > 14:
        assert np.abs(field(rows, "shN") - field(found, "shN")).max() <= rest


def read_all(path: Path, rows: int = 1 << 16) -> np.ndarray:
    return np.concatenate(list(open_gaussians(path).chunks(rows)))


def by_gaussforge(path: Path, kind: str) -> np.ndarray:
    result = gaussforge.GaussForge().convert(path.read_bytes(), kind.replace("-ply", ".ply"), "ply")
    assert "error" not in result, result
    vertex = PlyData.read(io.BytesIO(result["data"]))["vertex"].data
    degree = {14: 0, 23: 1, 38: 2, 59: 3}[sum(1 for n in vertex.dtype.names if n not in ("nx", "ny", "nz"))]
    return np.stack([vertex[name] for name in (*BASE_PROPERTIES, *rest_properties(degree))], 1).astype(np.float32)


def by_gsply(path: Path, kind: str) -> np.ndarray:
    data = (gsply.read_spz if kind == "spz" else gsply.plyread)(str(path))
    parts = [data.means, data.quats, data.scales, np.reshape(data.opacities, (-1, 1)), data.sh0]
    if data.shN is not None and data.shN.size:
        parts.append(data.shN.reshape(len(data.means), -1))
    return np.concatenate(parts, 1)


@pytest.mark.parametrize("sh_degree", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", WRITERS)
def test_independent_readers_find_what_was_written(kind, sh_degree, tmp_path):
    path, rows = written(kind, tmp_path, gaussians(1000, sh_degree), sh_degree)
    file = open_gaussians(path)
    assert (file.format, file.count) == (kind, 1000)
    assert file.sh_degree == (0 if kind == "splat" else sh_degree)
    assert_close(kind, rows, read_all(path, 300))
    assert_close(kind, rows, by_gaussforge(path, kind))
    if kind in ("spz", "compressed-ply"):
        assert_close(kind, rows, by_gsply(path, kind))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("kind", ["compressed-ply", "spz", "sog"])
def test_antialiasing_is_kept(kind, tmp_path):
    name, write = WRITERS[kind]
    for antialiased in (True, False):
        write(tmp_path / name, [gaussians(5, 0)], 0, antialiased)
        assert open_gaussians(tmp_path / name).antialiased is antialiased


@settings(max_examples=20, deadline=None)
@given(
    kind=st.sampled_from(sorted(WRITERS)), n=st.integers(1, 600), sh_degree=st.integers(0, 3), parts=st.integers(1, 4)
)
def test_bytes_do_not_depend_on_the_chunks(tmp_path_factory, kind, n, sh_degree, parts):
    rows = gaussians(n, sh_degree, seed=n)
    one, _ = written(kind, tmp_path_factory.mktemp("a"), rows, sh_degree, 1)
    other, ordered = written(kind, tmp_path_factory.mktemp("b"), rows, sh_degree, parts)
    assert one.read_bytes() == other.read_bytes()
    assert_close(kind, ordered, read_all(other, 97))


@pytest.mark.parametrize("kind", WRITERS)
def test_extreme_rows_survive(kind, tmp_path):
    """Infinite opacities, scales of zero, quaternions without a direction, all rows in one place."""
    rows = gaussians(300, 0)
    rows[:, :3] = (1.5, -2, 0.25)
    rows[:100, 10], rows[100:200, 10] = np.inf, -np.inf
    rows[5, 7:10] = -np.inf
    rows[7, 3:7] = 0
    path, ordered = written(kind, tmp_path, rows, 0)
    file = Finite(open_gaussians(path))
    found = np.concatenate(list(file.chunks()))
    assert np.isfinite(found).all()
    np.testing.assert_allclose(field(found, "means"), field(ordered, "means"), atol=2e-4)
    np.testing.assert_allclose(sigmoid(field(found, "opacities")), sigmoid(field(ordered, "opacities")), atol=2e-3)
    identity = found[np.flatnonzero(~ordered[:, 3:7].any(1))[0], 3:7]
    assert abs(identity[0]) > 0.9999


def test_infinite_opacities_of_a_ply_are_made_finite_with_a_word(tmp_path):
    rows = gaussians(10, 0)
    rows[:3, 10], rows[3, 10], rows[4, 8] = np.inf, -np.inf, -np.inf
    write_ply(tmp_path / "a.ply", [rows], 0)
    file = Finite(open_gaussians(tmp_path / "a.ply"))
    found = np.concatenate(list(file.chunks()))
    assert file.sentence() == f"{tmp_path / 'a.ply'}: 4 infinite opacities and 1 scales of zero were made finite"
    assert found[:4, 10] == pytest.approx([13.8155] * 3 + [-13.8155], abs=1e-3)
    assert np.array_equal(found[5:], rows[5:])


def test_spz_takes_fewer_fraction_bits_for_a_large_scene(tmp_path):
    rows = gaussians(50, 0)
    rows[:, :3] *= 4000
    path, ordered = written("spz", tmp_path, rows, 0)
    assert np.abs(field(read_all(path), "means") - field(ordered, "means")).max() <= 2.0**-9
    assert np.abs(by_gsply(path, "spz")[:, :3] - ordered[:, :3]).max() <= 2.0**-9
    rows[0, 0] = 9e6
    with pytest.raises(FormatError, match="coordinates reach 9e\\+06, which SPZ's 24 bits do not hold"):
        written("spz", tmp_path, rows, 0)


def test_more_rows_than_a_palette_and_a_chunk(tmp_path):
    """Harmonics of 70,000 rows share a palette: few clusters are found well."""
    r = np.random.default_rng(3)
    rows = gaussians(70_000, 1)
    clusters = r.normal(0, 0.3, (50, 9)).astype(np.float32)
    rows[:, 14:] = clusters[r.integers(0, 50, len(rows))] + r.normal(0, 1e-3, (len(rows), 9))
    path, ordered = written("sog", tmp_path, rows, 1)
    assert np.abs(field(read_all(path), "shN") - field(ordered, "shN")).max() < 0.03


def test_codebook_is_the_best_of_few_and_near_for_many():
    few = np.array([3.0, -1.0, 3.0, 0.5], np.float32)
    codes = codebook(few)
    assert codes.shape == (256,)
    assert np.array_equal(codes[nearest_code(codes, few)], few)
    many = np.append(np.random.default_rng(0).normal(size=20_000), 40.0)
    codes = codebook(many)
    error = np.abs(codes[nearest_code(codes, many)] - many)
    assert error[-1] < 0.5
    assert np.sqrt((error**2).mean()) < 8 / 256
    assert (np.diff(codes) >= 0).all()


def test_row_palette_is_exact_for_few_rows():
    rows = np.random.default_rng(0).integers(0, 3, (500, 2)).astype(np.float32)
    palette, labels = row_palette(rows)
    assert len(palette) == 9
    assert np.array_equal(palette[labels], rows)


# --- files of others ---

SHARED_FILES = {
    "guitar.compressed.ply": ("compressed-ply", 90_854, 0),
    "guitar.spz": ("spz", 90_854, 0),
    "guitar.sog": ("sog", 90_854, 0),
    "guitar_std_sh0_70k.ply": ("ply", 70_000, 0),
    "test_sh3_std.ply": ("ply", 64, 3),
    "model.splat": ("splat", 124_495, 0),
}


@pytest.mark.parametrize("name", SHARED_FILES)
def test_every_shared_file_loads(name, shared):
    kind, count, sh_degree = SHARED_FILES[name]
    file = open_gaussians(shared / "splats" / name)
    assert (file.format, file.count, file.sh_degree) == (kind, count, sh_degree)
    found = np.concatenate(list(Finite(file).chunks()))
    assert found.shape == (count, 14 + 3 * sh_rest_count(sh_degree))
    assert np.isfinite(found).all()
    if kind != "ply":
        other = by_gaussforge(shared / "splats" / name, kind)
        for part in ("means", "scales", "sh0"):
            np.testing.assert_allclose(field(found, part), field(other, part), atol=3e-6, rtol=1e-5)
        assert np.abs((field(found, "quats") * field(other, "quats")).sum(1)).min() > 0.999999


def test_one_scene_in_three_formats_is_one_scene(shared):
    """The guitar: same box and mean colour in each, so no format turns or scales it."""
    boxes = []
    for name in ("guitar.compressed.ply", "guitar.spz", "guitar.sog"):
        rows = read_all(shared / "splats" / name)
        boxes.append([*rows[:, :3].min(0), *rows[:, :3].max(0), *rows[:, :3].mean(0), *rows[:, 11:14].mean(0)])
    np.testing.assert_allclose(boxes[1], boxes[0], atol=0.02)
    np.testing.assert_allclose(boxes[2], boxes[0], atol=0.02)


def test_spz_versions(tmp_path):
    """Version 4 by gsply; versions 2 and 1 made here as Niantic's README describes them."""
    rows = gaussians(40, 2)
    _, ordered = written("spz", tmp_path, rows, 2)
    data = gsply.read_spz(str(tmp_path / "a.spz"))
    gsply.write_spz(str(tmp_path / "four.spz"), data, version=4)
    assert open_gaussians(tmp_path / "four.spz").version == 4
    assert_close("spz", ordered, read_all(tmp_path / "four.spz"))

    quats = ordered[:, 3:7] / np.linalg.norm(ordered[:, 3:7], axis=1, keepdims=True)
    quats *= np.where(quats[:, :1] < 0, -1, 1)
    fixed = np.rint(ordered[:, :3] * 4096).astype("<i4").view(np.uint8).reshape(-1, 3, 4)[..., :3]
    rest = [
        np.rint(sigmoid(ordered[:, 10]) * 255).astype(np.uint8),
        np.rint(ordered[:, 11:14] * 38.25 + 127.5).astype(np.uint8),
        np.rint((ordered[:, 7:10] + 10) * 16).astype(np.uint8),
        np.rint(quats[:, 1:] * 127.5 + 127.5).astype(np.uint8),
    ]
    for version, positions in ((2, fixed), (1, ordered[:, :3].astype("<f2"))):
        head = struct.pack("<4sIIBBBB", b"NGSP", version, 40, 0, 12, 1, 0)
        body = b"".join(np.ascontiguousarray(a).tobytes() for a in (positions, *rest))
        (tmp_path / "old.spz").write_bytes(gzip.compress(head + body))
        file = open_gaussians(tmp_path / "old.spz")
        found = read_all(tmp_path / "old.spz")
        assert (file.version, file.antialiased) == (version, True)
        assert np.abs(found[:, :3] - ordered[:, :3]).max() < 4e-3
        assert np.abs((found[:, 3:7] * quats).sum(1)).min() > 0.999


def test_sog_from_its_folder(tmp_path):
    path, _ = written("sog", tmp_path, gaussians(100, 1), 1)
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "set")
    for place in (tmp_path / "set", tmp_path / "set" / "meta.json"):
        assert np.array_equal(read_all(place), read_all(path))
    (tmp_path / "set" / "quats.webp").unlink()
    with pytest.raises(FormatError, match=r"'quats.webp' cannot be read: No such file"):
        read_all(tmp_path / "set")


def test_compressed_ply_without_colour_ranges(tmp_path):
    """Files of the format's first version: colours are 0 to 1."""
    names = [
        f"{end}_{k}" for part in ("xyz", ("scale_x", "scale_y", "scale_z")) for end in ("min", "max") for k in part
    ]
    header = ["ply", "format binary_little_endian 1.0", "element chunk 1", *(f"property float {n}" for n in names)]
    packed = ("packed_position", "packed_rotation", "packed_scale", "packed_color")
    header += ["element vertex 1", *(f"property uint {n}" for n in packed), "end_header", ""]
    ranges = np.array([0, 0, 0, 2, 4, 8, -3, -3, -3, -1, -1, -1], "<f4")
    half = 511 << 20 | 511 << 10 | 511  # three components of nearly zero; w is the greatest
    vertex = np.array([2047 << 21 | 1023 << 11 | 2047, half, 0, 255 << 24 | 51 << 8 | 102], "<u4")
    (tmp_path / "a.ply").write_bytes("\n".join(header).encode() + ranges.tobytes() + vertex.tobytes())
    (row,) = read_all(tmp_path / "a.ply")
    assert row[:3].tolist() == [2, 4, 8]
    assert row[7:10].tolist() == [-3, -3, -3]
    assert row[11:14] * 0.28209479 + 0.5 == pytest.approx([1, 0, 0.2], abs=1e-6)
    assert sigmoid(row[10]) == pytest.approx(0.4)
    assert row[3] > 0.99999


# --- files that are wrong ---


def corrupt(kind: str, folder: Path, how: str) -> Path:
    path, _ = written(kind, folder, gaussians(600, 1), 1)
    data = bytearray(path.read_bytes())
    if how == "cut":
        path.write_bytes(data[: len(data) * 2 // 3 + 1])
    elif how == "damaged":
        data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
        path.write_bytes(data)
    return path


@pytest.mark.parametrize("kind", ["compressed-ply", "splat", "spz", "sog"])
def test_a_cut_file_is_one_sentence(kind, tmp_path):
    path = corrupt(kind, tmp_path, "cut")
    with pytest.raises(FormatError) as error:
        read_all(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["spz", "sog"])
def test_a_damaged_file_is_one_sentence(kind, tmp_path):
    path = corrupt(kind, tmp_path, "damaged")
    with pytest.raises(FormatError) as error:
        read_all(path)
    assert str(error.value).startswith(f"{path}: ")


def rewrite_meta(path: Path, change) -> None:
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    meta = json.loads(files["meta.json"])
    change(meta)
    files["meta.json"] = json.dumps(meta).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.pop("version"), "of SOG version 1"),
        (lambda m: m.update(version=7), "of SOG version 7"),
        (lambda m: m.pop("means"), "is not as SOG version 2 says: KeyError('means')"),
        (lambda m: m["sh0"]["codebook"].pop(), "the codebook of sh0 has 255 values"),
        (lambda m: m.update(count=10_000), "an image of means has 784 pixels for 10000 Gaussians"),
        (lambda m: m["scales"].update(files=["none.webp"]), "'none.webp' is not in it"),
        (lambda m: m["scales"].update(files=["meta.json"]), "its image 'meta.json' cannot be read"),
        (lambda m: m["shN"].update(bands=2), "the image of shN's centroids is 192 wide, not 512"),
        (lambda m: m["means"]["mins"].__setitem__(0, float("nan")), "a number in it is out of range"),
    ],
)
def test_a_wrong_sog_is_named(tmp_path, change, message):
    path, _ = written("sog", tmp_path, gaussians(700, 1), 1)
    rewrite_meta(path, change)
    with pytest.raises(FormatError) as error:
        read_all(path)
    assert message in str(error.value)


def spz4(*sizes: int, count: int = 2, streams: bytes = b"") -> bytes:
    head = struct.pack("<4sIIBBBBI12x", b"NGSP", 4, count, 0, 12, 0, len(sizes), 32)
    return head + b"".join(struct.pack("<QQ", 30, n) for n in sizes) + streams


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.bin", b"what is this", "this is no PLY, .splat, SPZ or SOG file"),
        ("a.splat", bytes(33), "33 bytes are no whole number of records of 32"),
        ("a.splat", np.array([((np.nan, 0, 0), (1, 1, 1), 0, 0)], RECORD).tobytes(), "row 0 has a position or scale"),
        ("a.spz", gzip.compress(b"hello, this is gzip", mtime=0), "does not begin with NGSP"),
        ("a.spz", b"NGSP", "does not begin with NGSP"),
        (
            "a.spz",
            gzip.compress(struct.pack("<4sIIBBBB", b"NGSP", 9, 1, 0, 12, 0, 0), mtime=0),
            "SPZ version 9 is not read here",
        ),
        (
            "a.spz",
            gzip.compress(struct.pack("<4sIIBBBB", b"NGSP", 3, 1, 9, 12, 0, 0), mtime=0),
            "SH degree 9 and 12 fraction",
        ),
        ("a.spz", spz4(18, 2, 6, 6), "its streams have [18, 2, 6, 6] bytes where [18, 2, 6, 6, 8] were due"),
        ("a.spz", spz4(18, 2, 6, 6, 8, streams=bytes(150)), "cannot be unpacked"),
        ("a.spz", spz4(18, 2, 6, 6, 8, streams=zstandard.compress(bytes(5))), "the file ends 13 bytes before"),
        ("a.sog", b"PK\x03\x04 no more", "this is no zip, or a damaged one"),
    ],
)
def test_wrong_files_are_one_sentence(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(FormatError) as error:
        read_all(tmp_path / name)
    assert str(error.value).startswith(f"{tmp_path / name}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", WRITERS)
def test_writing_leaves_the_old_file_or_the_new_one(kind, tmp_path):
    path, _ = written(kind, tmp_path, gaussians(3, 0), 0)
    old = path.read_bytes()

    def interrupted():
        yield gaussians(5, 0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        WRITERS[kind][1](path, interrupted(), 0)
    with pytest.raises(FormatError, match=r"a chunk of shape \(3, 59\) came where \[n, 14\]"):
        WRITERS[kind][1](path, [gaussians(3, 3)], 0)
    assert path.read_bytes() == old
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    shutil.rmtree(tmp_path)
    with pytest.raises(FormatError, match="cannot be written"):
        WRITERS[kind][1](path, [gaussians(3, 0)], 0)


def test_missing_file_is_a_format_error(tmp_path):
    with pytest.raises(FormatError, match="cannot be read: No such file"):
        open_gaussians(tmp_path / "none.ply")
