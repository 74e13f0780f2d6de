"""Writes SOG version 2 (see sog.py): a zip of lossless WebP images and meta.json.

Invariant: the file appears under its name only when it is whole. The format is not one for streams: ranges, codebooks
and palette are of all Gaussians, and an image is packed whole. Rows wait in nameless files beside the target (56 to 236
bytes a Gaussian); memory is some 30 bytes a Gaussian, and 150 MB.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tidegs import __version__
from tidegs.errors import FormatError
from tidegs.gaussians import packing
from tidegs.gaussians.layout import sh_rest_count
from tidegs.gaussians.packing import SQRT2, field
from tidegs.gaussians.palette import codebook, nearest_code, row_palette
from tidegs.gaussians.replace import Sections, replacing
from tidegs.gaussians.sog import META, MODE, PALETTE_WIDTH

ROWS = 1 << 16
MAX_SIDE = 16380  # of a WebP image, and a multiple of 4
MAX_LOG_SCALE = 20.0
NAMES = ("means", "quats", "scales", "sh0", "shN")
_DATE = (1980, 1, 1, 0, 0, 0)  # of the zip's entries: the same Gaussians give the same bytes


def write_sog(path: Path, chunks: Iterable[np.ndarray], sh_degree: int, antialiased: bool = False) -> int:
    """Writes chunks float32 [n, 14 + 3 K]; returns the number of Gaussians. Rows are put in spatial order within each
    65,536. Raises FormatError, also where there are no rows, or more than the images hold (268 million)."""
    with Sections(path, NAMES) as sections:
        count = 0
        for rows in packing.regroup(path, chunks, sh_degree, ROWS):
            means = field(rows, "means").astype(np.float64)
            sections.add("means", np.sign(means) * np.log1p(np.abs(means)))
            largest, others = packing.smallest_three(packing.unit_quats(field(rows, "quats")))
            kept = packing.to_bytes((others / SQRT2 + 0.5) * 255)
            sections.add("quats", np.concatenate([kept, (largest + MODE).astype(np.uint8)[:, None]], 1))
            sections.add("scales", np.clip(field(rows, "scales"), -MAX_LOG_SCALE, MAX_LOG_SCALE))
            sections.add("sh0", np.concatenate([field(rows, "sh0"), packing.sigmoid(field(rows, "opacities"))], 1))
            sections.add("shN", field(rows, "shN"))
            count += len(rows)
        width = math.ceil(math.sqrt(count) / 4) * 4
        if not 0 < width <= MAX_SIDE:
            raise FormatError(
                f"{path}: SOG's images hold 1 to {MAX_SIDE**2:,} Gaussians, not {count:,}: use --max-count"
            )
        with replacing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            _Sog(archive, sections, count, width).write(sh_degree, antialiased)
    return count


class _Sog:
    """The images of one file, in the order of their attributes."""

    def __init__(self, archive: zipfile.ZipFile, sections: Sections, count: int, width: int) -> None:
        self._archive, self._sections, self._count = archive, sections, count
        self._shape = (math.ceil(count / width / 4) * 4, width)

    def write(self, sh_degree: int, antialiased: bool) -> None:
        """All images, then meta.json."""
        meta: dict[str, Any] = {
            "version": 2,
            "asset": {"generator": f"tidegs {__version__}"},
            "count": self._count,
            "antialias": antialiased,
            "means": self._means(),
            "scales": self._coded("scales", "<f4", 3),
            "quats": self._quats(),
            "sh0": self._coded("sh0", "<f4", 4),
        }
        if sh_degree:
            meta["shN"] = self._rest(sh_degree)
        self._add(META, json.dumps(meta).encode())

    def _means(self) -> dict[str, Any]:
        logs = self._sections.array("means", "<f8", 3)
        low, high = logs.min(0), logs.max(0)
        side = np.where(high > low, high - low, 1)

        def steps(at: slice) -> np.ndarray:
            return np.floor((logs[at] - low) / side * 65535 + 0.5).astype(np.uint16)

        self._plane("means_l.webp", lambda at: steps(at) & 255)
        self._plane("means_u.webp", lambda at: steps(at) >> 8)
        return {"mins": low.tolist(), "maxs": high.tolist(), "files": ["means_l.webp", "means_u.webp"]}

    def _quats(self) -> dict[str, Any]:
        quats = self._sections.array("quats", "u1", 4)
        self._plane("quats.webp", lambda at: quats[at])
        return {"files": ["quats.webp"]}

    def _coded(self, name: str, dtype: str, columns: int) -> dict[str, Any]:
        """Three columns by a codebook; a fourth one is opacity."""
        values = self._sections.array(name, dtype, columns)
        codes = codebook(np.ascontiguousarray(values[:, :3]).reshape(-1))

        def pixels(at: slice) -> np.ndarray:
            return np.concatenate([nearest_code(codes, values[at, :3]), packing.to_bytes(values[at, 3:] * 255)], 1)

        self._plane(f"{name}.webp", pixels)
        return {"codebook": codes.astype(float).tolist(), "files": [f"{name}.webp"]}

    def _rest(self, sh_degree: int) -> dict[str, Any]:
        k = sh_rest_count(sh_degree)
        palette, labels = row_palette(self._sections.array("shN", "<f4", 3 * k))
        codes = codebook(palette.reshape(-1))
        rows = -(-len(palette) // PALETTE_WIDTH)
        image = np.zeros((rows * PALETTE_WIDTH, k, 4), np.uint8)
        image[..., 3] = 255
        image[: len(palette), :, :3] = nearest_code(codes, palette).reshape(-1, k, 3)
        self._add("shN_centroids.webp", _webp(image.reshape(rows, PALETTE_WIDTH * k, 4)))
        self._plane("shN_labels.webp", lambda at: np.stack([labels[at] & 255, labels[at] >> 8, labels[at] * 0], 1))
        files = ["shN_centroids.webp", "shN_labels.webp"]
        return {"count": len(palette), "bands": sh_degree, "codebook": codes.astype(float).tolist(), "files": files}

    def _plane(self, name: str, pixels: Callable[[slice], np.ndarray]) -> None:
        """An image of three or four channels, made part by part."""
        image = np.zeros((self._shape[0] * self._shape[1], 4), np.uint8)
        image[:, 3] = 255
        for at in range(0, self._count, ROWS):
            part = slice(at, min(at + ROWS, self._count))
            values = pixels(part)
            image[part, : values.shape[1]] = values
        self._add(name, _webp(image.reshape(*self._shape, 4)))

    def _add(self, name: str, data: bytes) -> None:
        self._archive.writestr(zipfile.ZipInfo(name, _DATE), data)


def _webp(image: np.ndarray) -> bytes:
    """Lossless, with the colours of transparent pixels kept."""
    out = io.BytesIO()
    Image.fromarray(image, "RGBA").save(out, "WEBP", lossless=True, exact=True, quality=50, method=3)
    return out.getvalue()
