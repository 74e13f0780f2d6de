"""What a command needs to render or train a store: device, residency, images and schedule, opened and closed together.

Invariant: whatever opens here closes here, in the right order, also after an error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from tidegs.config import TrainConfig, parse_memory
from tidegs.data.images import ImageCache, Loaded
from tidegs.data.load import load_scene
from tidegs.data.points import RandomPoints
from tidegs.data.provenance import describe_file, describe_inputs
from tidegs.data.scene import Camera, PointSource, Scene
from tidegs.device.base import Device, View
from tidegs.eval.frames import Rendered, render_views
from tidegs.gaussians.layout import RecordLayout
from tidegs.gaussians.open import Finite, GaussianFile
from tidegs.gaussians.packing import field
from tidegs.report.ledger import ProcessMemory
from tidegs.residency.pipeline import Residency
from tidegs.store.base import ArenaLink
from tidegs.store.block_store import BlockStore
from tidegs.store.ingest import IngestOptions, ingest_gaussians, ingest_points
from tidegs.train import ledger
from tidegs.train.budgets import Budgets, choose_budgets
from tidegs.train.log import say
from tidegs.train.order import CameraOrder, open_order
from tidegs.train.rates import render_settings
from tidegs.train.result import ResultFolder
from tidegs.train.strategies.choose import strategy_of

INGEST_MEMORY = 1 << 30  # bytes that an ingest holds, unless told otherwise
INIT_EXTENT = 3.0  # half the side of the cube of random points, in extents of the cameras: gsplat's default


def open_scene(root: Path, config: TrainConfig, quiet: bool) -> Scene:
    """The scene as the settings see it; its warnings go to the user."""
    scene = load_as(root, config)
    for warning in scene.warnings:
        say(f"warning: {warning}", quiet)
    if config.init_random:
        return replace(scene, points=RandomPoints(config.init_random, INIT_EXTENT * scene.extent, config.seed))
    return scene


def load_as(root: Path, config: TrainConfig) -> Scene:
    """The scene folder under the settings' factor, split and masks."""
    return load_scene(
        root,
        factor=config.data_factor,
        test_every=config.test_every,
        masks=config.masks or None,
        invert_masks=config.invert_masks,
    )


def record_layout(config: TrainConfig) -> RecordLayout:
    """Of a new store: with the statistics that the strategy goes by."""
    strategy = strategy_of(config)
    statistics = strategy.stat_components if strategy else 0
    return RecordLayout(config.block_capacity, config.sh_degree, statistics, store_dtype=config.store_dtype)


def input_of(scene: Scene, config: TrainConfig, init: Path | None = None) -> str:
    """Stands for what an ingest of the scene, or of the file `init`, reads: files as they are now, and the frame."""
    files = describe_inputs(scene.root)
    if init:
        files[str(init.resolve())] = describe_file(init, hashed=False) or {}
    frame = [*scene.transform.center.tolist(), scene.transform.scale]
    return json.dumps([files, frame, config.init_random, config.seed, scene.extent])


def ingest_scene(
    points: PointSource,
    path: Path,
    config: TrainConfig,
    quiet: bool = False,
    memory: int = INGEST_MEMORY,
    meta: bytes = b"",
    source: str = "",
) -> None:
    """Makes the block store of seed points; `memory` bounds what the ingest holds, in bytes. With `source`
    (`input_of`), a long one that was stopped goes on."""
    options = IngestOptions(
        memory_budget=memory,
        init_scale=config.first_scale,
        init_opacity=config.first_opacity,
        source=source,
        progress=not quiet and sys.stderr.isatty(),
    )
    layout = record_layout(config)
    chunks = ((c.xyz, c.rgb) for c in points.chunks())
    ingest_points(path, chunks, layout, options, meta).close()


def ingest_file(
    scene: Scene,
    path: Path,
    config: TrainConfig,
    file: GaussianFile,
    quiet: bool = False,
    memory: int = INGEST_MEMORY,
    meta: bytes = b"",
) -> None:
    """Makes the block store of a file of Gaussians in the frame of the input scene; a long ingest that was
    stopped goes on. Harmonics above the settings' degree are left out, missing ones are zero. Raises FormatError."""
    layout = record_layout(config)
    finite = Finite(file)

    def rows() -> Iterator[np.ndarray]:
        for chunk in finite.chunks():
            out = np.zeros((len(chunk), layout.param_components), np.float32)
            n = min(out.shape[1], chunk.shape[1])
            out[:, :n] = chunk[:, :n]
            field(out, "means")[:] = scene.transform.to_scene(field(chunk, "means"))
            field(out, "scales")[:] += np.float32(np.log(scene.transform.scale))
            yield out

    source, progress = input_of(scene, config, file.path), not quiet and sys.stderr.isatty()
    options = IngestOptions(memory_budget=memory, source=source, progress=progress)
    ingest_gaussians(path, rows(), layout, options, meta).close()
    if changed := finite.sentence():
        say(f"warning: {changed}", quiet)


def open_device(config: TrainConfig) -> Device:
    """The device that the settings name. Raises DeviceError."""
    if config.device == "cpu":
        from tidegs.device.cpu import CpuDevice

        device = CpuDevice()
        if config.threads:
            device.set_threads(config.threads)
        return device
    from tidegs.device.cuda import open_cuda

    return open_cuda()


def device_slots(config: TrainConfig, blocks: int, views: list[View]) -> Callable[[RecordLayout], int] | None:
    """How many slots the device has room for beside the largest view; None where it has no memory of its own."""
    if config.device == "cpu":
        return None
    from tidegs.device.cuda import auto_arena_slots

    width, height = (max((getattr(v, side) for v in views), default=1) for side in ("width", "height"))
    return lambda layout: auto_arena_slots(layout, blocks, width, height)


def direct_link(device: Device, store_dtype: str) -> tuple[Callable[[], ArenaLink] | None, str]:
    """How blocks travel where there is no host cache: what gives the arena to the store, or None for the way through
    host memory; and the choice in words, with its reason."""
    if device.name == "cpu":
        return (
            None,
            "the CPU device's arena is host memory: blocks pass through a few host slots on their way to the SSD",
        )
    if store_dtype != "float32":
        return None, f"blocks pass through a few host slots between SSD and GPU, which narrow them to {store_dtype}"
    from tidegs.device.cuda import gds
    from tidegs.device.cuda.device import CudaDevice

    found = gds.look()
    if not found.usable or not isinstance(device, CudaDevice):
        return None, f"blocks pass through a few host slots between SSD and GPU, as {found.says}"
    gds.prepare()
    return device.direct_slots, f"blocks go straight between SSD and GPU: {found.says}"


def view_of(camera: Camera) -> View:
    """A camera as a device sees it."""
    return View(camera.viewmat.astype(np.float32), camera.K.astype(np.float32), camera.width, camera.height)


class Session:
    """Everything open that a run needs. Use it as a context manager.

    Views are numbered as scene.cameras, unless `views` gives others (a camera path). `route` says how blocks travel
    where there is no host cache; it is empty where there is one.
    """

    def __init__(
        self,
        scene: Scene,
        store_path: Path,
        config: TrainConfig,
        result: ResultFolder,
        readonly: bool = False,
        views: list[View] | None = None,
    ) -> None:
        self.scene, self.config, self.result = scene, config, result
        self.program_bytes = ProcessMemory.now().anonymous  # before anything of the run is open
        self.views = views if views is not None else [view_of(c) for c in scene.cameras]
        with BlockStore.open(store_path, readonly=True) as peek:
            blocks = len(peek.table)
            slots = device_slots(config, blocks, self.views)
            self.budgets: Budgets = choose_budgets(config, peek.layout, blocks, device_slots=slots)
        layout = self.budgets.layout
        with ExitStack() as stack:
            self.store = BlockStore.open(store_path, readonly, with_grads=layout.with_grads)
            stack.callback(self.store.close)
            self.device = open_device(config)
            stack.callback(self.device.close)
            keeps = self.budgets.host_keeps
            link, self.route = (None, "") if keeps else direct_link(self.device, layout.store_dtype)
            self.residency = Residency(
                self.store,
                self.device,
                layout,
                self.budgets.arena_slots,
                self.budgets.host_slots,
                render_settings(config, 0),
                max_pass_blocks=config.max_pass_blocks or None,
                host_keeps=keeps,
                link=link,
            )
            stack.callback(self.residency.close)
            self.image_budget = parse_memory(config.image_memory, total=1 << 30, name="image_memory")
            self.images = ImageCache(scene.cameras, self.image_budget)
            stack.callback(self.images.close)
            self._stack = stack.pop_all()

    def target(self, index: int) -> Loaded:
        """The image of a camera, uint8 [height, width, 3], and its mask or None (ImageCache.get_masked)."""
        return self.images.get_masked(index)

    def order(self) -> CameraOrder:
        """The camera order of the run, chosen at its first step and kept."""
        path, settings = self.result.ckpts / "order.json", render_settings(self.config, 0)
        train, budgets = self.scene.train, self.budgets
        return open_order(path, self.config, train, self.views, self.store.table, budgets, settings)

    @property
    def num_gaussians(self) -> int:
        """Rows in use in all blocks."""
        return int(self.store.table["count"].sum())

    def render(self, indices: Sequence[int], step: int, depth: bool = False) -> Iterator[Rendered]:
        """Frames of views, in order, at the SH degree of a step."""
        return render_views(self.residency, self.device, self.views, indices, render_settings(self.config, step), depth)

    def tiers(self) -> dict[str, Any]:
        """The state of the tiers for a line of the log."""
        return ledger.sample(self)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
