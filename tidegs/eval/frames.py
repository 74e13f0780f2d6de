"""Rendering of views through the tiers, for evaluation and for people.

Invariant: a frame is handed out only when every region of it has been rendered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tidegs.device.base import Device, Frame, RenderSettings, View
from tidegs.residency.pipeline import Residency


@dataclass(frozen=True)
class Rendered:
    """One complete view, by its place in the list of views."""

    index: int
    frame: Frame


def render_views(
    residency: Residency,
    device: Device,
    views: Sequence[View],
    indices: Sequence[int],
    settings: RenderSettings,
    depth: bool = False,
) -> Iterator[Rendered]:
    """Renders views[i] for i in `indices`, in order; a frame is valid until the next one is asked for."""
    frame: Frame | None = None
    size = (0, 0)
    for one in residency.render(indices, views):
        view = views[one.camera]
        if frame is None or size != (view.width, view.height):
            frame, size = device.new_frame(view, depth), (view.width, view.height)
        if one.first_of_camera:
            device.begin(view, settings, frame)
        device.add(one.blocks)
        if one.last_of_camera:
            device.finish(frame)
        residency.done(one, None)
        if one.last_of_camera:
            yield Rendered(one.camera, frame)


def to_rgb8(frame: Frame) -> np.ndarray:
    """uint8 [height, width, 3], rounded."""
    image = np.clip(frame.image, 0, 1) * 255 + 0.5
    return np.ascontiguousarray(image.astype(np.uint8).transpose(1, 2, 0))


def depth_to_rgb8(frame: Frame) -> np.ndarray:
    """Expected depth (accumulated over alpha) as grey, near bright, between the 1st and 99th percentile."""
    if frame.depth is None:
        raise ValueError("the frame was rendered without depth")
    seen = frame.alpha > 0.5
    depth = frame.depth / np.maximum(frame.alpha, 1e-6)
    low, high = np.percentile(depth[seen], [1, 99]) if seen.any() else (0.0, 1.0)
    grey = np.where(seen, 1 - np.clip((depth - low) / max(high - low, 1e-12), 0, 1), 0)
    return np.repeat((grey * 255 + 0.5).astype(np.uint8)[:, :, None], 3, axis=2)
