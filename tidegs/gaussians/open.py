"""Any file of Gaussians, whatever its format, told by its first bytes.

Invariant: all formats give the same rows: means, quats (wxyz), log scales, logit opacities, sh0, shN (component
3k + channel), float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from tidegs.errors import FormatError
from tidegs.gaussians.compressed_ply import is_compressed, open_compressed_ply
from tidegs.gaussians.packing import OPACITY_MARGIN, field
from tidegs.gaussians.ply import open_ply
from tidegs.gaussians.ply_header import read_header
from tidegs.gaussians.sog import META, open_sog
from tidegs.gaussians.splat import open_splat
from tidegs.gaussians.spz import MAGIC, open_spz

MIN_LOG_SCALE = -20.0  # taken for scales of zero


class GaussianFile(Protocol):
    """A file of Gaussians whose header was read and checked."""

    @property
    def path(self) -> Path: ...

    @property
    def format(self) -> str:
        """ "ply", "compressed-ply", "splat", "spz" or "sog"."""

    @property
    def count(self) -> int: ...

    @property
    def sh_degree(self) -> int: ...

    @property
    def antialiased(self) -> bool | None:
        """Whether it was trained antialiased; None where it does not say."""

    def chunks(self, rows: int = 1 << 16) -> Iterator[np.ndarray]:
        """Rows float32 [about `rows` or fewer, 14 + 3 K] in file order. Raises FormatError."""


def open_gaussians(path: Path) -> GaussianFile:
    """Opens a PLY, compressed PLY, .splat, SPZ or SOG (also its folder or meta.json). Raises FormatError."""
    if (path / META).is_file() or path.name == META:
        return open_sog(path)
    try:
        with open(path, "rb") as file:
            start = file.read(4)
    except OSError as error:
        raise FormatError(f"{path}: the file cannot be read: {error.strerror}") from None
    if start[:3] == b"ply":
        return open_compressed_ply(path) if is_compressed(read_header(path)) else open_ply(path)
    if start == MAGIC or start[:2] == b"\x1f\x8b":
        return open_spz(path)
    if start[:2] == b"PK":
        return open_sog(path)
    if path.suffix.lower() == ".splat":
        return open_splat(path)
    raise FormatError(f"{path}: this is no PLY, .splat, SPZ or SOG file of Gaussians")


class Finite:
    """Rows with infinite opacities and scales of zero replaced, and how many there were."""

    def __init__(self, file: GaussianFile) -> None:
        self._file = file
        self.opacities = self.scales = 0  # Gaussians that were changed; known when all rows were read

    def chunks(self) -> Iterator[np.ndarray]:
        """The rows of the file: logits are at most log((1 - 1e-6) / 1e-6) in size where they were infinite, log scales
        -20 where they were -inf."""
        self.opacities = self.scales = 0
        most = float(np.log((1 - OPACITY_MARGIN) / OPACITY_MARGIN))
        for rows in self._file.chunks():
            opacities, scales = field(rows, "opacities"), field(rows, "scales")
            infinite, zero = np.isinf(opacities), np.isneginf(scales)
            self.opacities += int(infinite.sum())
            self.scales += int(zero.any(1).sum())
            opacities[infinite] = np.copysign(most, opacities[infinite])
            scales[zero] = MIN_LOG_SCALE
            yield rows

    def sentence(self) -> str | None:
        """What was changed, for the user."""
        changed = [
            f"{n:,} {what}"
            for n, what in ((self.opacities, "infinite opacities"), (self.scales, "scales of zero"))
            if n
        ]
        return f"{self._file.path}: {' and '.join(changed)} were made finite" if changed else None
