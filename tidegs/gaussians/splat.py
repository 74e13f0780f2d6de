"""The `.splat` format (antimatter15's viewer): 32 bytes a Gaussian, no header, no higher harmonics.

Invariant: reading and writing are streamed. Record: means 3 f32, linear scales 3 f32, rgba 4 u8, quats wxyz 4 u8.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tidegs.errors import FormatError
from tidegs.gaussians.packing import SH_C0, check_rows, empty_rows, field, logit, sigmoid, to_bytes, unit_quats
from tidegs.gaussians.replace import replacing

ROWS = 1 << 16
RECORD = np.dtype([("means", "<f4", 3), ("scales", "<f4", 3), ("rgba", "u1", 4), ("quats", "u1", 4)])


@dataclass(frozen=True)
class SplatFile:
    """A .splat file whose size was checked."""

    path: Path
    count: int
    format = "splat"
    sh_degree = 0
    antialiased = None

    def chunks(self, rows: int = ROWS) -> Iterator[np.ndarray]:
        """Rows float32 [at most `rows`, 14] in file order. Raises FormatError where a value is not finite."""
        with open(self.path, "rb") as file:
            for first in range(0, self.count, rows):
                part = np.fromfile(file, RECORD, min(rows, self.count - first))
                yield self._rows(part, first)

    def _rows(self, part: np.ndarray, first: int) -> np.ndarray:
        out = empty_rows(len(part), 0)
        bad = ~np.isfinite(part["means"]).all(1) | ~(part["scales"] >= 0).all(1) | np.isinf(part["scales"]).any(1)
        if bad.any():
            raise FormatError(
                f"{self.path}: row {first + int(np.argmax(bad))} has a position or scale that is none: "
                "the file is damaged or no .splat, export it again"
            )
        field(out, "means")[:] = part["means"]
        with np.errstate(divide="ignore"):
            field(out, "scales")[:] = np.log(part["scales"])
        field(out, "sh0")[:] = (part["rgba"][:, :3] / 255 - 0.5) / SH_C0
        field(out, "opacities")[:] = logit(part["rgba"][:, 3:] / 255)
        field(out, "quats")[:] = unit_quats((part["quats"].astype(np.float32) - 128) / 128)
        return out


def open_splat(path: Path) -> SplatFile:
    """Checks the size. Raises FormatError."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise FormatError(f"{path}: the file cannot be read: {error.strerror}") from None
    if size % RECORD.itemsize:
        raise FormatError(
            f"{path}: {size} bytes are no whole number of records of 32: the file was cut, or is no .splat"
        )
    return SplatFile(path, size // RECORD.itemsize)


def write_splat(path: Path, chunks: Iterable[np.ndarray], sh_degree: int) -> int:
    """Writes chunks float32 [n, 14 + 3 K], however many, in their order; returns the number of Gaussians. Colours are
    those of sh0, as the format has no more. Memory: one chunk. Raises FormatError."""
    count = 0
    with replacing(path) as file:
        for rows in chunks:
            check_rows(path, rows, sh_degree)
            out = np.empty(len(rows), RECORD)
            out["means"] = field(rows, "means")
            out["scales"] = np.exp(field(rows, "scales"))
            out["rgba"][:, :3] = to_bytes((0.5 + SH_C0 * field(rows, "sh0")) * 255)
            out["rgba"][:, 3:] = to_bytes(sigmoid(field(rows, "opacities")) * 255)
            out["quats"] = to_bytes(unit_quats(field(rows, "quats")) * 128 + 128)
            out.tofile(file)
            count += len(rows)
    return count
