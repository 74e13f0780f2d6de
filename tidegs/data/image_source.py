"""How one image file becomes the pinhole image of its camera: decode, downscale by area, undistort. Invariant: the
result depends on the file and the source alone, so any thread that loads it gets the same bytes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from tidegs.data.colmap_model import ColmapCamera
from tidegs.data.distortion_map import MapCache
from tidegs.data.image_file import decode
from tidegs.data.undistort import is_distorted, pinhole_of
from tidegs.errors import ImageError, SceneError

cv2.setNumThreads(1)  # images are loaded by several threads of ours


@dataclass(frozen=True)
class ImageSource:
    """A file and the two cameras of it: as stored and scaled, and as trained on."""

    path: Path
    file_size: tuple[int, int]  # width, height as its header states
    camera: ColmapCamera  # of the downscaled, still distorted image
    pinhole: ColmapCamera  # of the result; equal to `camera` in effect where `distorted` is not set
    distorted: bool
    mask: Path | None = None  # an image whose pixels above 127 are kept
    invert_mask: bool = False
    background: tuple[int, int, int] | None = None  # what alpha is blended over, instead of being a mask

    def load(self, maps: MapCache) -> tuple[np.ndarray, np.ndarray | None]:
        """(rgb uint8 [h, w, 3], mask uint8 [h, w] or None). The mask is 255 where a pixel counts: where the alpha of
        the file and the mask file are above 127. Raises ImageError."""
        rgb, keep = decode(self.path)
        height, width = rgb.shape[:2]
        if (width, height) != self.file_size:
            raise ImageError(
                f"{self.path}: the image is {width}x{height}, but was {self.file_size[0]}x{self.file_size[1]} when the "
                "scene was opened; leave the images as they are while tidegs runs"
            )
        if keep is not None and self.background is not None:
            rgb, keep = _blend(rgb, keep, self.background), None
        if self.mask is not None:
            given = _load_mask(self.mask, self.file_size, self.invert_mask)
            keep = given if keep is None else np.minimum(keep, given)
        rgb = self._to_pinhole(rgb, maps)
        if keep is not None:
            keep = np.where(self._to_pinhole(keep, maps) > 127, np.uint8(255), np.uint8(0))
        return rgb, keep

    def _to_pinhole(self, pixels: np.ndarray, maps: MapCache) -> np.ndarray:
        size = (self.camera.width, self.camera.height)
        if size != (pixels.shape[1], pixels.shape[0]):
            pixels = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
        if self.distorted:
            pixels = cv2.remap(pixels, *maps.get(self.camera, self.pinhole), cv2.INTER_LINEAR)
        return pixels


def make_source(
    where: Path,
    path: Path,
    file_size: tuple[int, int],
    camera: ColmapCamera,
    mask: Path | None = None,
    invert_mask: bool = False,
    background: tuple[int, int, int] | None = None,
) -> ImageSource:
    """The source of a file whose downscaled image is that of `camera`, which the file `where` states. Raises
    SceneError where the camera has no pinhole equivalent."""
    try:
        pinhole = pinhole_of(camera)
    except SceneError as error:
        raise SceneError(f"{where}: {error}") from None
    return ImageSource(path, file_size, camera, pinhole, is_distorted(camera), mask, invert_mask, background)


def _blend(rgb: np.ndarray, alpha: np.ndarray, background: tuple[int, int, int]) -> np.ndarray:
    a = alpha[..., None].astype(np.uint16)
    return ((rgb * a + np.array(background, np.uint16) * (255 - a) + 127) // 255).astype(np.uint8)


def _load_mask(path: Path, size: tuple[int, int], invert: bool) -> np.ndarray:
    rgb, alpha = decode(path)
    mask = rgb[..., 0] if alpha is None else np.minimum(rgb[..., 0], alpha)
    if (mask.shape[1], mask.shape[0]) != size:
        mask = cv2.resize(mask, size, interpolation=cv2.INTER_AREA if mask.shape[1] > size[0] else cv2.INTER_NEAREST)
    return ~mask if invert else mask
