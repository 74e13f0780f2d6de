"""A result folder, laid out as gsplat's: `cfg.yml ckpts/ ply/ renders/ stats/`; `run.json` says what produced it.

Invariant: what `run.json` states (input, transform, store, split) is all that eval, render and export need.
"""

from __future__ import annotations

import json
import platform
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tidegs import __version__
from tidegs.config import TrainConfig, dump_config, load_config
from tidegs.data.scene import Scene, WorldTransform
from tidegs.errors import SceneError
from tidegs.files import write_bytes, write_json


@dataclass(frozen=True)
class RunFile:
    """What produced a result. Paths are absolute, except a store inside the result folder, which moves with it."""

    scene: str
    store: str
    center: tuple[float, float, float]
    scale: float
    extent: float
    train_images: int
    test_images: int
    tidegs: str
    python: str
    machine: str


@dataclass(frozen=True)
class ResultFolder:
    """Paths of one result."""

    root: Path

    @property
    def cfg(self) -> Path:
        return self.root / "cfg.yml"

    @property
    def run(self) -> Path:
        return self.root / "run.json"

    @property
    def stats(self) -> Path:
        return self.root / "stats"

    @property
    def ply(self) -> Path:
        return self.root / "ply"

    @property
    def renders(self) -> Path:
        return self.root / "renders"

    @property
    def ckpts(self) -> Path:
        return self.root / "ckpts"

    def begin(self, config: TrainConfig, scene: Scene, store: Path) -> None:
        """Writes the settings and the run file, and makes the folders."""
        for folder in (self.stats, self.ply, self.renders, self.ckpts):
            folder.mkdir(parents=True, exist_ok=True)
        inside = store.resolve().is_relative_to(self.root.resolve())
        run = RunFile(
            scene=str(scene.root.resolve()),
            store=str(store.resolve().relative_to(self.root.resolve()) if inside else store.resolve()),
            center=tuple(map(float, scene.transform.center)),  # type: ignore[arg-type]
            scale=float(scene.transform.scale),
            extent=float(scene.extent),
            train_images=len(scene.train),
            test_images=len(scene.test),
            tidegs=__version__,
            python=sys.version.split()[0],
            machine=platform.machine(),
        )
        write_bytes(self.cfg, dump_config(config).encode())
        write_json(self.run, asdict(run))

    def config(self) -> TrainConfig:
        """The settings that the result was trained with. Raises ConfigError."""
        return load_config(self.cfg)

    def read_run(self) -> RunFile:
        """The run file. Raises SceneError when this is no result folder."""
        try:
            return RunFile(**json.loads(self.run.read_text()))
        except FileNotFoundError as error:
            raise SceneError(f"{self.root}: not a result folder of tidegs train (no run.json)") from error
        except (ValueError, TypeError) as error:
            raise SceneError(f"{self.run}: cannot be read: {error}") from error

    def store_path(self) -> Path:
        """Where the result's block store lies."""
        return self.root / self.read_run().store

    def transform(self) -> WorldTransform:
        """From the input's frame to the scene frame."""
        run = self.read_run()
        return WorldTransform(np.array(run.center, np.float64), run.scale)
