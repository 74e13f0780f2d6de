"""Test renders beside the truth with error maps, small enough to be carried in the page.

Invariant: a picture costs at most a few tens of KiB, whatever the size of the test images.
"""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from PIL import Image

from tidegs.errors import SceneError
from tidegs.report.result import Comparison, RunData

MOST, WIDTH = 6, 480  # pictures, and pixels of each
ERROR_TOP = 0.25  # mean absolute error of a pixel (of 1) at the bright end of the map

# A dark-to-bright ramp whose lightness rises evenly (stops of our own): black, indigo, red, orange, pale yellow.
_STOPS = np.array([[6, 6, 16], [66, 22, 110], [178, 44, 92], [240, 120, 32], [252, 246, 170]], float)


def comparisons(run: RunData) -> list[dict[str, Any]]:
    """Up to MOST views of the newest evaluation, from the worst to the best PSNR, with data URIs of JPEGs. Raises
    SceneError where a picture cannot be read."""
    scores = _scores(run)
    ranked = sorted(run.comparisons, key=lambda c: _psnr(scores, c.index))
    count = min(MOST, len(ranked))
    chosen = [ranked[round(i * (len(ranked) - 1) / max(1, count - 1))] for i in range(count)]
    return [_one(c, scores) for c in chosen]


def _scores(run: RunData) -> list[tuple[str, dict[str, Any]]]:
    """(name, scores) in the order in which the comparisons are numbered."""
    if not run.comparisons:
        return []
    return list(run.evaluations.get(run.comparisons[0].step, {}).get("per_view", {}).items())


def _psnr(scores: list[tuple[str, dict[str, Any]]], index: int) -> float:
    return scores[index][1]["psnr"] if index < len(scores) else 0.0


def _one(found: Comparison, scores: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    truth, render = halves(found)
    name, score = scores[found.index] if found.index < len(scores) else (found.path.name, {})
    error = np.abs(truth.astype(np.float32) - render).mean(axis=2) / 255
    return {
        "name": name,
        "psnr": score.get("psnr"),
        "ssim": score.get("ssim"),
        "error": float(error.mean()),
        "truth": jpeg(_small(truth)),
        "render": jpeg(_small(render)),
        "map": jpeg(_small(ramp(error / ERROR_TOP))),
    }


def halves(found: Comparison) -> tuple[np.ndarray, np.ndarray]:
    """Truth and render, uint8 [height, width, 3]."""
    try:
        with Image.open(found.path) as opened:
            image = np.asarray(opened.convert("RGB"))
    except OSError as error:
        raise SceneError(f"{found.path}: cannot be read as an image ({error}): run tidegs eval again") from error
    width = image.shape[1] // 2
    return image[:, :width], image[:, width : 2 * width]


def _small(image: np.ndarray) -> np.ndarray:
    """At most WIDTH pixels wide."""
    height, width = image.shape[:2]
    scale = min(1.0, WIDTH / width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BOX))


def ramp(value: np.ndarray) -> np.ndarray:
    """Colours of values 0..1 (clamped), uint8 [..., 3]."""
    at = np.clip(np.nan_to_num(value), 0, 1) * (len(_STOPS) - 1)
    low = np.minimum(at.astype(int), len(_STOPS) - 2)
    part = (at - low)[..., None]
    return (_STOPS[low] * (1 - part) + _STOPS[low + 1] * part + 0.5).astype(np.uint8)


def jpeg(image: np.ndarray, quality: int = 80) -> str:
    """A data URI of uint8 [height, width, 3]."""
    return _uri(image, "jpeg", quality=quality)


def png(image: np.ndarray) -> str:
    """A data URI of uint8 [height, width, 3 or 4], lossless."""
    return _uri(image, "png", optimize=True)


def _uri(image: np.ndarray, kind: str, **options: Any) -> str:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, kind.upper(), **options)
    return f"data:image/{kind};base64," + base64.b64encode(buffer.getvalue()).decode()
