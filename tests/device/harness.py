"""Random scenes, and passes over them on the CPU device, for the tests of the device."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from tests.reference.rasterize import render
from tidegs.device import native
from tidegs.device.base import AdamSettings, BlockFlags, BlockUpdates, PassBlocks, RenderSettings, View
from tidegs.device.cpu import CpuDevice, CpuFrame
from tidegs.gaussians.layout import RecordLayout

ISAS = [isa for isa in native.supported_isas() if native.library_path(isa)]
torch.set_num_threads(1)  # tests run side by side

FIRST, MIDDLE, LAST = BlockFlags.FIRST_OF_STEP, BlockFlags(0), BlockFlags.LAST_OF_STEP
STEP = FIRST | LAST
ADAM = AdamSettings(lrs=(1e-3, 2e-3, 5e-3, 5e-2, 2.5e-3, 1.25e-4), step=3)


@dataclass
class Scene:
    """Rows as records hold them: base float32 [14, n] and rest float32 [45, n]."""

    base: np.ndarray
    rest: np.ndarray

    @property
    def n(self) -> int:
        return self.base.shape[1]


def random_scene(n: int, seed: int, spread: float = 2.0, log_scale: float = -2.5, needle: float = 0.8) -> Scene:
    """Gaussians around the point that `look` looks at."""
    rng = np.random.default_rng(seed)
    base = np.empty((14, n), np.float32)
    base[0:3] = rng.uniform(-spread, spread, (3, n))
    base[3:7] = rng.normal(size=(4, n)) * rng.uniform(0.2, 5.0, n)
    base[7:10] = rng.normal(log_scale, needle, (3, n))
    base[10] = rng.normal(0.5, 2.0, n)
    base[11:14] = rng.normal(0.3, 1.0, (3, n))
    return Scene(base, (0.3 * rng.normal(size=(45, n))).astype(np.float32))


def look(width: int, height: int, seed: int = 0, distance: float = 5.0, fov: float = 55.0) -> View:
    """A camera at `distance` from the origin, looking almost at it, its centre and focal lengths a little off."""
    rng = np.random.default_rng(seed)
    R = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    R *= np.sign(np.linalg.det(R))
    viewmat = np.eye(4)
    viewmat[:3, :3] = R
    viewmat[:3, 3] = [0.1, -0.2, distance]
    f = 0.5 * width / math.tan(math.radians(fov) / 2)
    K = np.array([[f, 0, 0.52 * width], [0, 1.1 * f, 0.47 * height], [0, 0, 1]])
    return View(viewmat.astype(np.float32), K.astype(np.float32), width, height)


@dataclass
class Packed:
    """A scene in the arena of a device: rows cut into blocks at `cuts`; block i lies in slot slots[i]."""

    device: CpuDevice
    layout: RecordLayout
    cuts: list[int]
    slots: list[int] = field(default_factory=list)

    def blocks(self, flags: BlockFlags | int = STEP, chosen: list[int] | None = None) -> PassBlocks:
        """The chosen blocks, or all."""
        chosen = list(range(len(self.slots))) if chosen is None else chosen
        slots = np.array([self.slots[i] for i in chosen], np.int32)
        counts = np.diff(self.cuts)[chosen].astype(np.int32)
        return PassBlocks(slots, counts, np.full(len(chosen), int(flags), np.uint8))

    def evict_and_reload(self) -> None:
        """Moves every block to host memory and back into another slot."""
        host = [np.empty(self.layout.slot_nbytes, np.uint8) for _ in self.slots]
        self.device.download(self.slots, host)
        self.device.arena[:] = 0xFF
        self.slots = self.slots[1:] + self.slots[:1]
        self.device.upload(host, self.slots)

    def rows(self, plane: str) -> np.ndarray:
        """A plane of all rows of the scene, [components, n]; a copy."""
        parts = [
            self.layout.view(self.device.arena[slot], plane)[:, :count]
            for slot, count in zip(self.slots, np.diff(self.cuts), strict=True)
        ]
        return np.concatenate(parts, 1)

    def state(self) -> bytes:
        """All parameters and moments of the rows in use."""
        planes = ("base", "rest", "m_base", "m_rest", "v_base", "v_rest")
        return b"".join(self.rows(plane).tobytes() for plane in planes)


def pack(
    scene: Scene,
    cuts: list[int] | None = None,
    isa: str | None = None,
    scratch_budget: int = 1 << 30,
    shuffle: int | None = None,
    capacity: int = 512,
    sh_degree: int = 3,
) -> Packed:
    """Opens a device and fills its arena; unused rows and scratch planes hold NaN, so that reading them shows."""
    device = CpuDevice(scratch_budget, isa)
    layout = RecordLayout(capacity, sh_degree, with_grads=True)
    cuts = cuts or [*range(0, scene.n, capacity), scene.n]
    device.open_arena(layout, len(cuts) + 2)
    slots = np.arange(len(cuts) + 2)
    if shuffle is not None:
        np.random.default_rng(shuffle).shuffle(slots)
    packed = Packed(device, layout, cuts, slots[: len(cuts) - 1].tolist())
    device.arena.view(np.float32)[:] = np.nan
    for slot, a, b in zip(packed.slots, cuts[:-1], cuts[1:], strict=True):
        layout.view(device.arena[slot], "base")[:, : b - a] = scene.base[:, a:b]
        layout.view(device.arena[slot], "rest")[:, : b - a] = scene.rest[: layout.rest_components, a:b]
        for plane in ("m_base", "m_rest", "v_base", "v_rest"):
            layout.view(device.arena[slot], plane)[:, : b - a] = 0
    return packed


def image_grads(view: View, seed: int = 7) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random gradients of image [3, H, W], alpha and depth [H, W]."""
    rng = np.random.default_rng(seed)
    shape = (view.height, view.width)
    rgb, alpha, depth = rng.normal(size=(3, *shape)), rng.normal(size=shape), 0.1 * rng.normal(size=shape)
    return tuple(g.astype(np.float32) for g in (rgb, alpha, depth))  # type: ignore[return-value]


def run(
    packed: Packed,
    view: View,
    settings: RenderSettings | None = None,
    flags: BlockFlags | int = STEP,
    parts: list[list[int]] | None = None,
    depth: bool = False,
    adam: AdamSettings = ADAM,
    between: Callable[[], None] = lambda: None,
) -> tuple[CpuFrame, list[BlockUpdates]]:
    """A camera, its loss replaced by random image gradients. `parts`: blocks of each part; `between` is called between
    two parts."""
    device, settings = packed.device, settings or RenderSettings()
    parts = parts if parts is not None else [list(range(len(packed.slots)))]
    frame = device.new_frame(view, depth)
    device.begin(view, settings, frame)
    for part in parts:
        device.add(packed.blocks(flags, part))
        between()
    device.finish(frame)
    frame.grad, alpha_grad, depth_grad = image_grads(view)
    if depth:
        frame.grad_alpha, frame.grad_depth = alpha_grad, depth_grad
    device.differentiate(frame)
    updates = []
    for i in reversed(range(len(parts))):
        updates.insert(0, device.update(i, packed.blocks(flags, parts[i]), adam))
        between()
    return frame, updates


def reference(
    scene: Scene, view: View, settings: RenderSettings, depth: bool = False, dtype: torch.dtype = torch.float64
) -> dict[str, np.ndarray]:
    """The torch reference: image [3, H, W], alpha, depth, visible rows, and gradients by stored parameter ("base" [14,
    n] and "rest" [45, n]) and by pose (BlockUpdates.pose) of the same random image gradients as `run` uses."""
    base = torch.tensor(scene.base, dtype=dtype, requires_grad=True)
    rest = torch.tensor(scene.rest, dtype=dtype, requires_grad=True)
    moved = torch.eye(4, dtype=dtype, requires_grad=True)
    sh = torch.cat([base[11:14].T[:, None], rest.reshape(15, 3, -1).permute(2, 0, 1)], 1)
    out = render(
        base[0:3].T, base[3:7].T, torch.exp(base[7:10].T), torch.sigmoid(base[10]), sh,
        moved @ torch.tensor(view.viewmat, dtype=dtype), torch.tensor(view.K, dtype=dtype), view.width, view.height,
        settings.sh_degree, settings.near_plane, settings.far_plane, settings.eps2d, settings.radius_clip,
        settings.rasterize_mode, settings.background,
    )  # fmt: skip
    rgb, alpha_grad, depth_grad = (torch.tensor(g, dtype=dtype) for g in image_grads(view))
    value = (out["image"].permute(2, 0, 1) * rgb).sum()
    if depth:
        value = value + (out["alpha"] * alpha_grad).sum() + (out["depth"] * depth_grad).sum()
    value = value + 0.0 * (base.sum() + rest.sum() + moved.sum())  # a graph even where nothing is visible
    value.backward()
    return {
        "image": out["image"].permute(2, 0, 1).detach().numpy(),
        "alpha": out["alpha"].detach().numpy(),
        "depth": out["depth"].detach().numpy(),
        "visible": (out["radii"] > 0).all(-1).numpy(),
        "base": base.grad.numpy(),
        "rest": rest.grad.numpy(),
        "pose": moved.grad.numpy()[:3],
    }
