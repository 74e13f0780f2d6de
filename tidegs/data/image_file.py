"""Decodes image files to 8-bit RGB and alpha. Invariant: stored pixels are returned as they lie in the file (EXIF
orientation is ignored, as COLMAP does), and a damaged file is an ImageError, never a part of an image."""

from __future__ import annotations

import warnings
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import numpy as np
import PIL.Image
import simplejpeg

from tidegs.errors import ImageError

# Pillow's limit guards servers against strangers' uploads; here the user's own aerial photos exceed it.
PIL.Image.MAX_IMAGE_PIXELS = None

_JPEG = b"\xff\xd8\xff"
_TIFF_WIDTH, _TIFF_LENGTH, _ORIENTATION = 256, 257, 274  # TIFF 6.0 tags
_TURN_BACK = {  # orientation -> what undoes its correction
    2: PIL.Image.Transpose.FLIP_LEFT_RIGHT,
    3: PIL.Image.Transpose.ROTATE_180,
    4: PIL.Image.Transpose.FLIP_TOP_BOTTOM,
    5: PIL.Image.Transpose.TRANSPOSE,
    6: PIL.Image.Transpose.ROTATE_90,
    7: PIL.Image.Transpose.TRANSVERSE,
    8: PIL.Image.Transpose.ROTATE_270,
}


def read_size(path: Path) -> tuple[int, int]:
    """(width, height) from the header alone. Raises ImageError."""
    try:
        with open(path, "rb") as f:
            return _jpeg_size(f.read(65536)) or _pillow_size(f, path)
    except OSError as error:
        raise ImageError(
            f"{path}: the image cannot be read ({error.strerror or error}); check file and rights"
        ) from None


def _pillow_size(f: BinaryIO, path: Path) -> tuple[int, int]:
    try:
        f.seek(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = PIL.Image.open(f)
            tags = getattr(image, "tag_v2", None)  # TIFF: Pillow turns it, so its size is not that of stored pixels
            return (tags[_TIFF_WIDTH], tags[_TIFF_LENGTH]) if tags else image.size
    except Exception as error:
        raise ImageError(f"{path}: {_why(error)}; replace the file or remove it from the scene") from None


def _jpeg_size(head: bytes) -> tuple[int, int] | None:
    """The size in a JPEG's frame header (ITU T.81, B.2.2), or None where the head does not hold one."""
    if not head.startswith(_JPEG):
        return None
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        marker = head[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = int.from_bytes(head[at + 5 : at + 7], "big"), int.from_bytes(head[at + 7 : at + 9], "big")
            return (width, height) if width and height else None
        at += 1 if marker == 0xFF else 2 + int.from_bytes(head[at + 2 : at + 4], "big")
    return None


def decode(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    """The file as (rgb uint8 [h, w, 3], alpha uint8 [h, w] or None). Grey is repeated, 16 bits are reduced to 8 by
    their high byte, palettes and CMYK are converted. Raises ImageError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ImageError(
            f"{path}: the image cannot be read ({error.strerror or error}); check file and rights"
        ) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _decode(data)
    except Exception as error:
        raise ImageError(f"{path}: {_why(error)}; replace the file or remove it from the scene") from None


def _why(error: Exception) -> str:
    text = str(error).split("\n")[0].lower()
    if isinstance(error, PIL.UnidentifiedImageError):
        return "the file is empty or not an image of a known format"
    if any(
        word in text
        for word in ("truncat", "premature", "end of file", "ended", "broken", "incomplete", "tjdecompress")
    ):
        return "the image is truncated or damaged"
    return f"the image cannot be decoded ({text or type(error).__name__})"


def _decode(data: bytes) -> tuple[np.ndarray, np.ndarray | None]:
    if data.startswith(_JPEG):
        try:
            _, _, space, _ = simplejpeg.decode_jpeg_header(data, strict=True)
            if space in ("YCbCr", "RGB", "Gray"):
                return simplejpeg.decode_jpeg(data, colorspace="RGB", strict=True), None
        except ValueError as error:
            if "extraneous" not in str(error):  # harmless, but strict; Pillow tolerates it and still sees truncation
                raise
    with PIL.Image.open(BytesIO(data)) as image:
        return _from_pillow(_as_stored(image))


def _as_stored(image: PIL.Image.Image) -> PIL.Image.Image:
    """Loads, and takes back the turn that Pillow gives to TIFF files (and to no other format) by their orientation."""
    orientation = getattr(image, "tag_v2", {}).get(_ORIENTATION, 1)
    image.load()
    turned = orientation in _TURN_BACK and _ORIENTATION not in getattr(image, "tag_v2", {})
    return image.transpose(_TURN_BACK[orientation]) if turned else image


def _from_pillow(image: PIL.Image.Image) -> tuple[np.ndarray, np.ndarray | None]:
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        rgba = np.asarray(image.convert("RGBA"))
        return np.ascontiguousarray(rgba[..., :3]), np.ascontiguousarray(rgba[..., 3])
    if image.mode == "I" or image.mode.startswith("I;16"):  # 16-bit grey; RGB of 16 bits is reduced alike by Pillow
        high = (np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8)
        return np.repeat(high[..., None], 3, axis=2), None
    if image.mode == "F":
        raise ValueError("it holds floating-point pixels; convert it to 8 bits")
    return np.array(image.convert("RGB")), None
