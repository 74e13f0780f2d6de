"""Camera paths: through the cameras, with proper rotations."""

from pathlib import Path

import numpy as np

from tidegs.data.scene import Camera
from tidegs.eval.path import camera_path, camera_position, quat_to_rotation, rotation_to_quat


def make_camera(i: int, rotation: np.ndarray, position: np.ndarray) -> Camera:
    viewmat = np.eye(4)
    viewmat[:3, :3] = rotation
    viewmat[:3, 3] = -rotation @ position
    return Camera(f"{i}.png", Path("none"), viewmat, np.diag([50.0, 50.0, 1.0]), 32, 24)


def test_rotations_survive_quaternions():
    quats = np.random.default_rng(0).normal(size=(500, 4))
    quats /= np.linalg.norm(quats, axis=1, keepdims=True)
    quats[:4] = np.eye(4)
    rotations = quat_to_rotation(quats)
    assert np.allclose(rotations @ rotations.transpose(0, 2, 1), np.eye(3), atol=1e-12)
    assert np.allclose(np.abs(np.sum(rotation_to_quat(rotations) * quats, 1)), 1, atol=1e-12)


def test_a_path_starts_and_ends_at_cameras_and_stays_rigid():
    rng = np.random.default_rng(1)
    quats = rng.normal(size=(5, 4))
    rotations = quat_to_rotation(quats / np.linalg.norm(quats, axis=1, keepdims=True))
    cameras = [make_camera(i, r, np.array([i, i * i, 0.0])) for i, r in enumerate(rotations)]
    views = camera_path(cameras, frames=9)
    assert len(views) == 9
    for view in views:
        assert np.allclose(view.viewmat[:3, :3] @ view.viewmat[:3, :3].T, np.eye(3), atol=1e-5)
    assert np.allclose(camera_position(views[0].viewmat), [0, 0, 0], atol=1e-5)
    assert np.allclose(camera_position(views[-1].viewmat), [4, 16, 0], atol=1e-4)
    assert np.allclose(views[2].viewmat, cameras[1].viewmat, atol=1e-5)


def test_a_path_of_one_camera_stands_still():
    camera = make_camera(0, np.eye(3), np.zeros(3))
    assert all(np.allclose(v.viewmat, camera.viewmat) for v in camera_path([camera], frames=3))
