"""SPZ (Niantic): quantised attributes one after the other, in one gzip stream (versions 1 to 3) or a Zstandard stream
each (version 4). Version 3 is written, which every reader knows.

Invariant: memory does not grow with the file; what is unpacked lies in nameless files. Coordinates are kept as they
are: the format says "right, up, back", but the common tools for trained scenes (splat-transform, gsply, GaussForge)
turn nothing, and a file that went through them must come back where it was.
"""

from __future__ import annotations

import gzip
import struct
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np

from tidegs.errors import FormatError
from tidegs.gaussians import packing
from tidegs.gaussians.layout import sh_rest_count
from tidegs.gaussians.packing import field
from tidegs.gaussians.replace import Sections, replacing

ROWS = 1 << 16
MAGIC = b"NGSP"
HEADER = struct.Struct("<4sIIBBBB")  # magic, version, count, sh degree, fraction bits, flags, 0 or streams
ANTIALIASED = 1  # of the flags
FRACTION_BITS = 12  # of a position, as everywhere; fewer where coordinates are larger than 24 bits then hold
COLOUR_SCALE = 0.15  # colours may leave 0 to 1 before the higher harmonics bring them back
MAGNITUDE = 511  # of the nine bits of a quaternion's component
SECTIONS = ("means", "opacities", "sh0", "scales", "quats", "shN")
_COPY = 1 << 20


@dataclass(frozen=True)
class SpzFile:
    """An SPZ file whose header was read and checked."""

    path: Path
    count: int
    sh_degree: int
    antialiased: bool
    version: int
    fraction_bits: int
    _stored_degree: int  # 4 is read as 3: the fourth band is left out
    format = "spz"

    def chunks(self, rows: int = ROWS) -> Iterator[np.ndarray]:
        """Rows float32 [at most `rows`, 14 + 3 K] in file order. The file is unpacked to a nameless file first, 20 to
        65 bytes a Gaussian. Raises FormatError."""
        widths = self._widths()
        with tempfile.TemporaryFile() as unpacked:
            starts = self._unpack(unpacked, widths)
            for first in range(0, self.count, rows):
                n = min(rows, self.count - first)
                parts = {}
                for name, width in widths.items():
                    unpacked.seek(starts[name] + first * width)
                    parts[name] = np.frombuffer(unpacked.read(n * width), np.uint8).reshape(n, width)
                yield self._rows(parts, n)

    def _widths(self) -> dict[str, int]:
        """Bytes of a row in each section."""
        position = 6 if self.version == 1 else 9
        return dict(
            zip(
                SECTIONS,
                (position, 1, 3, 3, 3 if self.version < 3 else 4, 3 * ((self._stored_degree + 1) ** 2 - 1)),
                strict=True,
            )
        )

    def _unpack(self, to: IO[bytes], widths: dict[str, int]) -> dict[str, int]:
        """Where each section lies in `to`."""
        with open(self.path, "rb") as file:
            try:
                if self.version < 4:
                    with gzip.GzipFile(fileobj=file) as packed:
                        packed.read(HEADER.size)
                        self._copy(packed, to, self.count * sum(widths.values()))
                        while packed.read(_COPY):  # the checksum is at the end, behind extensions
                            pass
                else:
                    self._copy_streams(file, to, widths)
            except (OSError, EOFError, zlib.error) as error:
                raise FormatError(f"{self.path}: the file cannot be unpacked ({error}): it is damaged") from None
        starts, at = {}, 0
        for name, width in widths.items():
            starts[name], at = at, at + width * self.count
        return starts

    def _copy(self, packed: IO[bytes] | gzip.GzipFile, to: IO[bytes], nbytes: int) -> None:
        while nbytes:
            part = packed.read(min(nbytes, _COPY))
            if not part:
                raise FormatError(
                    f"{self.path}: the file ends {nbytes} bytes before its {self.count} Gaussians do: it was cut"
                )
            to.write(part)
            nbytes -= len(part)

    def _copy_streams(self, file: BinaryIO, to: IO[bytes], widths: dict[str, int]) -> None:
        import zstandard

        head = file.read(32)
        streams, table = head[15], struct.unpack_from("<I", head, 16)[0]
        expected = [self.count * width for width in widths.values() if width]
        file.seek(table)
        sizes = list(struct.iter_unpack("<QQ", file.read(16 * streams)))
        found = [u for _, u in sizes]
        if found != expected:
            raise FormatError(f"{self.path}: its streams have {found} bytes where {expected} were due: it is damaged")
        at = table + 16 * streams
        for packed_bytes, nbytes in sizes:
            file.seek(at)
            try:
                with zstandard.ZstdDecompressor().stream_reader(file, closefd=False) as packed:
                    self._copy(packed, to, nbytes)
            except zstandard.ZstdError as error:
                raise FormatError(f"{self.path}: the file cannot be unpacked ({error}): it is damaged") from None
            at += packed_bytes

    def _rows(self, parts: dict[str, np.ndarray], n: int) -> np.ndarray:
        out = packing.empty_rows(n, self.sh_degree)
        field(out, "means")[:] = self._positions(parts["means"])
        field(out, "opacities")[:] = packing.logit(parts["opacities"] / 255)
        field(out, "sh0")[:] = (parts["sh0"] / 255 - 0.5) / COLOUR_SCALE
        field(out, "scales")[:] = parts["scales"] / 16 - 10
        field(out, "quats")[:] = _quats(parts["quats"])
        rest = field(out, "shN")
        rest[:] = (parts["shN"][:, : rest.shape[1]].astype(np.float32) - 128) / 128
        return out

    def _positions(self, stored: np.ndarray) -> np.ndarray:
        if self.version == 1:
            return np.ascontiguousarray(stored).view("<f2").astype(np.float32)
        b = stored.reshape(-1, 3, 3).astype(np.int32)
        fixed = b[..., 0] | b[..., 1] << 8 | b[..., 2] << 16
        fixed -= (fixed & 0x800000) << 1
        return fixed / float(1 << self.fraction_bits)


def open_spz(path: Path) -> SpzFile:
    """Reads and checks the header. Raises FormatError."""
    try:
        with open(path, "rb") as file:
            start = file.read(HEADER.size)
            packed = start[:2] == b"\x1f\x8b"
            if packed:
                file.seek(0)
                with gzip.GzipFile(fileobj=file) as unpacked:
                    start = unpacked.read(HEADER.size)
    except (OSError, EOFError, zlib.error) as error:
        raise FormatError(f"{path}: the file cannot be read: {error}") from None
    if len(start) < HEADER.size or start[:4] != MAGIC:
        raise FormatError(f"{path}: this is no SPZ file: it does not begin with NGSP")
    _, version, count, degree, bits, flags, _ = HEADER.unpack(start)
    if version not in ((1, 2, 3) if packed else (4,)):
        raise FormatError(f"{path}: SPZ version {version} is not read here: export it as version 2, 3 or 4")
    if degree > 4 or bits > 23:
        raise FormatError(f"{path}: SH degree {degree} and {bits} fraction bits are impossible: the header is damaged")
    return SpzFile(path, count, min(degree, 3), bool(flags & ANTIALIASED), version, bits, degree)


def write_spz(path: Path, chunks: Iterable[np.ndarray], sh_degree: int, antialiased: bool = False) -> int:
    """Writes chunks float32 [n, 14 + 3 K], however many; returns the number of Gaussians. Rows are put in spatial order
    within each 65,536. Memory: some 100 MB at SH degree 3; 23 to 68 bytes a Gaussian on disk while it works. Raises
    FormatError, also where coordinates are too large for 24 bits."""
    count, reach = 0, 0.0
    with Sections(path, SECTIONS) as sections:
        for rows in packing.regroup(path, chunks, sh_degree, ROWS):
            reach = max(reach, float(np.abs(field(rows, "means")).max()))
            sections.add("means", field(rows, "means").astype("<f4"))
            sections.add("opacities", packing.to_bytes(packing.sigmoid(field(rows, "opacities")) * 255))
            sections.add("sh0", packing.to_bytes(field(rows, "sh0") * (COLOUR_SCALE * 255) + 127.5))
            sections.add("scales", packing.to_bytes((field(rows, "scales") + 10) * 16))
            sections.add("quats", _pack_quats(field(rows, "quats")))
            sections.add("shN", _pack_sh(field(rows, "shN")))
            count += len(rows)
        bits = _fraction_bits(path, reach)
        flags = ANTIALIASED if antialiased else 0
        with replacing(path) as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
            packed.write(HEADER.pack(MAGIC, 3, count, sh_degree, bits, flags, 0))
            for part in sections.parts("means", 12 * ROWS):
                packed.write(_pack_positions(np.frombuffer(part, "<f4"), bits))
            for name in SECTIONS[1:]:
                for part in sections.parts(name):
                    packed.write(part)
    return count


def _fraction_bits(path: Path, reach: float) -> int:
    for bits in range(FRACTION_BITS, 0, -1):
        if reach * (1 << bits) < (1 << 23) - 1:
            return bits
    raise FormatError(
        f"{path}: coordinates reach {reach:.6g}, which SPZ's 24 bits do not hold: export a PLY, or crop with --crop"
    )


def _pack_positions(values: np.ndarray, bits: int) -> bytes:
    fixed = np.rint(values.astype(np.float64) * (1 << bits)).astype("<i4")
    return fixed.view(np.uint8).reshape(-1, 4)[:, :3].tobytes()


def _pack_quats(quats: np.ndarray) -> np.ndarray:
    """uint32: two bits for the greatest of xyzw, then a sign and nine bits for each other one."""
    largest, others = packing.smallest_three(np.roll(packing.unit_quats(quats), -1, 1))
    packed: np.ndarray = largest.astype(np.uint32)
    magnitude = np.minimum(np.floor(np.abs(others) * packing.SQRT2 * MAGNITUDE + 0.5), MAGNITUDE).astype(np.uint32)
    for k in range(3):
        packed = packed << 10 | (others[:, k] < 0).astype(np.uint32) << 9 | magnitude[:, k]
    return packed.astype("<u4")


def _quats(stored: np.ndarray) -> np.ndarray:
    """wxyz of three bytes (xyz) or four (the smallest three)."""
    if stored.shape[1] == 3:
        xyz = stored.astype(np.float32) / np.float32(127.5) - 1
        w = np.sqrt(np.maximum(0, 1 - np.einsum("ij,ij->i", xyz, xyz)))
        return np.concatenate([w[:, None], xyz], 1)
    packed = np.ascontiguousarray(stored).view("<u4")[:, 0].astype(np.int64)
    parts = np.stack([packed >> s & 1023 for s in (20, 10, 0)], 1)
    others = (parts & MAGNITUDE) / (MAGNITUDE * packing.SQRT2) * np.where(parts >> 9, -1, 1)
    return np.roll(packing.from_smallest_three(packed >> 30, others), 1, 1)


def _pack_sh(rest: np.ndarray) -> np.ndarray:
    """Bytes in 5 significant bits for the first band and 4 for the others, as Niantic's writer."""
    value = np.rint(rest * 128).astype(np.int32) + 128
    bucket = np.where(np.arange(rest.shape[1]) < 3 * sh_rest_count(1), 8, 16)
    return np.clip((value + bucket // 2) // bucket * bucket, 0, 255).astype(np.uint8)
