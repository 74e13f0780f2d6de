"""The CUDA device on CPU tensors beside the CPU device, with the same scene in both arenas."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tests.cuda.ordering import RecordedStreams
from tests.device.harness import Scene
from tidegs.device.base import (
    AdamSettings,
    BlockFlags,
    BlockUpdates,
    Device,
    Frame,
    PassBlocks,
    RenderSettings,
    View,
)
from tidegs.device.cpu import CpuDevice
from tidegs.device.cuda.device import CudaDevice
from tidegs.gaussians.layout import RecordLayout

PLANES = ("base", "rest", "m_base", "m_rest", "v_base", "v_rest")
BOTH = BlockFlags.FIRST_OF_STEP | BlockFlags.LAST_OF_STEP
ADAM = AdamSettings(lrs=(1e-3, 2e-3, 5e-3, 5e-2, 2.5e-3, 1.25e-4), step=3)


@dataclass
class Held:
    """A scene in the arena of a device: block i has rows cuts[i]..cuts[i + 1] and lies in slot slots[i]."""

    device: Device
    layout: RecordLayout
    cuts: list[int]
    slots: list[int]

    def blocks(self, flags: BlockFlags | int = BOTH, chosen: list[int] | None = None) -> PassBlocks:
        chosen = list(range(len(self.slots))) if chosen is None else chosen
        counts = np.diff(self.cuts)[chosen].astype(np.int32)
        slots = np.array([self.slots[i] for i in chosen], np.int32)
        return PassBlocks(slots, counts, np.full(len(chosen), int(flags), np.uint8))

    def rows(self, plane: str) -> np.ndarray:
        """A plane of all rows of the scene, [components, n], through a download."""
        host = [np.empty(self.layout.slot_nbytes, np.uint8) for _ in self.slots]
        self.device.download(self.slots, host)
        counts = np.diff(self.cuts)
        return np.concatenate([self.layout.view(h, plane)[:, :c] for h, c in zip(host, counts, strict=True)], 1)


def hold(device: Device, scene: Scene, layout: RecordLayout, cuts: list[int] | None = None, seed: int = 0) -> Held:
    """Fills a device's arena by uploads; unused rows and scratch planes are NaN, so that reading them shows."""
    cuts = cuts or [*range(0, scene.n, layout.capacity), scene.n]
    n = len(cuts) - 1
    device.open_arena(layout, n + 2)
    slots = np.random.default_rng(seed).permutation(n + 2)[:n].tolist()
    host = []
    for a, b in pairwise(cuts):
        slot = np.full(layout.slot_nbytes // 4, np.nan, np.float32).view(np.uint8)
        layout.view(slot, "base")[:, : b - a] = scene.base[:, a:b]
        layout.view(slot, "rest")[:, : b - a] = scene.rest[: layout.rest_components, a:b]
        for plane in (*PLANES[2:], "stats"):
            layout.view(slot, plane)[:, : b - a] = 0
        host.append(slot)
    device.upload(host, slots)
    return Held(device, layout, cuts, slots)


def layout_for(capacity: int = 64, sh_degree: int = 3, grads: bool = True, stats: int = 0) -> RecordLayout:
    return RecordLayout(capacity, sh_degree, stats, with_grads=grads)


def cuda_on_cpu(streams: RecordedStreams | None = None) -> CudaDevice:
    """The CUDA device over CPU tensors."""
    return CudaDevice("cpu", streams or RecordedStreams())


def both(scene: Scene, layout: RecordLayout, cuts: list[int] | None = None) -> tuple[Held, Held]:
    """The CUDA device and the CPU device, holding the same."""
    return hold(cuda_on_cpu(), scene, layout, cuts, seed=1), hold(CpuDevice(), scene, layout, cuts, seed=2)


def target_of(view: View, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (view.height, view.width, 3), np.uint8)


def step(
    held: Held,
    view: View,
    settings: RenderSettings | None = None,
    flags: BlockFlags | int = BOTH,
    parts: list[list[int]] | None = None,
    adam: AdamSettings = ADAM,
    target: np.ndarray | None = None,
    depth: bool = False,
) -> tuple[Frame, list[BlockUpdates]]:
    """One camera, its blocks in one part or in several; updates come in order of parts."""
    settings, device = settings or RenderSettings(), held.device
    parts = [list(range(len(held.slots)))] if parts is None else parts
    frame = draw(held, view, settings, parts, depth)
    device.loss(frame, target_of(view) if target is None else target, 0.2)
    device.differentiate(frame)
    updates = [device.update(i, held.blocks(flags, part), adam) for i, part in reversed(list(enumerate(parts)))]
    return frame, updates[::-1]


def draw(held: Held, view: View, settings: RenderSettings, parts: list[list[int]], depth: bool = False) -> Frame:
    """A camera's image, without gradients."""
    frame = held.device.new_frame(view, depth)
    held.device.begin(view, settings, frame)
    for part in parts:
        held.device.add(held.blocks(0, part))
    held.device.finish(frame)
    return frame
