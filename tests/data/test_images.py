"""ImageCache: the same bytes for any threads and budget, within the budget, ahead of use, and never a hang."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data import build
from tidegs.data.distortion_map import MapCache
from tidegs.data.image_source import ImageSource
from tidegs.data.images import ImageCache
from tidegs.data.load import load_scene
from tidegs.data.scene import Camera
from tidegs.errors import ImageError

NBYTES = 8 * 8 * 4  # what the cache reserves for an image of 8 x 8


@dataclass(frozen=True)
class Fake(ImageSource):
    """An image of constant value, whose loading a test can watch."""

    value: int = 0
    on_load: Callable[[int], None] = field(default=lambda value: None)

    def load(self, maps: MapCache) -> tuple[np.ndarray, np.ndarray | None]:
        self.on_load(self.value)
        return np.full((8, 8, 3), self.value, np.uint8), np.full((8, 8), 255, np.uint8)


def fakes(n: int, on_load: Callable[[int], None] = lambda value: None) -> list[Camera]:
    pinhole = build.camera(size=(8, 8))
    out = []
    for i in range(n):
        source = Fake(Path(f"{i}"), (8, 8), pinhole, pinhole, False, value=i, on_load=on_load)
        out.append(Camera(f"{i}", source.path, np.eye(4), np.eye(3), 8, 8, source))
    return out


@pytest.mark.parametrize("threads", [0, 1, 4])
@pytest.mark.parametrize("budget", [0, 3 * 48 * 36 * 4, 1 << 20])
def test_bytes_do_not_depend_on_threads_or_budget(tmp_path: Path, threads: int, budget: int) -> None:
    root = build.scene(tmp_path, cameras=[build.camera("SIMPLE_RADIAL")])
    cameras = load_scene(root).cameras
    expected = [c.source.load(MapCache())[0] for c in cameras]  # type: ignore[attr-defined]
    order = [int(i) for i in np.random.default_rng(0).integers(0, len(cameras), 60)]
    with ImageCache(cameras, budget, threads) as cache:
        cache.announce(order)
        for i in order:
            image = cache.get(i)
            assert np.array_equal(image, expected[i])
            assert (image.dtype, image.flags.c_contiguous, image.flags.writeable) == (np.uint8, True, False)
            assert cache.held_bytes <= budget


@settings(max_examples=40, deadline=None)
@given(
    order=st.lists(st.integers(0, 7), max_size=60),
    asked=st.lists(st.integers(0, 7), max_size=20),
    room=st.integers(0, 9),
    threads=st.integers(0, 3),
)
def test_any_order_kept_or_not_gives_the_right_image(
    order: list[int], asked: list[int], room: int, threads: int
) -> None:
    with ImageCache(fakes(8), room * NBYTES, threads) as cache:
        cache.announce(order)
        for i in [*order[::2], *asked, *order]:
            rgb, mask = cache.get_masked(i)
            assert (rgb == i).all()
            assert mask is not None
            assert cache.held_bytes <= room * NBYTES


def _belady(order: list[int], room: int) -> int:
    """Loads of a cache of `room` images that throws out the one used again last (and must hold the newest)."""
    held: set[int] = set()
    loads = 0
    for at, index in enumerate(order):
        if index in held:
            continue
        loads += 1
        if len(held) == room:
            held.remove(max(held, key=lambda i: next((k for k in range(at, len(order)) if order[k] == i), 10**9)))
        held.add(index)
    return loads


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=80), st.integers(1, 6))
def test_what_is_thrown_out_is_needed_last(order: list[int], room: int) -> None:
    with ImageCache(fakes(10), room * NBYTES, threads=0) as cache:
        cache.announce(order)
        for i in order:
            cache.get(i)
        assert cache.stats.decoded == _belady(order, room)


def test_images_are_decoded_before_they_are_asked_for_and_not_beyond_the_budget() -> None:
    loaded: list[int] = []
    three = Event()

    def note(value: int) -> None:
        loaded.append(value)
        if len(loaded) == 3:
            three.set()

    with ImageCache(fakes(8, note), 3 * NBYTES, threads=1) as cache:
        cache.announce(itertools.count())  # type: ignore[arg-type]
        assert three.wait(20)
        assert loaded == [0, 1, 2]
        assert cache.held_bytes == 3 * NBYTES
        cache.announce([])
        assert (cache.get(1) == 1).all()
        assert loaded == [0, 1, 2]


def test_a_scene_that_fits_is_decoded_once_in_an_endless_order() -> None:
    counts = [0] * 8
    lock = Lock()

    def note(value: int) -> None:
        with lock:
            counts[value] += 1

    with ImageCache(fakes(8, note), 8 * NBYTES, threads=3) as cache:
        cache.announce(itertools.cycle([3, 1, 4, 0, 5, 2, 6, 7]))
        for i in itertools.islice(itertools.cycle([3, 1, 4, 0, 5, 2, 6, 7]), 100):
            assert (cache.get(i) == i).all()
    assert counts == [1] * 8


@pytest.mark.parametrize("threads", [0, 2])
def test_a_damaged_image_is_an_error_of_its_own_get_alone(tmp_path: Path, threads: int) -> None:
    root = build.scene(tmp_path, [f"{i}.jpg" for i in range(6)])
    path = root / "images" / "2.jpg"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    cameras = load_scene(root).cameras
    with ImageCache(cameras, 1 << 20, threads) as cache:
        for _ in range(2):
            cache.announce(range(6))
            for i in range(6):
                if i == 2:
                    with pytest.raises(ImageError, match=r"2\.jpg: the image is truncated or damaged; replace"):
                        cache.get(i)
                else:
                    assert cache.get(i).shape == (36, 48, 3)
        path.write_bytes(whole)
        assert cache.get(2).shape == (36, 48, 3)


def test_an_image_that_changed_size_is_an_error(tmp_path: Path) -> None:
    root = build.scene(tmp_path)
    cameras = load_scene(root).cameras
    build.save(root / "images" / "03.png", build.picture(0, (24, 18)))
    with ImageCache(cameras, 1 << 20, 0) as cache, pytest.raises(ImageError, match=r"03\.png: the image is 24x18, but"):
        cache.get(3)


def test_any_failure_in_a_thread_reaches_the_caller() -> None:
    def fail(value: int) -> None:
        raise MemoryError(f"no memory for {value}")

    with ImageCache(fakes(3, fail), 3 * NBYTES, threads=2) as cache:
        cache.announce([0, 1, 2])
        for i in range(3):
            with pytest.raises(MemoryError, match=f"no memory for {i}"):
                cache.get(i)
        assert cache.held_bytes == 0


def test_closing_does_not_wait_for_announced_images() -> None:
    loads = itertools.count()
    with ImageCache(fakes(100, lambda value: next(loads) and None), 2 * NBYTES, threads=2) as cache:
        cache.announce(itertools.cycle(range(100)))
        cache.get(0)
    assert next(loads) < 100


def test_masks_come_with_their_images(tmp_path: Path) -> None:
    root = build.scene(tmp_path)
    alpha = np.where(np.arange(48) < 20, 255, 0).astype(np.uint8) * np.ones((36, 1), np.uint8)
    build.save(root / "images" / "01.png", np.dstack([build.picture(1), alpha]))
    with ImageCache(load_scene(root).cameras, 1 << 20, 1) as cache:
        assert cache.get_masked(0)[1] is None
        rgb, mask = cache.get_masked(1)
        assert np.array_equal(rgb, build.picture(1))
        assert mask is not None
        assert np.array_equal(mask, alpha)
    blended = load_scene(root, background=(255, 0, 10)).cameras
    with ImageCache(blended, 1 << 20, 1) as cache:
        rgb, mask = cache.get_masked(1)
        assert mask is None
        assert np.array_equal(rgb, np.where(alpha[..., None] == 255, build.picture(1), np.uint8([255, 0, 10])))
