"""The compressed PLY of PlayCanvas and SuperSplat: chunks of 256 Gaussians with their ranges, 16 bytes a Gaussian, and
a byte for each higher harmonic.

Invariant: reading and writing are streamed; what is wrong with a file is one FormatError.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tidegs.errors import FormatError
from tidegs.gaussians import packing
from tidegs.gaussians.layout import BASE_COMPONENTS, sh_rest_count
from tidegs.gaussians.packing import SH_C0, SQRT2, field
from tidegs.gaussians.ply import MODE_COMMENT, render_mode
from tidegs.gaussians.ply_header import Element, PlyHeader, read_header
from tidegs.gaussians.replace import Sections, replacing

CHUNK = 256  # Gaussians that share ranges
ROWS = 1 << 16  # taken at a time, and put in spatial order, so that ranges are narrow
MAX_LOG_SCALE = 20.0  # ranges end here, as scales may be infinite
RANGES = tuple(f"{end}_{k}" for part in (("x", "y", "z"), ("scale_x", "scale_y", "scale_z"), ("r", "g", "b"))
               for end in ("min", "max") for k in part)  # fmt: skip
PACKED = ("packed_position", "packed_rotation", "packed_scale", "packed_color")


@dataclass(frozen=True)
class CompressedPly:
    """A compressed PLY whose header and size were checked."""

    path: Path
    count: int
    sh_degree: int
    antialiased: bool | None
    _ranges: Element
    _offsets: dict[str, int]  # of each element's data
    _dtypes: dict[str, np.dtype]
    format = "compressed-ply"

    def chunks(self, rows: int = ROWS) -> Iterator[np.ndarray]:
        """Rows float32 [at most `rows` rounded up to 256, 14 + 3 K] in file order. Raises FormatError."""
        rows = -(-rows // CHUNK) * CHUNK
        with open(self.path, "rb") as file:
            for first in range(0, self.count, rows):
                n = min(rows, self.count - first)

                def part(element: str, first: int, n: int) -> np.ndarray:
                    dtype = self._dtypes[element]
                    file.seek(self._offsets[element] + first * dtype.itemsize)
                    return np.fromfile(file, dtype, n)

                ranges = part("chunk", first // CHUNK, -(-n // CHUNK))
                out = packing.empty_rows(n, self.sh_degree)
                _unpack(part("vertex", first, n), ranges, out)
                if self.sh_degree:
                    sh = part("sh", first, n)
                    bytes_ = sh.view(np.uint8).reshape(n, 3, -1)  # channel-major
                    field(out, "shN")[:] = _sh_values(bytes_).transpose(0, 2, 1).reshape(n, -1)
                if not np.isfinite(out).all():
                    row = first + int(np.argmin(np.isfinite(out).all(1)))
                    raise FormatError(
                        f"{self.path}: row {row} lies in a chunk of infinite range: export the file again"
                    )
                yield out


def open_compressed_ply(path: Path) -> CompressedPly:
    """Reads and checks the header. Raises FormatError."""
    try:
        header = read_header(path)
        size = path.stat().st_size
    except OSError as error:
        raise FormatError(f"{path}: the file cannot be read: {error.strerror}") from None
    elements = {e.name: e for e in header.elements}
    offsets, end = {}, header.data_offset
    for e in header.elements:
        if e.dtype is None or header.ascii:
            raise FormatError(f"{path}: a compressed PLY is binary and has no lists: export it again")
        offsets[e.name], end = end, end + e.count * e.dtype.itemsize
    _check_elements(path, elements)
    if size < end:
        raise FormatError(f"{path}: {size} bytes, but its header promises {end}: the file was cut")
    count = elements["vertex"].count
    dtypes = {name: e.dtype for name, e in elements.items() if e.dtype is not None}
    return CompressedPly(
        path, count, _sh_degree(path, elements, count), render_mode(header), elements["chunk"], offsets, dtypes
    )


def is_compressed(header: PlyHeader) -> bool:
    """The vertices are packed."""
    vertex = next((e for e in header.elements if e.name == "vertex"), None)
    return vertex is not None and vertex.dtype is not None and PACKED[0] in (vertex.dtype.names or ())


def _check_elements(path: Path, elements: dict[str, Element]) -> None:
    for name, needed in (("chunk", RANGES[:12]), ("vertex", PACKED)):
        found = elements[name].dtype if name in elements else None
        if missing := [p for p in needed if found is None or p not in (found.names or ())]:
            raise FormatError(f"{path}: element {name!r} lacks {missing[0]}, so this is no compressed PLY of Gaussians")
    chunks, count = elements["chunk"].count, elements["vertex"].count
    if chunks != -(-count // CHUNK):
        raise FormatError(
            f"{path}: {count} vertices need {-(-count // CHUNK)} chunks of {CHUNK}, the file has {chunks}"
        )


def _sh_degree(path: Path, elements: dict[str, Element], count: int) -> int:
    if "sh" not in elements:
        return 0
    sh = elements["sh"]
    names = () if sh.dtype is None else (sh.dtype.names or ())
    itemsize = 0 if sh.dtype is None else sh.dtype.itemsize
    for degree in (1, 2, 3):
        rest = 3 * sh_rest_count(degree)
        if names == tuple(f"f_rest_{i}" for i in range(rest)) and (sh.count, itemsize) == (count, rest):
            return degree
    raise FormatError(
        f"{path}: element 'sh' has {len(names)} properties and {sh.count} rows, not 9, 24 or 45 bytes of each vertex"
    )


def _unpack(vertex: np.ndarray, ranges: np.ndarray, out: np.ndarray) -> None:
    of = np.repeat(np.arange(len(ranges)), CHUNK)[: len(out)]

    def spread(unit: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
        low, high = (np.stack([ranges[name] for name in part], 1)[of] for part in (names[:3], names[3:]))
        return low * (1 - unit) + high * unit

    field(out, "means")[:] = spread(_unpack_11_10_11(vertex["packed_position"]), RANGES[:6])
    field(out, "scales")[:] = spread(_unpack_11_10_11(vertex["packed_scale"]), RANGES[6:12])
    packed = vertex["packed_rotation"].astype(np.int64)
    others = (np.stack([packed >> s & 1023 for s in (20, 10, 0)], 1) / 1023 - 0.5) * SQRT2
    field(out, "quats")[:] = packing.from_smallest_three(packed >> 30, others)
    colour = np.stack([vertex["packed_color"] >> s & 255 for s in (24, 16, 8, 0)], 1) / 255
    rgb = colour[:, :3]
    if RANGES[12] in (ranges.dtype.names or ()):
        rgb = spread(rgb, RANGES[12:])
    field(out, "sh0")[:] = (rgb - 0.5) / SH_C0
    field(out, "opacities")[:] = packing.logit(colour[:, 3:])


def _unpack_11_10_11(packed: np.ndarray) -> np.ndarray:
    return np.stack([(packed >> 21) / 2047, (packed >> 11 & 1023) / 1023, (packed & 2047) / 2047], 1)


def _pack_11_10_11(unit: np.ndarray) -> np.ndarray:
    x, y, z = (np.floor(unit[..., k] * most + 0.5).astype(np.uint32) for k, most in enumerate((2047, 1023, 2047)))
    return x << 21 | y << 11 | z


def _sh_values(stored: np.ndarray) -> np.ndarray:
    """-4 to 4; both ends are stored exactly, as SuperSplat reads them."""
    unit = (stored + np.float32(0.5)) / 256
    return (np.where(stored == 0, 0, np.where(stored == 255, 1, unit)) - 0.5) * 8


def write_compressed_ply(path: Path, chunks: Iterable[np.ndarray], sh_degree: int, antialiased: bool = False) -> int:
    """Writes chunks float32 [n, 14 + 3 K], however many; returns the number of Gaussians. Rows are put in spatial order
    within each 65,536. Memory: some 100 MB at SH degree 3. Raises FormatError."""
    names = ("chunk", "vertex", "sh")
    count = 0
    with Sections(path, names) as sections:
        for rows in packing.regroup(path, chunks, sh_degree, ROWS):
            ranges, vertex = _pack(rows)
            sections.add("chunk", ranges)
            sections.add("vertex", vertex)
            sh = field(rows, "shN").reshape(len(rows), -1, 3).transpose(0, 2, 1)
            sections.add("sh", np.clip(np.trunc((sh / 8 + 0.5) * 256), 0, 255).astype(np.uint8))
            count += len(rows)
        with replacing(path) as file:
            file.write(_header(count, sh_degree, antialiased))
            for name in names:
                for part in sections.parts(name):
                    file.write(part)
    return count


def _header(count: int, sh_degree: int, antialiased: bool) -> bytes:
    rest = 3 * sh_rest_count(sh_degree)
    lines = [
        "ply",
        "format binary_little_endian 1.0",
        f"comment {MODE_COMMENT} {'mip' if antialiased else 'default'}",
        "comment written by tidegs",
        f"element chunk {-(-count // CHUNK)}",
        *(f"property float {name}" for name in RANGES),
        f"element vertex {count}",
        *(f"property uint {name}" for name in PACKED),
        *([f"element sh {count}"] if rest else []),
        *(f"property uchar f_rest_{i}" for i in range(rest)),
        "end_header",
    ]
    return ("\n".join(lines) + "\n").encode()


def _pack(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ranges float32 [chunks, 18] and vertices uint32 [n, 4]."""
    n = len(rows)
    base = np.concatenate([rows[:, :BASE_COMPONENTS], np.repeat(rows[-1:, :BASE_COMPONENTS], -n % CHUNK, 0)])

    def unit(values: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        grouped = values.reshape(-1, CHUNK, 3)
        low, high = grouped.min(1), grouped.max(1)
        side = np.where(high > low, high - low, 1)
        return ((grouped - low[:, None]) / side[:, None]).reshape(-1, 3), [low, high]

    position, position_range = unit(field(base, "means"))
    scale, scale_range = unit(np.clip(field(base, "scales"), -MAX_LOG_SCALE, MAX_LOG_SCALE))
    rgb, rgb_range = unit(field(base, "sh0") * np.float32(SH_C0) + np.float32(0.5))
    largest, others = packing.smallest_three(packing.unit_quats(field(base, "quats")))
    rotation: np.ndarray = largest.astype(np.uint32)
    for k in range(3):
        rotation = rotation << 10 | np.clip(np.floor((others[:, k] / SQRT2 + 0.5) * 1023 + 0.5), 0, 1023).astype(
            np.uint32
        )
    colour: np.ndarray = np.zeros(len(base), np.uint32)
    opacity = packing.sigmoid(field(base, "opacities"))
    for values in (rgb[:, 0], rgb[:, 1], rgb[:, 2], opacity[:, 0]):
        colour = colour << 8 | packing.to_bytes(values * 255)
    ranges = np.concatenate([*position_range, *scale_range, *rgb_range], 1).astype("<f4")
    vertex = np.stack([_pack_11_10_11(position), rotation, _pack_11_10_11(scale), colour], 1)
    return ranges, vertex[:n].astype("<u4")
