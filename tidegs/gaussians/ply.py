"""Gaussians as the PLY file that the field exchanges (INRIA's 3DGS), read and written in chunks, whatever its size.

Invariant: what is read is found by name, whatever its order or type, and each way in which a file is wrong is one
FormatError; what is written appears under its name only when it is whole, and on any error nothing is left behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numba import njit

from tidegs.errors import FormatError
from tidegs.gaussians.layout import BASE_COMPONENTS, BASE_FIELDS, sh_rest_count
from tidegs.gaussians.ply_header import PlyHeader
from tidegs.gaussians.ply_vertices import PlyVertices, open_vertices
from tidegs.gaussians.replace import replacing

CHUNK = 1 << 13  # rows; 2 MiB of SH degree 3, which caches hold
MODE_COMMENT = "SplatRenderMode:"
_COUNT_DIGITS = 19  # room for any count: a comment gives way to it, so that the header can be written first

# PLY properties of the base components, in the order of BASE_FIELDS.
BASE_PROPERTIES = (
    *("x", "y", "z"),
    *("rot_0", "rot_1", "rot_2", "rot_3"),
    *("scale_0", "scale_1", "scale_2"),
    "opacity",
    *("f_dc_0", "f_dc_1", "f_dc_2"),
)


def rest_properties(sh_degree: int) -> tuple[str, ...]:
    """PLY properties of shN by record component 3k + channel; the file counts channel-major: all R, all G, all B."""
    k = sh_rest_count(sh_degree)
    return tuple(f"f_rest_{channel * k + i}" for i in range(k) for channel in range(3))


@dataclass(frozen=True)
class GaussianPly:
    """A PLY file of Gaussians whose header was read and checked."""

    path: Path
    count: int
    sh_degree: int
    antialiased: bool | None  # as its SplatRenderMode comment says; None where it has none
    _vertices: PlyVertices
    format = "ply"

    @property
    def components(self) -> int:
        """Floats of a row: 14 + 3 K."""
        return len(BASE_PROPERTIES) + 3 * sh_rest_count(self.sh_degree)

    def chunks(self, rows: int = CHUNK) -> Iterator[np.ndarray]:
        """Chunks float32 [at most `rows`, 14 + 3 K] in file order: means, quats (wxyz), log scales, logit opacities,
        sh0, then shN as component 3k + channel. Opacities may be infinite, log scales -inf. Raises FormatError."""
        names = BASE_PROPERTIES + rest_properties(self.sh_degree)
        columns = np.array([(self._vertices.row.names or ()).index(name) for name in names])
        first = 0
        for part in self._vertices.chunks(rows):
            out = np.empty((len(part), len(names)), np.float32)
            with np.errstate(over="ignore"):
                _pick_columns(_table(part), columns, out)
            self._check_finite(out, names, first)
            first += len(part)
            yield out

    def read(self) -> np.ndarray:
        """All rows at once."""
        return np.concatenate([np.empty((0, self.components), np.float32), *self.chunks()])

    def _check_finite(self, rows: np.ndarray, names: tuple[str, ...], first: int) -> None:
        bad = ~np.isfinite(rows)
        if not bad.any():
            return
        opacity, scales = BASE_FIELDS["opacities"], BASE_FIELDS["scales"]
        bad[:, opacity] &= np.isnan(rows[:, opacity])
        bad[:, scales] &= rows[:, scales] != -np.inf
        if bad.any():
            row, k = (int(i) for i in np.argwhere(bad)[0])
            raise FormatError(
                f"{self.path}: row {first + row} has the value {rows[row, k]} for {names[k]}: export the file again"
            )


def open_ply(path: Path) -> GaussianPly:
    """Reads and checks the header, and that the file is as long as it states. Raises FormatError."""
    vertices = open_vertices(path)
    names = vertices.row.names or ()
    if "packed_position" in names:
        raise FormatError(f"{path}: this is a compressed PLY, not a standard one: export it as a standard PLY")
    if missing := [name for name in BASE_PROPERTIES if name not in names]:
        raise FormatError(f"{path}: its vertices lack {', '.join(missing)}: a file of Gaussians has them")
    return GaussianPly(path, vertices.count, _sh_degree(path, vertices.row), render_mode(vertices.header), vertices)


def _sh_degree(path: Path, row: np.dtype) -> int:
    rest = {name for name in row.names or () if name.startswith("f_rest_")}
    for degree in range(4):
        if rest == set(rest_properties(degree)):
            return degree
    raise FormatError(
        f"{path}: its vertices have {len(rest)} properties f_rest_*, but SH degree 1, 2, 3 have 9, 24, 45 from 0 on"
    )


def render_mode(header: PlyHeader) -> bool | None:
    """Whether a file was trained antialiased, as its comment says; None where it has none."""
    for comment in header.comments:
        if comment.startswith(MODE_COMMENT):
            return comment[len(MODE_COMMENT) :].strip() == "mip"
    return None


def write_ply(path: Path, chunks: Iterable[np.ndarray], sh_degree: int, antialiased: bool = False) -> int:
    """Writes chunks float32 [n, 14 + 3 K] (as GaussianPly.chunks gives them: means, quats wxyz, log scales, logit
    opacities, sh0, shN), however many; returns the number of Gaussians. Values are written as they are.

    The file is binary little-endian with the properties x y z nx ny nz f_dc f_rest opacity scale rot; normals are zero,
    f_rest is channel-major, and a comment states whether training was antialiased. Raises FormatError where the disk
    does not take it or a chunk is not of this shape.
    """
    names = property_names(sh_degree)
    with replacing(path) as file:
        file.write(_header(names, 0, antialiased))
        count = _write_rows(file, path, chunks, sh_degree)
        file.seek(0)
        file.write(_header(names, count, antialiased))
    return count


def property_names(sh_degree: int) -> list[str]:
    """Properties in INRIA's order."""
    rest = [f"f_rest_{i}" for i in range(3 * sh_rest_count(sh_degree))]
    scales, rots = [f"scale_{i}" for i in range(3)], [f"rot_{i}" for i in range(4)]
    return [*"xyz", "nx", "ny", "nz", *(f"f_dc_{i}" for i in range(3)), *rest, "opacity", *scales, *rots]


def _header(names: list[str], count: int, antialiased: bool) -> bytes:
    """The header, of the same length for every count."""
    lines = [
        "ply",
        "format binary_little_endian 1.0",
        f"comment {MODE_COMMENT} {'mip' if antialiased else 'default'}",
        f"comment written by tidegs{' ' * (_COUNT_DIGITS - len(str(count)))}",
        f"element vertex {count}",
        *(f"property float {name}" for name in names),
        "end_header",
    ]
    return ("\n".join(lines) + "\n").encode()


def _write_rows(file: BinaryIO, path: Path, chunks: Iterable[np.ndarray], sh_degree: int) -> int:
    components = BASE_COMPONENTS + 3 * sh_rest_count(sh_degree)
    columns = _columns(sh_degree)
    rows = np.empty((CHUNK, len(columns)), np.float32)
    count = 0
    for chunk in chunks:
        if chunk.ndim != 2 or chunk.shape[1] != components:
            raise FormatError(
                f"{path}: a chunk of shape {chunk.shape} came where [n, {components}] (SH {sh_degree}) was due"
            )
        for at in range(0, len(chunk), CHUNK):
            part = chunk[at : at + CHUNK]
            out = rows[: len(part)]
            _pick_columns(np.ascontiguousarray(part, np.float32), columns, out)
            out = out.astype("<f4", copy=False)
            out.tofile(file)
            count += len(part)
    return count


def _columns(sh_degree: int) -> np.ndarray:
    """The component of a record that each property of a written file holds, -1 for normals."""
    names = BASE_PROPERTIES + rest_properties(sh_degree)
    return np.array([names.index(name) if name in names else -1 for name in property_names(sh_degree)])


def _table(part: np.ndarray) -> np.ndarray:
    """Rows of mixed types as float32 [n, properties]; no copy where all are float32 of this machine's byte order."""
    names = part.dtype.names or ()
    if part.dtype == np.dtype([(name, np.float32) for name in names]):
        return part.view(np.float32).reshape(len(part), len(names))
    return np.stack([part[name].astype(np.float32) for name in names], axis=1)


@njit(cache=True, nogil=True)
def _pick_columns(source: np.ndarray, columns: np.ndarray, out: np.ndarray) -> None:
    """out[i, j] = source[i, columns[j]], 0 where the column is negative. Row by row, as files are."""
    for i in range(len(out)):
        for j in range(len(columns)):
            out[i, j] = source[i, columns[j]] if columns[j] >= 0 else np.float32(0)
