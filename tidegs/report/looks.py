"""What someone looks at, and frames of it through the tiers: coarse while the camera moves, finer when it rests.

Invariant: a frame shows every block that its view needs, nearest first, up to as many rows as its size allows: so its
time and memory are bounded, whatever the scene.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tidegs.data.world import rotation_of
from tidegs.device.base import Device, RenderSettings, View
from tidegs.eval.frames import depth_to_rgb8, to_rgb8
from tidegs.residency.pipeline import Residency

Mode = Literal["colour", "depth"]
HEIGHTS = (120, 240, 480, 720, 1080)  # pixels of a frame, from coarse to fine
MOVING_SECONDS = 0.15  # a frame may take, while the camera moves
ROWS_A_LINE = 1 << 14  # rows of needed blocks for each line of a frame: 2 million in a coarse one, 17 in a fine one


@dataclass(frozen=True)
class Look:
    """A camera of a browser and what it asks for. OpenCV axes: x right, y down, z forward."""

    wxyz: tuple[float, float, float, float]  # camera to scene
    position: tuple[float, float, float]  # scene frame
    fov: float  # vertical, radians
    aspect: float  # width over height
    mode: Mode = "colour"
    sh_degree: int = 3


def view_at(look: Look, height: int) -> View:
    """The look as a pinhole view of `height` pixels."""
    width = max(16, round(height * look.aspect))
    to_camera = rotation_of(look.wxyz).T
    viewmat = np.eye(4)
    viewmat[:3, :3] = to_camera
    viewmat[:3, 3] = -to_camera @ np.asarray(look.position, np.float64)
    focal = 0.5 * height / math.tan(0.5 * look.fov)
    K = np.array([[focal, 0, 0.5 * width], [0, focal, 0.5 * height], [0, 0, 1]])
    return View(viewmat.astype(np.float32), K.astype(np.float32), width, height)


def quaternion(matrix: np.ndarray) -> tuple[float, float, float, float]:
    """wxyz of a rotation matrix [3, 3] (Bar-Itzhack 2000: the eigenvector of the greatest eigenvalue)."""
    m = np.asarray(matrix, np.float64)
    k = np.array(
        [
            [m[0, 0] - m[1, 1] - m[2, 2], 0, 0, 0],
            [m[1, 0] + m[0, 1], m[1, 1] - m[0, 0] - m[2, 2], 0, 0],
            [m[2, 0] + m[0, 2], m[2, 1] + m[1, 2], m[2, 2] - m[0, 0] - m[1, 1], 0],
            [m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1], m.trace()],
        ]
    )
    x, y, z, w = np.linalg.eigh(k / 3)[1][:, -1]
    return float(w), float(x), float(y), float(z)


class Painter:
    """Renders looks. All calls come from the thread that owns the residency."""

    def __init__(self, residency: Residency, device: Device, settings: RenderSettings) -> None:
        """`settings`: of the store, at its greatest SH degree."""
        self._residency, self._device, self._settings = residency, device, settings
        self._a_pixel = 1e-6  # seconds, as measured last
        self.cut_off = False  # far parts were left out of the last frame

    def first_height(self) -> int:
        """The finest height that can be expected to follow a moving camera."""
        fits = [h for h in HEIGHTS if h * h * 1.6 * self._a_pixel <= MOVING_SECONDS]
        return max(fits, default=HEIGHTS[0])

    def paint(self, look: Look, height: int, cancelled: Callable[[], bool] = lambda: False) -> np.ndarray | None:
        """uint8 [height, width, 3]; None where it was cancelled, which is asked between the parts of a frame."""
        view, depth = view_at(look, height), look.mode == "depth"
        settings = replace(self._settings, sh_degree=min(look.sh_degree, self._settings.sh_degree))
        begun = time.perf_counter()
        whole = settings
        settings = self._residency.within_reach(view, settings, ROWS_A_LINE * height)
        self.cut_off = settings is not whole
        frame = self._device.new_frame(view, depth)
        passes = self._residency.render([0], [view], settings)
        try:
            for one in passes:
                if one.first_of_camera:
                    self._device.begin(view, settings, frame)
                self._device.add(one.blocks)
                if one.last_of_camera:
                    self._device.finish(frame)
                self._residency.done(one, None)
                if not one.last_of_camera and cancelled():
                    return None
        finally:
            passes.close()  # type: ignore[attr-defined]  # a generator: its blocks are let go of at once
        self._a_pixel = (time.perf_counter() - begun) / (view.width * view.height)
        return depth_to_rgb8(frame) if depth else to_rgb8(frame)


def box_lines(lo: np.ndarray, hi: np.ndarray) -> np.ndarray:
    """The twelve edges of each box, float32 [12 n, 2, 3]; `lo`, `hi` [n, 3]."""
    corners = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)], np.float32)
    edges = [(a, b) for a in range(8) for b in range(a + 1, 8) if np.abs(corners[a] - corners[b]).sum() == 1]
    at = lo[:, None, :] + corners[None] * (hi - lo)[:, None, :]
    return at[:, edges, :].reshape(-1, 2, 3).astype(np.float32)
