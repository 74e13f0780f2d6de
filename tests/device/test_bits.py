"""The same bits for any number of threads, any parts and blocks of a camera, any scratch budget."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.device.harness import ADAM, ISAS, Packed, look, pack, random_scene, run
from tidegs.device.base import RenderSettings

SETTINGS = RenderSettings(background=(0.1, 0.2, 0.3))
VIEW = look(150, 100, 1)


def outcome(packed: Packed, **kwargs) -> tuple[bytes, bytes]:
    """Pixels, and parameters with moments after a step."""
    frame, updates = run(packed, VIEW, SETTINGS, **kwargs)
    state = packed.state()
    packed.device.close()
    assert sum(int(u.visible.sum()) for u in updates) > 100
    return frame.image.tobytes() + frame.alpha.tobytes(), state


@pytest.mark.parametrize("isa", ISAS)
def test_threads_change_nothing(isa):
    scene = random_scene(1500, 11)
    results = []
    for threads in (1, 2, 4):
        packed = pack(scene, isa=isa)
        packed.device.set_threads(threads)
        results.append(outcome(packed, depth=True))
    packed.device.set_threads(2)
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("budget", [1, 3000, 20_000])
def test_scratch_budgets_change_nothing(isa, budget):
    scene = random_scene(700, 12)
    wanted = outcome(pack(scene, isa=isa), depth=True)
    packed = pack(scene, isa=isa, scratch_budget=budget)
    run(packed, look(150, 100, 2), SETTINGS, flags=4)
    assert packed.device.counts().ranges > 3
    assert outcome(pack(scene, isa=isa, scratch_budget=budget), depth=True) == wanted


@given(
    at=st.lists(st.integers(0, 400), max_size=8),
    ends=st.lists(st.integers(0, 9), max_size=4),
    shuffle=st.integers(0, 99),
    seed=st.integers(0, 99),
    move=st.booleans(),
)
@hypothesis_settings(max_examples=40, deadline=None)
def test_parts_and_blocks_change_nothing(at, ends, shuffle, seed, move):
    """Any cut into blocks, some of them empty; any parts of them, some of them empty; any slots, and others later."""
    scene = random_scene(400, seed)
    wanted = outcome(pack(scene))
    packed = pack(scene, [0, *sorted(at), 400], shuffle=shuffle)
    n = len(packed.slots)
    bounds = [0, *sorted(min(e, n) for e in ends), n]
    parts = [list(range(a, b)) for a, b in pairwise(bounds)]
    assert outcome(packed, parts=parts, between=packed.evict_and_reload if move else lambda: None) == wanted


def test_camera_of_more_blocks_than_the_arena_holds():
    """Blocks of one part at a time are resident; the others' slots are overwritten."""
    scene, at = random_scene(400, 5), [0, 100, 200, 300, 400]
    wanted = outcome(pack(scene, at))
    source, small = pack(scene, at), pack(random_scene(1, 0), [0, 1])
    device, layout = small.device, source.layout
    host = [source.device.arena[slot].copy() for slot in source.slots]
    frame = device.new_frame(VIEW)
    small.cuts = [0, 100]
    device.begin(VIEW, SETTINGS, frame)
    for one in host:
        device.upload([one], small.slots)
        device.add(small.blocks())
    device.finish(frame)
    frame.grad = run(source, VIEW, SETTINGS)[0].grad
    device.differentiate(frame)
    for i in reversed(range(4)):
        device.upload([host[i]], small.slots)
        (update,) = [device.update(i, small.blocks(), ADAM)]
        assert update.touched.all()
        device.download(small.slots, [host[i]])
    state = b"".join(
        np.concatenate([layout.view(one, plane)[:, :100] for one in host], 1).tobytes()
        for plane in ("base", "rest", "m_base", "m_rest", "v_base", "v_rest")
    )
    assert (frame.image.tobytes() + frame.alpha.tobytes(), state) == wanted


def test_equal_depths_keep_the_order_of_blocks_and_rows():
    """Splats at one depth blend in the order of (block, row), however they are cut into blocks."""
    scene, view = random_scene(200, 8), look(64, 64, 8)
    view.viewmat[:3, :3] = np.eye(3)
    scene.base[2] = 0  # one depth, exactly
    results = set()
    for at in ([0, 200], [0, 64, 128, 200], [0, 1, 2, 3, 200]):
        results.add(run(pack(scene, at), view, SETTINGS)[0].image.tobytes())
    assert len(results) == 1
    scene.base, scene.rest = scene.base[:, ::-1].copy(), scene.rest[:, ::-1].copy()
    assert run(pack(scene), view, SETTINGS)[0].image.tobytes() not in results  # the order of rows matters


def test_blocks_out_of_sight_do_not_change_the_image():
    scene = random_scene(300, 9)
    packed = pack(scene, [0, 100, 200, 300])
    packed.layout.field(packed.device.arena[packed.slots[1]], "means")[:] = 1e6
    images = [run(packed, VIEW, SETTINGS, flags=4, parts=[chosen])[0].image.tobytes() for chosen in ([0, 1, 2], [0, 2])]
    assert images[0] == images[1]
