"""PLY files: round trips, other readers and writers, files of others, and one sentence for each malformation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gsplat.exporter import export_splats
from hypothesis import given, settings
from hypothesis import strategies as st
from plyfile import PlyData, PlyElement

from tidegs.errors import FormatError
from tidegs.gaussians.layout import sh_rest_count
from tidegs.gaussians.ply import BASE_PROPERTIES, CHUNK, open_ply, property_names, rest_properties, write_ply


def gaussians(n: int, sh_degree: int = 3, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 14 + 3 * sh_rest_count(sh_degree))).astype(np.float32)


def write_text(path: Path, header: list[str], body: bytes = b"") -> Path:
    path.write_bytes(("\n".join(["ply", *header, "end_header"]) + "\n").encode() + body)
    return path


def minimal_header(
    n: int, form: str = "binary_little_endian", drop: str = "", extra: tuple[str, ...] = ()
) -> list[str]:
    names = [name for name in BASE_PROPERTIES if name != drop]
    return [f"format {form} 1.0", f"element vertex {n}", *(f"property float {name}" for name in names), *extra]


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 40), max_size=4),
    sh_degree=st.integers(0, 3),
    antialiased=st.booleans(),
    rows=st.integers(1, 50),
)
def test_round_trip_in_any_chunks(tmp_path_factory, sizes, sh_degree, antialiased, rows):
    path = tmp_path_factory.mktemp("ply") / "a.ply"
    parts = [gaussians(n, sh_degree, seed) for seed, n in enumerate(sizes)]
    assert write_ply(path, iter(parts), sh_degree, antialiased) == sum(sizes)
    file = open_ply(path)
    assert (file.count, file.sh_degree, file.antialiased) == (sum(sizes), sh_degree, antialiased)
    back = [np.empty((0, file.components), np.float32), *file.chunks(rows)]
    assert all(len(part) <= rows for part in back)
    assert np.concatenate(back).tobytes() == b"".join(part.tobytes() for part in parts)
    assert [p.name for p in path.parent.iterdir()] == ["a.ply"]


def test_more_rows_than_a_chunk(tmp_path):
    rows = gaussians(2 * CHUNK + 5, 0)
    write_ply(tmp_path / "a.ply", [rows], 0)
    assert np.array_equal(open_ply(tmp_path / "a.ply").read(), rows)


def test_inria_order_as_plyfile_reads_it(tmp_path):
    rows = gaussians(7)
    write_ply(tmp_path / "a.ply", [rows], 3)
    ply = PlyData.read(tmp_path / "a.ply")
    vertex = ply["vertex"].data
    assert list(vertex.dtype.names) == property_names(3)
    assert property_names(3)[:9] == ["x", "y", "z", "nx", "ny", "nz", "f_dc_0", "f_dc_1", "f_dc_2"]
    assert property_names(3)[9:11] + property_names(3)[53:] == [
        *("f_rest_0", "f_rest_1", "f_rest_44", "opacity", "scale_0", "scale_1", "scale_2"),
        *("rot_0", "rot_1", "rot_2", "rot_3"),
    ]
    assert not ply.text
    assert ply.byte_order == "<"
    assert "SplatRenderMode: default" in ply.comments
    np.testing.assert_array_equal(vertex["rot_0"], rows[:, 3])
    np.testing.assert_array_equal(vertex["scale_2"], rows[:, 9])
    np.testing.assert_array_equal(vertex["opacity"], rows[:, 10])
    # Coefficient k of channel c: component 14 + 3k + c of a record, property f_rest_(15c + k).
    np.testing.assert_array_equal(vertex["f_rest_0"], rows[:, 14])
    np.testing.assert_array_equal(vertex["f_rest_1"], rows[:, 17])
    np.testing.assert_array_equal(vertex["f_rest_15"], rows[:, 15])
    np.testing.assert_array_equal(vertex["f_rest_44"], rows[:, 58])
    assert not vertex["nx"].any()


@pytest.mark.parametrize("sh_degree", [0, 1, 3])
def test_gsplat_exports_the_same_gaussians(tmp_path, sh_degree):
    rows = gaussians(20, sh_degree)
    t = torch.from_numpy(rows)
    data = export_splats(
        t[:, :3], t[:, 7:10], t[:, 3:7], t[:, 10], t[:, None, 11:14], t[:, 14:].reshape(20, -1, 3), format="ply"
    )
    (tmp_path / "theirs.ply").write_bytes(data)
    file = open_ply(tmp_path / "theirs.ply")
    assert file.antialiased is None
    assert np.array_equal(file.read(), rows)
    write_ply(tmp_path / "ours.ply", [rows], sh_degree)
    theirs, ours = (PlyData.read(tmp_path / f"{who}.ply")["vertex"].data for who in ("theirs", "ours"))
    for name in theirs.dtype.names:
        np.testing.assert_array_equal(ours[name], theirs[name])


@pytest.mark.parametrize(("text", "byte_order"), [(True, "="), (False, "<"), (False, ">")])
def test_any_encoding_order_type_and_company(tmp_path, text, byte_order):
    """Properties shuffled, some double, some unknown; an element before and one with lists behind."""
    rows = gaussians(12, 2)
    names = [*BASE_PROPERTIES, *rest_properties(2)]
    order = np.random.default_rng(5).permutation(len(names))
    types = [(names[i], "f8" if i % 3 == 0 else "f4") for i in order]
    vertex = np.zeros(12, [("label", "i2"), *types, ("red", "u1")])
    for k, name in enumerate(names):
        vertex[name] = rows[:, k]
    before = np.zeros(3, [("a", "f4"), ("b", "u1")])
    faces = np.array([([0, 1, 2],)], dtype=[("vertex_indices", "i4", (3,))])
    elements = [PlyElement.describe(before, "camera"), PlyElement.describe(vertex, "vertex")]
    elements.append(PlyElement.describe(faces, "face"))
    comments = ["SplatRenderMode: mip"]
    PlyData(elements, text=text, byte_order=byte_order, comments=comments).write(str(tmp_path / "a.ply"))
    file = open_ply(tmp_path / "a.ply")
    assert file.antialiased is True
    np.testing.assert_allclose(np.concatenate(list(file.chunks(5))), rows, rtol=1e-6 if text else 0)


def test_windows_line_ends(tmp_path):
    text = "\r\n".join(["ply", *minimal_header(1, "ascii"), "end_header", " ".join(["0.5"] * 14)]) + "\r\n"
    (tmp_path / "a.ply").write_bytes(text.encode())
    assert open_ply(tmp_path / "a.ply").read().tolist() == [[0.5] * 14]


def test_infinite_opacity_is_a_value(tmp_path):
    rows = gaussians(2, 0)
    rows[0, 10], rows[1, 10], rows[1, 7] = np.inf, -np.inf, -np.inf
    write_ply(tmp_path / "a.ply", [rows], 0)
    assert np.array_equal(open_ply(tmp_path / "a.ply").read(), rows)


def floats(n: int) -> bytes:
    return np.full(n * 14, 0.5, "<f4").tobytes()


def ascii_rows(*rows: str) -> bytes:
    return ("\n".join(rows) + "\n").encode()


HALVES = " ".join(["0.5"] * 14)
MALFORMED = {
    "no PLY": (b"obj\nformat", "does not begin with 'ply'"),
    "empty": (b"", "does not begin with 'ply'"),
    "no end_header": (b"ply\nformat ascii 1.0\nelement vertex 3\n", "no end_header"),
    "no format": (["element vertex 1"], "line 2 of the PLY header is not its format"),
    "format unknown": (["format binary_middle_endian 1.0"], "'binary_middle_endian 1.0', which is none of"),
    "version unknown": (["format ascii 2.0"], "'ascii 2.0', which is none of"),
    "no vertex": (["format ascii 1.0", "element face 0"], "no element 'vertex'"),
    "count not a number": (["format ascii 1.0", "element vertex many"], "'vertex many', which is no name and count"),
    "count negative": (["format ascii 1.0", "element vertex -1"], "'vertex -1', which is no name and count"),
    "type unknown": (minimal_header(0, extra=("property half w",)), "'half w', which is no known type"),
    "stray line": (minimal_header(0, extra=("propertie float w",)), "'propertie float w', which no PLY header has"),
    "property twice": (minimal_header(0, extra=("property float x",)), "'x' of 'vertex' twice"),
    "list in vertex": (minimal_header(0, extra=("property list uchar int w",)), "is a list"),
    "property missing": (minimal_header(0, drop="scale_1"), "lack scale_1"),
    "points alone": (
        ["format ascii 1.0", "element vertex 0", *(f"property float {k}" for k in "xyz")],
        "lack rot_0, rot_1",
    ),
    "f_rest incomplete": (
        minimal_header(0, extra=tuple(f"property float f_rest_{i}" for i in range(8))),
        "8 properties f_rest_",
    ),
    "f_rest misnumbered": (
        minimal_header(0, extra=tuple(f"property float f_rest_{i}" for i in range(1, 10))),
        "9 properties f_rest_",
    ),
    "compressed": (["format ascii 1.0", "element vertex 0", "property uint packed_position"], "compressed PLY"),
    "lists before vertex": (
        ["format binary_little_endian 1.0", "element face 1", "property list uchar int i", *minimal_header(0)[1:]],
        "'face' before 'vertex' has lists",
    ),
    "cut": ((minimal_header(3), floats(3)[:-1]), "its 3 vertices need"),
    "count too small": ((minimal_header(2), floats(3)), "the count is wrong"),
    "text cut": ((minimal_header(3, "ascii"), ascii_rows(HALVES, HALVES)), "3 rows are stated, 2 are there"),
    "text row short": ((minimal_header(2, "ascii"), ascii_rows("1 2", HALVES)), "row 0 has 2 values instead of 14"),
    "text no number": ((minimal_header(1, "ascii"), ascii_rows("one" + HALVES[3:])), "no number"),
    "mean not finite": ((minimal_header(1, "ascii"), ascii_rows("nan" + HALVES[3:])), "row 0 has the value nan for x"),
    "opacity NaN": ((minimal_header(1, "ascii"), ascii_rows("1 " * 10 + "nan 1 1 1")), "value nan for opacity"),
    "scale infinite": ((minimal_header(1, "ascii"), ascii_rows("1 " * 7 + "inf" + " 1" * 6)), "value inf for scale_0"),
    "float32 overflow": ((minimal_header(1, "ascii"), ascii_rows("1e40" + HALVES[3:])), "value inf for x"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_each_malformation_is_one_sentence(tmp_path, case):
    content, message = MALFORMED[case]
    path = tmp_path / "bad.ply"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, tuple):
        write_text(path, *content)
    else:
        write_text(path, content)
    with pytest.raises(FormatError) as error:
        open_ply(path).read()
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_file_is_a_format_error(tmp_path):
    with pytest.raises(FormatError, match="cannot be read: No such file"):
        open_ply(tmp_path / "none.ply")


def test_writing_leaves_the_old_file_or_the_new_one(tmp_path):
    path = tmp_path / "a.ply"
    write_ply(path, [gaussians(3, 0)], 0)
    old = path.read_bytes()

    def interrupted():
        yield gaussians(5, 0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_ply(path, interrupted(), 0)
    with pytest.raises(FormatError, match=r"a chunk of shape \(3, 59\) came where \[n, 14\]"):
        write_ply(path, [gaussians(3, 3)], 0)
    assert path.read_bytes() == old
    assert [p.name for p in tmp_path.iterdir()] == ["a.ply"]


def test_an_unwritable_place_is_said(tmp_path):
    with pytest.raises(FormatError, match="cannot be written"):
        write_ply(tmp_path / "none" / "a.ply", [gaussians(3, 0)], 0)


@pytest.mark.parametrize(
    ("name", "count", "sh_degree", "infinite"), [("guitar_std_sh0_70k", 70_000, 0, 482), ("test_sh3_std", 64, 3, 38)]
)
def test_files_of_others(shared, name, count, sh_degree, infinite):
    path = shared / "splats" / f"{name}.ply"
    file = open_ply(path)
    assert (file.count, file.sh_degree, file.antialiased) == (count, sh_degree, None)
    rows = file.read()
    vertex = PlyData.read(path)["vertex"].data
    for k, property_name in enumerate([*BASE_PROPERTIES, *rest_properties(sh_degree)]):
        np.testing.assert_array_equal(rows[:, k], vertex[property_name])
    assert np.isposinf(rows[:, 10]).sum() == infinite


def test_compressed_file_of_others_is_named(shared):
    with pytest.raises(FormatError, match="compressed PLY"):
        open_ply(shared / "splats" / "guitar.compressed.ply")
