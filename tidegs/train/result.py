"""A result folder, laid out as gsplat's: `cfg.yml ckpts/ ply/ renders/ stats/`; `run.json` says what produced it.

Invariant: what `run.json` states (input, transform, store, split) is all that eval, render and export need.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tidegs import __version__
from tidegs.config import TrainConfig, dump_config, load_config
from tidegs.data.provenance import describe_file, describe_inputs
from tidegs.data.scene import Scene, WorldTransform
from tidegs.device.native import supported_isas
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
    numpy: str = ""
    kernels: str = ""  # instruction set of the C++ kernels; empty where the device is another
    init: str = ""  # file of Gaussians that training began from; empty: the scene's points
    inputs: dict[str, dict[str, Any]] = field(default_factory=dict)  # see data/provenance.py; and `init`, by its path


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
    def poses(self) -> Path:
        return self.root / "poses.json"

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

    def begin(self, config: TrainConfig, scene: Scene, store: Path, init: Path | None = None) -> None:
        """Writes the settings and the run file, and makes the folders."""
        for folder in (self.stats, self.ply, self.renders, self.ckpts):
            folder.mkdir(parents=True, exist_ok=True)
        inside = store.resolve().is_relative_to(self.root.resolve())
        inputs = describe_inputs(scene.root)
        if init and (fact := describe_file(init, hashed=init.is_file())):
            inputs[str(init.resolve())] = fact
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
            numpy=np.__version__,
            kernels=(os.environ.get("TIDEGS_ISA") or supported_isas()[0]) if config.device == "cpu" else "",
            init=str(init.resolve()) if init else "",
            inputs=inputs,
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
