"""`tidegs view`: looks, frames through the tiers under a small budget, and the server where viser is installed."""

from __future__ import annotations

import sys
import types
import urllib.request
from dataclasses import replace

import numpy as np
import pytest

from tests.training import assert_same, settings
from tidegs.cli import view as command
from tidegs.cli.main import main
from tidegs.data.load import load_scene
from tidegs.data.world import rotation_of
from tidegs.eval.frames import to_rgb8
from tidegs.report import looks
from tidegs.report.looks import HEIGHTS, Look, Painter, box_lines, quaternion, view_at
from tidegs.report.space import up_direction
from tidegs.report.viewer import Viewer
from tidegs.residency.visibility import Bounds, needed_blocks, view_planes
from tidegs.train.rates import render_settings
from tidegs.train.result import ResultFolder
from tidegs.train.run import RunRequest, run_training
from tidegs.train.session import Session, view_of


@pytest.fixture
def session(result, city):
    config = ResultFolder(result).config()
    with Session(load_scene(city), result / "store", config, ResultFolder(result), readonly=True) as opened:
        yield opened


@pytest.fixture
def painter(session):
    return Painter(session.residency, session.device, render_settings(session.config, 10**6))


def look_of(view):
    """The look that sees what a view sees."""
    to_scene = view.viewmat[:3, :3].T.astype(np.float64)
    fov = 2 * np.arctan(0.5 * view.height / float(view.K[1, 1]))
    return Look(quaternion(to_scene), tuple(-to_scene @ view.viewmat[:3, 3]), float(fov), view.width / view.height)


def test_quaternions_and_rotations_agree():
    rng = np.random.default_rng(0)
    for _ in range(50):
        q = rng.normal(size=4)
        matrix = rotation_of(tuple(q))
        assert np.allclose(matrix @ matrix.T, np.eye(3))
        assert np.linalg.det(matrix) == pytest.approx(1)
        assert np.allclose(rotation_of(quaternion(matrix)), matrix)


def test_a_look_at_a_camera_is_that_camera(session):
    for view in session.views[:3]:
        again = view_at(look_of(view), view.height)
        assert again.width == view.width
        assert np.allclose(again.viewmat, view.viewmat, atol=1e-5)
        assert np.allclose(again.K, view.K, rtol=1e-5)


def test_frames_are_those_of_render(session, painter):
    """Through an arena of 40 % of the scene, in parts where needed."""
    view = session.views[0]
    look = look_of(view)
    exact = view_at(look, view.height)
    session.views[0] = exact
    expected = to_rgb8(next(iter(session.render([0], 10**6))).frame)
    assert np.array_equal(painter.paint(look, view.height), expected)
    assert expected.std() > 10
    assert session.residency.counters.snapshot()["peak_slots"]["arena"] <= session.budgets.arena_slots


def test_modes_differ(session, painter):
    view = session.views[0]
    look = look_of(view)
    depth = painter.paint(Look(look.wxyz, look.position, look.fov, look.aspect, "depth"), 60)
    flat = painter.paint(Look(look.wxyz, look.position, look.fov, look.aspect, "colour", 0), 60)
    full = painter.paint(look, 60)
    assert (depth[..., 0] == depth[..., 1]).all()
    assert depth.std() > 5
    assert not np.array_equal(flat, full)


def test_a_frame_in_parts_can_be_cancelled(result, city):
    config = replace(ResultFolder(result).config(), max_pass_blocks=20)
    with Session(load_scene(city), result / "store", config, ResultFolder(result), readonly=True) as session:
        painter = Painter(session.residency, session.device, render_settings(config, 10**6))
        look = look_of(session.views[0])
        asked = []
        assert painter.paint(look, 60, lambda: asked.append(1) or True) is None
        assert len(asked) == 1
        whole = painter.paint(look, 60)  # the next frame is not disturbed by the one that was given up
        assert np.array_equal(whole, painter.paint(look, 60))
        assert whole.std() > 10


def test_a_view_of_too_much_shows_the_nearest_blocks(session, painter, monkeypatch):
    view = session.views[0]
    monkeypatch.setattr(looks, "ROWS_A_LINE", 10**9)
    look = look_of(view)
    whole = painter.paint(look, 60)
    assert not painter.cut_off
    settings, counts = render_settings(session.config, 10**6), session.store.table["count"]
    total = rows_needed(session, view, settings)
    before = 0
    for share in (0.1, 0.5, 0.9):
        cut = session.residency.within_reach(view, settings, int(share * total))
        assert before < cut.far_plane < settings.far_plane
        assert rows_needed(session, view, cut) <= max(share * total, counts.max()) + 2 * counts.max()
        before = cut.far_plane
    assert session.residency.within_reach(view, settings, total) is settings
    monkeypatch.setattr(looks, "ROWS_A_LINE", total // 2 // 60)
    assert not np.array_equal(painter.paint(look, 60), whole)
    assert painter.cut_off


def rows_needed(session, view, settings) -> int:
    ids = needed_blocks(Bounds(session.store.table), view_planes(view, settings))
    return int(session.store.table["count"][ids].sum())


def test_boxes_have_twelve_edges():
    lines = box_lines(np.array([[0, 0, 0], [1, 1, 1]], np.float32), np.array([[1, 2, 3], [2, 2, 2]], np.float32))
    assert lines.shape == (24, 2, 3)
    lengths = np.sort(np.linalg.norm(lines[:12, 1] - lines[:12, 0], axis=1))
    assert lengths.tolist() == [1] * 4 + [2] * 4 + [3] * 4


def test_up_is_up_for_nadir_and_oblique_cameras(city):
    scene = load_scene(city)
    up = up_direction([view_of(c) for c in scene.cameras], np.empty(0))
    assert up @ np.array([0, 0, 1]) > 0.99  # the generated city's z


def test_without_viser_one_sentence_says_so(result, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "viser", None)
    assert main(["view", str(result), "--quiet"]) == 2
    assert "pip install viser" in capsys.readouterr().err


def test_what_is_no_store_is_refused(tmp_path, capsys):
    assert main(["view", str(tmp_path / "nothing")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


class FakeServer:
    """As much of viser as the viewer uses; keeps the frames that a browser would show."""

    def __init__(self):
        self.frames = []
        shown = types.SimpleNamespace(set_background_image=lambda picture, **_: self.frames.append(picture))
        camera = types.SimpleNamespace(wxyz=(1, 0, 0, 0), position=(0, 0, 0), fov=1.0, aspect=1.5)
        camera.on_update = lambda f: setattr(self, "moved", f)
        self.client = types.SimpleNamespace(client_id=7, camera=camera, scene=shown)

        def handle(*_, **options):
            return types.SimpleNamespace(
                value=options.get("initial_value", "colour"), visible=False, on_update=lambda f: f
            )

        names = (
            "add_dropdown",
            "add_slider",
            "add_checkbox",
            "add_camera_frustum",
            "add_line_segments",
            "add_markdown",
        )
        self.gui = self.scene = types.SimpleNamespace(**dict.fromkeys(names, handle), set_up_direction=lambda up: None)

    def on_client_connect(self, f):
        self.connect = f

    def on_client_disconnect(self, f):
        self.leave = f

    def get_clients(self):
        return {7: self.client}

    def get_port(self):
        return 1

    def stop(self):
        pass


@pytest.fixture
def server(monkeypatch):
    fake = FakeServer()
    monkeypatch.setattr("tidegs.report.viewer._open", lambda host, port: fake)
    return fake


def test_frames_get_finer_while_the_camera_rests_and_start_again_when_it_moves(session, painter, server, monkeypatch):
    monkeypatch.setattr(painter, "first_height", lambda: HEIGHTS[0])  # which depends on this machine's speed
    viewer = Viewer(painter, session.views, session.store.table, 3, 0)
    server.connect(server.client)
    turns = iter(range(40))
    viewer.serve(lambda: len(server.frames) < 3 and next(turns, None) is not None)
    assert [f.shape[0] for f in server.frames] == list(HEIGHTS[:3])
    server.client.camera.position = (0.1, 0, 0)
    server.moved(server.client.camera)
    turns = iter(range(40))
    viewer.serve(lambda: len(server.frames) < 4 and next(turns, None) is not None)
    assert server.frames[3].shape[0] == HEIGHTS[0]
    server.leave(server.client)
    count = len(server.frames)
    viewer.between_steps()
    assert len(server.frames) == count  # nobody looks


def test_training_gives_frames_a_share_of_its_time(session, painter, server):
    viewer = Viewer(painter, session.views, session.store.table, 3, 0)
    server.connect(server.client)
    for _ in range(20):
        viewer.between_steps()
    assert 1 <= len(server.frames) < 20  # the first at once, the others when enough time has been trained


def test_being_watched_changes_nothing(city, tmp_path, server, monkeypatch):
    """Frames between the steps of a run out of core leave its bits alone."""
    monkeypatch.setattr("tidegs.report.viewer._viser", lambda: None)
    monkeypatch.setattr("tidegs.report.viewer._TRAINING_SHARE", 1e9)  # as many frames as there are steps
    connect = Viewer.between_steps

    def watched(viewer):
        if not server.frames:
            server.connect(server.client)
        server.client.camera.position = (0.01 * len(server.frames), 0, 0.5)
        server.moved(server.client.camera)
        connect(viewer)

    monkeypatch.setattr(Viewer, "between_steps", watched)
    config = settings(max_steps=25, device_memory="30%", host_memory="30%", order="shuffle")
    for name, viewer in (("alone", False), ("watched", True)):
        run_training(RunRequest(city, tmp_path / name, None, config, False, False, True, viewer=viewer))
    assert len(server.frames) >= 20
    assert_same(tmp_path / "alone" / "store", tmp_path / "watched" / "store")


def test_the_real_server_serves_its_page(result):
    pytest.importorskip("viser", reason="the package viser is not installed")
    config = ResultFolder(result).config()
    with Session(command._no_scene(result), result / "store", config, ResultFolder(result), readonly=True) as session:
        painter = Painter(session.residency, session.device, render_settings(config, 10**6))
        viewer = Viewer(painter, [], session.store.table, 3, 0)
        try:
            with urllib.request.urlopen(viewer.address, timeout=20) as page:
                assert page.status == 200
        finally:
            viewer.close()
