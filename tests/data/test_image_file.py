"""Decoding: every kind of file gives its stored pixels or one sentence."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from tests.data import build
from tidegs.data.image_file import decode, read_size
from tidegs.errors import ImageError

RGB = build.picture(1)
GREY = RGB[..., 0]
ALPHA = (np.arange(48 * 36).reshape(36, 48) % 256).astype(np.uint8)


def _save(path: Path, image: Image.Image, kind: str, **options: object) -> Path:
    image.save(path, kind, **options)
    return path


@pytest.mark.parametrize(("suffix", "kind"), [(".png", "PNG"), (".tif", "TIFF"), (".bmp", "BMP"), (".ppm", "PPM")])
def test_lossless_files_give_their_pixels(tmp_path: Path, suffix: str, kind: str) -> None:
    path = _save(tmp_path / f"a{suffix}", Image.fromarray(RGB), kind)
    assert read_size(path) == (48, 36)
    rgb, alpha = decode(path)
    assert np.array_equal(rgb, RGB)
    assert alpha is None


@pytest.mark.parametrize(("mode", "kind"), [("RGB", "JPEG"), ("L", "JPEG"), ("CMYK", "JPEG"), ("RGB", "WEBP")])
def test_lossy_files_give_what_pillow_gives(tmp_path: Path, mode: str, kind: str) -> None:
    path = _save(tmp_path / "a", Image.fromarray(RGB).convert(mode), kind, quality=92)
    assert read_size(path) == (48, 36)
    rgb, _ = decode(path)
    assert np.array_equal(rgb, np.asarray(Image.open(path).convert("RGB")))
    expected = RGB if mode != "L" else np.repeat(np.asarray(Image.fromarray(RGB).convert("L"))[..., None], 3, 2)
    assert np.abs(rgb.astype(int) - expected).mean() < 4


def test_grey_is_repeated(tmp_path: Path) -> None:
    rgb, alpha = decode(_save(tmp_path / "a.png", Image.fromarray(GREY), "PNG"))
    assert np.array_equal(rgb, np.repeat(GREY[..., None], 3, axis=2))
    assert alpha is None


@pytest.mark.parametrize("suffix", [".png", ".tif"])
@pytest.mark.parametrize("channels", [1, 3])
def test_sixteen_bits_keep_the_high_byte(tmp_path: Path, suffix: str, channels: int) -> None:
    wide = (RGB[..., ::-1] if channels == 3 else GREY).astype(np.uint16) * 256 + 77
    cv2.imwrite(str(tmp_path / f"a{suffix}"), wide)
    rgb, _ = decode(tmp_path / f"a{suffix}")
    assert np.array_equal(rgb, RGB if channels == 3 else np.repeat(GREY[..., None], 3, axis=2))


def test_palettes_are_looked_up(tmp_path: Path) -> None:
    image = Image.fromarray(RGB).quantize(32)
    rgb, alpha = decode(_save(tmp_path / "a.png", image, "PNG"))
    assert np.array_equal(rgb, np.asarray(image.convert("RGB")))
    assert alpha is None
    rgb, alpha = decode(_save(tmp_path / "b.png", image, "PNG", transparency=3))
    assert alpha is not None
    assert np.array_equal(alpha, np.where(np.asarray(image) == 3, 0, 255))


@pytest.mark.parametrize(("suffix", "kind"), [(".png", "PNG"), (".tif", "TIFF"), (".webp", "WEBP")])
def test_alpha_is_given_beside_untouched_colour(tmp_path: Path, suffix: str, kind: str) -> None:
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    path = _save(tmp_path / f"a{suffix}", Image.fromarray(np.dstack([RGB, ALPHA])), kind, **options)
    rgb, alpha = decode(path)
    assert np.array_equal(rgb, RGB)
    assert alpha is not None
    assert np.array_equal(alpha, ALPHA)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_ignored(tmp_path: Path, kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = _save(tmp_path / "a", Image.fromarray(RGB), kind, exif=exif, quality=95)
    assert read_size(path) == (48, 36)
    rgb, _ = decode(path)
    assert rgb.shape == (36, 48, 3)
    assert np.abs(rgb.astype(int) - RGB).mean() < 4


def test_the_size_is_found_behind_long_headers(tmp_path: Path) -> None:
    path = _save(tmp_path / "a.jpg", Image.fromarray(RGB), "JPEG", icc_profile=b"x" * 100_000, comment=b"y" * 60_000)
    assert read_size(path) == (48, 36)
    assert decode(path)[0].shape == (36, 48, 3)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP", "BMP"])
def test_truncated_files_are_errors_at_every_length(tmp_path: Path, kind: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (36, 48, 3)).astype(np.uint8)
    path = _save(tmp_path / "a", Image.fromarray(noise), kind)
    whole = path.read_bytes()
    end = {"PNG": 12, "TIFF": 200, "BMP": 4}.get(kind, 0)  # without its closing chunk a file may still be whole
    for cut in range(0, len(whole) - end, max(1, len(whole) // 60)):
        path.write_bytes(whole[:cut])
        with pytest.raises(ImageError) as caught:
            decode(path)
        assert str(caught.value).startswith(f"{path}: the ")
        assert "\n" not in str(caught.value)


def test_what_is_no_image_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    for content in (b"", b"hello", b"\xff\xd8\xff"):
        path.write_bytes(content)
        for read in (read_size, decode):
            with pytest.raises(ImageError, match=r"a\.jpg: the .*replace the file"):
                read(path)
    for read in (read_size, decode):
        with pytest.raises(ImageError, match=r"b\.jpg: the image cannot be read \(No such file"):
            read(tmp_path / "b.jpg")


def test_float_pixels_are_refused_by_name(tmp_path: Path) -> None:
    path = _save(tmp_path / "a.tif", Image.fromarray(GREY.astype(np.float32)), "TIFF")
    with pytest.raises(ImageError, match="floating-point pixels; convert it to 8 bits"):
        decode(path)


def test_stray_bytes_inside_a_jpeg_are_tolerated(tmp_path: Path) -> None:
    path = _save(tmp_path / "a.jpg", Image.fromarray(RGB), "JPEG", quality=92)
    data = path.read_bytes()
    path.write_bytes(data[:-2] + b"\x00\x11" + data[-2:])
    assert np.array_equal(decode(path)[0], np.asarray(Image.open(_write(tmp_path / "b.jpg", data))))


def _write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path
