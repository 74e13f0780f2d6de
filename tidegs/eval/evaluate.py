"""Quality of a result on its test split, with the protocol beside the numbers.

Invariant: metrics are taken on the float render clamped to [0, 1] against the undistorted image, one image at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tidegs.data.images import Loaded
from tidegs.data.scene import Scene
from tidegs.eval.frames import Rendered, to_rgb8
from tidegs.eval.metrics import PSNR_TEXT, SSIM_TEXT, Lpips, colour_matched, psnr, ssim
from tidegs.eval.protocol import Protocol


@dataclass(frozen=True)
class ImageScore:
    """One test image."""

    name: str
    psnr: float
    ssim: float
    lpips: float | None
    cc_psnr: float | None = None  # PSNR after the best affine colour transform


@dataclass(frozen=True)
class Evaluation:
    """All scores of a split."""

    images: list[ImageScore]
    protocol: Protocol
    num_gaussians: int
    seconds_per_image: float

    def mean(self, name: str) -> float | None:
        """Mean of "psnr", "ssim" or "lpips" over the images; None where there is none."""
        values = [getattr(s, name) for s in self.images]
        return None if not values or None in values else float(np.mean(values))

    def as_json(self) -> dict[str, Any]:
        """For stats/val_stepNNNN.json: gsplat's keys, then ours."""
        matched = self.mean("cc_psnr")
        return {
            "psnr": self.mean("psnr"),
            "ssim": self.mean("ssim"),
            "lpips": self.mean("lpips"),
            **({} if matched is None else {"cc_psnr": matched}),
            "ellipse_time": self.seconds_per_image,
            "num_GS": self.num_gaussians,
            "protocol": self.protocol.as_json(),
            "per_view": {s.name: {"psnr": s.psnr, "ssim": s.ssim, "lpips": s.lpips} for s in self.images},
        }


def evaluate(
    scene: Scene,
    indices: tuple[int, ...],
    rendered: Iterable[Rendered],
    target: Callable[[int], Loaded],
    num_gaussians: int,
    factor: int,
    test_every: int,
    save: Callable[[int], Path] | None = None,
    match_colours: bool = False,
) -> Evaluation:
    """Scores `rendered` (frames of scene.cameras[i], i in `indices`, in order) against `target(i)` (uint8 [H, W, 3],
    and a mask or None: pixels where it is 0 do not count, and an image without others is left out).

    `match_colours` also gives PSNR after an affine colour transform of each render (gsplat's is quadratic).
    `save(k)` names the file of the k-th comparison (truth left, render right, 8 bit PNG); None saves none.
    """
    lpips = Lpips()
    scores: list[ImageScore] = []
    masked = 0
    begun, waited = time.monotonic(), 0.0
    for k, one in enumerate(rendered):
        camera, (truth, mask) = scene.cameras[one.index], target(one.index)
        paused = time.monotonic()
        image = np.ascontiguousarray(np.clip(one.frame.image, 0, 1).transpose(1, 2, 0))
        reference = truth.astype(np.float32) / 255
        if mask is not None:
            masked += 1
            reference[mask == 0] = image[mask == 0]  # as in the loss; what is under the mask is not seen
        if mask is None or mask.any():
            figures = psnr(image, reference, mask), ssim(image, reference, mask), lpips(image, reference)
            matched = psnr(colour_matched(image, reference, mask), reference, mask) if match_colours else None
            scores.append(ImageScore(camera.name, *figures, matched))
        if save:
            save_comparison(save(k), truth, to_rgb8(one.frame))
        waited += time.monotonic() - paused
    spent = time.monotonic() - begun - waited
    protocol = _protocol(scene, indices, factor, test_every, lpips, masked)
    return Evaluation(scores, protocol, num_gaussians, spent / max(1, len(scores)))


def _protocol(
    scene: Scene, indices: tuple[int, ...], factor: int, test_every: int, lpips: Lpips, masked: int
) -> Protocol:
    left_out = f"; pixels masked out of {masked} images do not count" if masked else ""
    return Protocol(
        split=f"every {test_every}th image by name" if indices == scene.test else "given images",
        images=len(indices),
        width=max((scene.cameras[i].width for i in indices), default=0),
        height=max((scene.cameras[i].height for i in indices), default=0),
        data_factor=factor,
        renders="float32, clamped to [0, 1]",
        psnr=PSNR_TEXT + left_out,
        ssim=SSIM_TEXT + left_out,
        lpips=lpips.text,
    )


def save_comparison(path: Path, truth: np.ndarray, render: np.ndarray) -> None:
    """Truth and render side by side, as gsplat saves them; uint8 [H, W, 3] each."""
    save_png(path, np.concatenate([truth, render], axis=1))


def save_png(path: Path, image: np.ndarray) -> None:
    """Writes uint8 [H, W, 3] as PNG, under a temporary name until complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    Image.fromarray(image).save(temporary, format="PNG", compress_level=3)
    temporary.replace(path)
