"""Arguments and small helpers that several commands share."""

from __future__ import annotations

import argparse
from pathlib import Path

from tidegs.config import TrainConfig
from tidegs.data.load import load_scene
from tidegs.data.scene import Scene
from tidegs.train.log import say
from tidegs.train.result import ResultFolder

RUNTIME = ("device", "device_memory", "host_memory", "image_memory", "threads")


def add_result_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("result", type=Path, help="a result folder of tidegs train")


def add_quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="no progress; results and errors only")


def open_scene(root: Path, config: TrainConfig, quiet: bool) -> Scene:
    """The scene as the settings see it; its warnings go to the user."""
    scene = load_scene(root, factor=config.data_factor, test_every=config.test_every)
    for warning in scene.warnings:
        say(f"warning: {warning}", quiet)
    return scene


def scene_of(result: ResultFolder, config: TrainConfig, override: Path | None, quiet: bool) -> Scene:
    """The scene that a result was trained on, from where it was or from where it is now."""
    return open_scene(override or Path(result.read_run().scene), config, quiet)


def table(rows: list[tuple[str, str]]) -> str:
    """Two columns."""
    width = max((len(k) for k, _ in rows), default=0)
    return "\n".join(f"{k:<{width}}  {v}" for k, v in rows)
