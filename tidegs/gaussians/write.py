"""Writing Gaussians in any format, chosen by name or by the file's suffix.

Invariant: every writer streams its input and leaves the old file or the new one.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tidegs.errors import ConfigError
from tidegs.gaussians.compressed_ply import write_compressed_ply
from tidegs.gaussians.ply import write_ply
from tidegs.gaussians.sog_write import write_sog
from tidegs.gaussians.splat import write_splat
from tidegs.gaussians.spz import write_spz

# Suffixes, the longer ones first where one ends in another.
SUFFIXES = {
    ".compressed.ply": "compressed-ply",
    ".ply": "ply",
    ".splat": "splat",
    ".spz": "spz",
    ".sog": "sog",
}
FORMATS = ("ply", "compressed-ply", "splat", "spz", "sog")


def format_of(path: Path) -> str:
    """The format that a file's suffix stands for. Raises ConfigError."""
    for suffix, kind in SUFFIXES.items():
        if path.name.lower().endswith(suffix):
            return kind
    raise ConfigError(f"{path}: the suffix is none of {', '.join(SUFFIXES)}; name the format with --format")


def write_gaussians(
    path: Path, chunks: Iterable[np.ndarray], sh_degree: int, antialiased: bool = False, kind: str | None = None
) -> int:
    """Writes chunks float32 [n, 14 + 3 K] in one of FORMATS (None: by suffix); returns the number of Gaussians. Raises
    FormatError and ConfigError."""
    kind = kind or format_of(path)
    if kind == "splat":  # has no place for the mode
        return write_splat(path, chunks, sh_degree)
    writers = {"ply": write_ply, "compressed-ply": write_compressed_ply, "spz": write_spz, "sog": write_sog}
    return writers[kind](path, chunks, sh_degree, antialiased)
