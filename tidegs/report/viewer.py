"""Looking at a store of any size in the browser (viser): frames, camera frusta, block bounds, SH and depth modes.

Invariant: browsers only ask; frames are rendered on the thread that calls `serve` or `between_steps`.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidegs.device.base import View
from tidegs.errors import ConfigError
from tidegs.report.looks import HEIGHTS, Look, Painter, box_lines, quaternion
from tidegs.report.space import up_direction

DEFAULT_PORT, LOCAL = 8080, "127.0.0.1"
_MOST_FRUSTA, _MOST_BOXES = 300, 2000
_CUT_OFF = "The far parts of this view are left out: come closer, or let the camera rest."
_TRAINING_SHARE = 0.2  # of the time that frames may take from training


@dataclass
class _Client:
    """What one browser wants to see, and how fine it has been shown."""

    look: Look
    shown: int = -1  # index into HEIGHTS of the last frame of this look


class Viewer:
    """A viser server and what it shows."""

    def __init__(
        self, painter: Painter, views: list[View], table: np.ndarray, sh_degree: int, port: int, host: str = LOCAL
    ) -> None:
        """`views`: cameras to draw and to start from; `table`: of the store; `host`: the address to listen on, by
        default this machine's own browsers only. Raises ConfigError."""
        self._painter, self._views = painter, views
        self._changed = threading.Condition()
        self._clients: dict[int, _Client] = {}
        self._spent = 0.0  # seconds of frames rendered between steps
        self._since = time.monotonic()
        self._up = up_direction(views, table) if views else np.array([0.0, 0.0, 1.0])
        self._server = _open(host, port)
        self._middle, self._size = _place(views, table)
        self._server.scene.set_up_direction(tuple(self._up))
        self._controls(sh_degree)
        self._overlays(table)
        self._server.on_client_connect(self._connected)
        self._server.on_client_disconnect(self._left)

    @property
    def address(self) -> str:
        return f"http://localhost:{self._server.get_port()}"

    def serve(self, running: Callable[[], bool] = lambda: True) -> None:
        """Renders what browsers ask for until Ctrl-C, or while `running()`."""
        while running():
            if not self._paint_one(len(HEIGHTS)):
                with self._changed:
                    self._changed.wait(timeout=0.2)

    def between_steps(self) -> None:
        """Renders one frame of a training run, if a browser waits for one and frames took little time so far."""
        if self._spent <= _TRAINING_SHARE * (time.monotonic() - self._since):
            begun = time.monotonic()
            if self._paint_one(len(HEIGHTS) - 2):
                self._spent += time.monotonic() - begun

    def close(self) -> None:
        self._server.stop()

    def _paint_one(self, most: int) -> bool:
        """Renders the next frame of the browser that has seen least; False where all have seen enough."""
        with self._changed:
            waiting = {k: c for k, c in self._clients.items() if c.shown + 1 < most}
            if not waiting:
                return False
            key = min(waiting, key=lambda k: waiting[k].shown)
            client, look = self._clients[key], self._clients[key].look
            moving = client.shown < 0
            level = HEIGHTS.index(self._painter.first_height()) if moving else client.shown + 1
            level = min(level, most - 1)
        picture = self._painter.paint(look, HEIGHTS[level], lambda: not moving and client.look is not look)
        if picture is not None:
            self._show(key, picture)
            with self._changed:
                if client.look is look:
                    client.shown = level
        return True

    def _show(self, key: int, picture: np.ndarray) -> None:
        handle = self._server.get_clients().get(key)
        if handle is not None:
            handle.scene.set_background_image(picture, format="jpeg", jpeg_quality=85)
            self._note.content = _CUT_OFF if self._painter.cut_off else ""

    # -- browsers, on viser's threads ---------------------------------------------------------------------------------

    def _connected(self, handle: Any) -> None:
        place, target = self._middle + np.array([0.0, -1.2, 0.8]) * self._size, self._middle
        if self._views:  # from the first camera, as it looks, about as far as the middle is
            first = self._views[0].viewmat.astype(np.float64)
            place = -first[:3, :3].T @ first[:3, 3]
            ahead = float(first[2, :3] @ self._middle + first[2, 3])
            target = place + first[2, :3] * (ahead if ahead > 0 else 0.2 * self._size)
        handle.camera.up_direction = tuple(self._up)
        handle.camera.position, handle.camera.look_at = tuple(place), tuple(target)
        handle.camera.on_update(lambda camera: self._moved(handle.client_id, camera))
        self._moved(handle.client_id, handle.camera)

    def _left(self, handle: Any) -> None:
        with self._changed:
            self._clients.pop(handle.client_id, None)

    def _moved(self, key: int, camera: Any) -> None:
        look = Look(
            tuple(map(float, camera.wxyz)),  # type: ignore[arg-type]
            tuple(map(float, camera.position)),  # type: ignore[arg-type]
            float(camera.fov),
            float(camera.aspect),
            "depth" if self._mode.value == "depth" else "colour",
            int(self._degree.value),
        )
        with self._changed:
            known = self._clients.get(key)
            if known is None:
                self._clients[key] = _Client(look)
            elif known.look != look:
                known.look, known.shown = look, -1
            self._changed.notify_all()

    def _asked(self, _: Any) -> None:
        """A control has changed: all browsers are shown anew."""
        for key, handle in self._server.get_clients().items():
            self._moved(key, handle.camera)

    # -- what is drawn over the frames --------------------------------------------------------------------------------

    def _controls(self, sh_degree: int) -> None:
        gui = self._server.gui
        self._mode = gui.add_dropdown("show", ("colour", "depth"))
        self._degree = gui.add_slider("SH degree", min=0, max=max(sh_degree, 1), step=1, initial_value=sh_degree)
        self._frusta = gui.add_checkbox("cameras", initial_value=False)
        self._boxes = gui.add_checkbox("blocks", initial_value=False)
        self._note = gui.add_markdown("")
        for control in (self._mode, self._degree):
            control.on_update(self._asked)

    def _overlays(self, table: np.ndarray) -> None:
        scene = self._server.scene
        drawn = []
        for i in _spread(len(self._views), _MOST_FRUSTA):
            view = self._views[i]
            to_scene = view.viewmat[:3, :3].T.astype(np.float64)
            drawn.append(
                scene.add_camera_frustum(
                    f"/cameras/{i}",
                    fov=2 * math.atan(0.5 * view.height / float(view.K[1, 1])),
                    aspect=view.width / view.height,
                    scale=0.02 * self._size,
                    thickness=1.5,
                    thickness_units="screen",
                    color=(240, 150, 40),
                    wxyz=quaternion(to_scene),
                    position=tuple(-to_scene @ view.viewmat[:3, 3]),
                    visible=False,
                )
            )
        self._frusta.on_update(lambda _: _set_visible(drawn, self._frusta.value))
        used = table[table["count"] > 0]
        used = used[_spread(len(used), _MOST_BOXES)]
        boxes = scene.add_line_segments(
            "/blocks", box_lines(used["lo"], used["hi"]), (90, 160, 255), thickness=1.5, thickness_units="screen",
            visible=False,
        )  # fmt: skip
        self._boxes.on_update(lambda _: _set_visible([boxes], self._boxes.value))


def _set_visible(handles: list[Any], value: bool) -> None:
    for handle in handles:
        handle.visible = value


def _spread(count: int, most: int) -> np.ndarray:
    """Up to `most` indices, evenly spread over `count`."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(int)) if count else np.empty(0, int)


def _place(views: list[View], table: np.ndarray) -> tuple[np.ndarray, float]:
    """The middle of the blocks, and the size of the box that holds most of them; scene units."""
    used = table[table["count"] > 0]
    middles = 0.5 * (used["lo"].astype(np.float64) + used["hi"])
    low, high = np.percentile(middles, [5, 95], axis=0)
    return 0.5 * (low + high), float(max((high - low).max(), 1e-6))


def check_viewer() -> None:
    """Raises ConfigError where the package is missing."""
    _viser()


def _open(host: str, port: int) -> Any:
    return _viser().ViserServer(host=host, port=port, label="tidegs", verbose=False)


def _viser() -> Any:
    try:
        import viser
    except ImportError as error:
        raise ConfigError("the viewer needs the package viser: pip install viser") from error
    return viser
