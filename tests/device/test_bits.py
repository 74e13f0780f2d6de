"""The same bits for any number of threads, any split of the image, any partition into blocks, any scratch budget."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.device.harness import ADAM, ISAS, Packed, look, pack, random_scene, run
from tidegs.device.base import BlockFlags, Region, RenderSettings
from tidegs.device.tiles import split, tile_count, whole

SETTINGS = RenderSettings(background=(0.1, 0.2, 0.3))
VIEW = look(150, 100, 1)


def outcome(packed: Packed, **kwargs) -> tuple[bytes, bytes]:
    """Pixels, and parameters with moments after a step."""
    frame, updates = run(packed, VIEW, SETTINGS, **kwargs)
    state = packed.state()
    packed.device.close()
    pixels = frame.image.tobytes() + frame.alpha.tobytes()
    assert int(updates[-1].visible.sum()) > 100
    return pixels, state


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
    packed.device.forward(VIEW, packed.blocks(), SETTINGS, packed.device.new_frame(VIEW))
    assert packed.device.counts().ranges > 3
    assert outcome(packed, depth=True) == wanted


def quadtree(decisions: list[bool]) -> list[Region]:
    """A split of the image: each decision divides a region in up to four, or leaves it."""
    done, todo = [], [whole(VIEW.width, VIEW.height)]
    for divide in decisions:
        region = todo.pop(0) if todo else None
        if region is None:
            break
        parts = split(VIEW.width, VIEW.height, region)
        (todo.extend if divide and len(parts) > 1 else done.extend)(parts if divide else [region])
    return sorted(done + todo, key=lambda r: r.first)


@given(
    decisions=st.lists(st.booleans(), max_size=12),
    at=st.lists(st.integers(0, 400), max_size=8),
    shuffle=st.integers(0, 99),
    seed=st.integers(0, 99),
)
@hypothesis_settings(max_examples=40, deadline=None)
def test_regions_and_blocks_change_nothing(decisions, at, shuffle, seed):
    scene = random_scene(400, seed)
    wanted = outcome(pack(scene))
    packed = pack(scene, [0, *sorted(at), 400], shuffle=shuffle)  # some blocks are empty
    assert outcome(packed, regions=quadtree(decisions)) == wanted


def needed(packed: Packed, block: int, region: Region) -> bool:
    """Whether leaving a block out changes a pixel of the region."""
    frames = []
    for chosen in (None, [i for i in range(len(packed.slots)) if i != block]):
        frames.append(packed.device.new_frame(VIEW))
        packed.device.forward(VIEW, packed.blocks(chosen=chosen), SETTINGS, frames[-1], region)
    return frames[0].image.tobytes() != frames[1].image.tobytes()


def test_blocks_join_only_the_passes_that_need_them():
    """Each block is in the passes of its regions only, with its own first and last pass; evicted in between."""
    scene = random_scene(600, 4, spread=2.5, log_scale=-3.0)
    order = np.argsort(VIEW.viewmat[0, :3] @ scene.base[:3])  # blocks are bands across the image
    scene.base, scene.rest = scene.base[:, order].copy(), scene.rest[:, order].copy()
    at = [0, 64, 128, 200, 300, 400, 500, 600]
    wanted = outcome(pack(scene, at))

    regions = split(150, 100, whole(150, 100))
    packed = pack(scene, at)
    passes = [[b for b in range(7) if needed(packed, b, region)] for region in regions]
    everywhere = {b for chosen in passes for b in chosen}
    passes[0] = sorted(set(passes[0]) | (set(range(7)) - everywhere))  # visible perhaps, though they change no pixel
    assert any(len(chosen) < 7 for chosen in passes)
    frame = packed.device.new_frame(VIEW)
    for region, chosen in zip(regions, passes, strict=True):
        packed.device.forward(VIEW, packed.blocks(0, chosen), SETTINGS, frame, region)
    frame.grad = run(pack(scene, at), VIEW, SETTINGS)[0].grad
    for i, (region, chosen) in enumerate(zip(regions, passes, strict=True)):
        flags = []
        for b in chosen:
            first = not any(b in earlier for earlier in passes[:i])
            last = not any(b in later for later in passes[i + 1 :])
            flags.append((BlockFlags.FIRST_OF_CAMERA | BlockFlags.FIRST_OF_STEP) * first)
            flags[-1] |= (BlockFlags.LAST_OF_CAMERA | BlockFlags.LAST_OF_STEP) * last
        evict_and_reload(packed)
        packed.device.forward(VIEW, packed.blocks([int(f) for f in flags], chosen), SETTINGS, frame, region)
        packed.device.backward(frame, ADAM)
    assert (frame.image.tobytes() + frame.alpha.tobytes(), packed.state()) == wanted


def evict_and_reload(packed: Packed) -> None:
    """Moves every block to host memory and back into another slot."""
    host = [np.empty(packed.layout.slot_nbytes, np.uint8) for _ in packed.slots]
    packed.device.download(packed.slots, host)
    packed.device.arena[:] = 0xFF
    packed.slots = packed.slots[1:] + packed.slots[:1]
    packed.device.upload(host, packed.slots)


def test_equal_depths_keep_the_order_of_blocks_and_rows():
    """Splats at one depth blend in the order of (block, row), however they are cut into blocks."""
    scene = random_scene(200, 8)
    view = look(64, 64, 8)
    R, t = view.viewmat[:3, :3], view.viewmat[:3, 3]
    camera = R @ scene.base[:3] + t[:, None]
    camera[2] = np.round(camera[2])
    scene.base[:3] = R.T @ (camera - t[:, None])
    scene.base[:3] = scene.base[:3].round(3)
    results = set()
    for at in ([0, 200], [0, 64, 128, 200], [0, 1, 2, 3, 200]):
        results.add(run(pack(scene, at), view, SETTINGS)[0].image.tobytes())
    assert len(results) == 1


def test_other_blocks_do_not_change_a_region():
    scene = random_scene(300, 9)
    packed = pack(scene, [0, 100, 200, 300])
    behind = packed.device.arena[packed.slots[2]]
    packed.layout.field(behind, "means")[:] = 1e6  # out of sight
    region = Region(0, tile_count(150, 100) // 2)
    frames = []
    for chosen in ([0, 1, 2], [0, 1]):
        frames.append(packed.device.new_frame(VIEW))
        packed.device.forward(VIEW, packed.blocks(chosen=chosen), SETTINGS, frames[-1], region)
    assert frames[0].image.tobytes() == frames[1].image.tobytes()
