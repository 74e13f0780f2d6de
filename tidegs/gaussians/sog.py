"""SOG version 2 (PlayCanvas): attributes as lossless WebP images beside a meta.json, in a folder or a zip (`.sog`).

Invariant: values are found as meta.json says; each way in which a file is wrong is one FormatError. Memory: the images,
16 to 28 bytes a Gaussian, as WebP can only be unpacked whole.
"""

from __future__ import annotations

import io
import json
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tidegs.errors import FormatError
from tidegs.gaussians import packing
from tidegs.gaussians.layout import sh_rest_count
from tidegs.gaussians.packing import SQRT2, field

ROWS = 1 << 16
META = "meta.json"
MODE = 252  # of the quats' fourth byte: the index of the greatest component is added
PALETTE_WIDTH = 64  # entries in a row of the image of centroids


@dataclass(frozen=True)
class SogFile:
    """A SOG whose meta.json was read and checked."""

    path: Path
    count: int
    sh_degree: int
    antialiased: bool | None
    _meta: dict[str, Any]
    format = "sog"

    def chunks(self, rows: int = ROWS) -> Iterator[np.ndarray]:
        """Rows float32 [at most `rows`, 14 + 3 K] in file order. Raises FormatError."""
        low, high = self._image("means", 0, 3), self._image("means", 1, 3)
        quats, scales, sh0 = self._image("quats", 0, 4), self._image("scales", 0, 3), self._image("sh0", 0, 4)
        palette = self._palette() if self.sh_degree else None
        labels = self._image("shN", 1, 2) if self.sh_degree else None
        if (quats[:, 3] < MODE).any():
            raise FormatError(f"{self.path}: its quats have a mode under {MODE}, which version 2 does not have")
        size_codes, colour_codes = self._codebook("scales"), self._codebook("sh0")
        least, most = (np.array(self._meta["means"][end], np.float64) for end in ("mins", "maxs"))
        for at in range(0, self.count, rows):
            part = slice(at, min(at + rows, self.count))
            out = packing.empty_rows(part.stop - at, self.sh_degree)
            unit = (low[part] + (high[part].astype(np.int32) << 8)) / 65535
            logs = least * (1 - unit) + most * unit
            field(out, "means")[:] = np.sign(logs) * np.expm1(np.abs(logs))
            others = (quats[part, :3] / 255 - 0.5) * SQRT2
            field(out, "quats")[:] = packing.from_smallest_three(quats[part, 3].astype(np.int64) - MODE, others)
            field(out, "scales")[:] = size_codes[scales[part]]
            field(out, "sh0")[:] = colour_codes[sh0[part, :3]]
            field(out, "opacities")[:] = packing.logit(sh0[part, 3:] / 255)
            if palette is not None and labels is not None:
                field(out, "shN")[:] = palette[labels[part, 0] + (labels[part, 1].astype(np.int64) << 8)]
            yield out

    def _image(self, name: str, which: int, channels: int) -> np.ndarray:
        """The first `count` pixels, uint8 [count, channels]."""
        pixels = self._pixels(name, which).reshape(-1, 4)
        if len(pixels) < self.count:
            raise FormatError(f"{self.path}: an image of {name} has {len(pixels)} pixels for {self.count} Gaussians")
        return pixels[: self.count, :channels]

    def _pixels(self, name: str, which: int) -> np.ndarray:
        file = self._meta[name]["files"][which]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)
                with Image.open(io.BytesIO(_read(self.path)(file))) as image:
                    return np.asarray(image.convert("RGBA"))
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            raise FormatError(f"{self.path}: its image {file!r} cannot be read: {error}") from None

    def _codebook(self, name: str) -> np.ndarray:
        return np.array(self._meta[name]["codebook"], np.float32)

    def _palette(self) -> np.ndarray:
        """Rows float32 [65536, 3 K]; those behind its end are zero."""
        k = sh_rest_count(self.sh_degree)
        pixels = self._pixels("shN", 0)
        if pixels.shape[1] != PALETTE_WIDTH * k:
            raise FormatError(
                f"{self.path}: the image of shN's centroids is {pixels.shape[1]} wide, not {PALETTE_WIDTH * k}"
            )
        codes = self._codebook("shN")[pixels.reshape(-1, k, 4)[..., :3]].reshape(-1, 3 * k)
        out = np.zeros((1 << 16, 3 * k), np.float32)
        count = min(int(self._meta["shN"]["count"]), len(codes), len(out))
        out[:count] = codes[:count]
        return out


def open_sog(path: Path) -> SogFile:
    """Opens a .sog, a folder with a meta.json, or a meta.json. Raises FormatError."""
    read = _read(path)
    try:
        meta = json.loads(read(META))
    except ValueError as error:
        raise FormatError(f"{path}: its {META} is no JSON: {error}") from None
    version = meta.get("version") if isinstance(meta, dict) else None
    if version != 2:
        raise FormatError(f"{path}: its {META} is of SOG version {version or 1}, and only version 2 is read here")
    try:
        count, rest = int(meta["count"]), meta.get("shN")
        degree = int(rest["bands"]) if rest else 0
        finite = [*meta["means"]["mins"], *meta["means"]["maxs"]]
        for name in ("scales", "sh0", *(["shN"] if degree else [])):
            if len(meta[name]["codebook"]) != 256:
                raise ValueError(f"the codebook of {name} has {len(meta[name]['codebook'])} values, not 256")
            finite += meta[name]["codebook"]
        files = [(name, 2 if name in ("means", "shN") else 1) for name in ("means", "quats", "scales", "sh0")]
        if any(len(meta[name]["files"]) < n for name, n in files + ([("shN", 2)] if degree else [])):
            raise ValueError("an attribute names too few files")
        if count < 0 or not 0 <= degree <= 3 or len(finite) < 6 or not np.isfinite(np.array(finite, float)).all():
            raise ValueError("a number in it is out of range")
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{path}: its {META} is not as SOG version 2 says: {error!r}") from None
    return SogFile(path, count, degree, meta.get("antialias"), meta)


def _read(path: Path) -> Callable[[str], bytes]:
    """Reads a file of the set by its name. Raises FormatError."""

    def from_zip(name: str) -> bytes:
        with zipfile.ZipFile(path) as archive:
            return archive.read(name)

    def from_folder(name: str) -> bytes:
        folder = path if path.is_dir() else path.parent
        return (folder / Path(name).name).read_bytes()

    one = from_folder if path.is_dir() or path.name == META else from_zip

    def read(name: str) -> bytes:
        try:
            return one(name)
        except KeyError:
            raise FormatError(f"{path}: the file {name!r} is not in it: export it again") from None
        except zipfile.BadZipFile as error:
            raise FormatError(f"{path}: this is no zip, or a damaged one ({error}): export it again") from None
        except OSError as error:
            raise FormatError(f"{path}: {name!r} cannot be read: {error.strerror}") from None

    return read
