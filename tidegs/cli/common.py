"""Arguments and small helpers that several commands share."""

from __future__ import annotations

import argparse
from pathlib import Path

from tidegs.config import TrainConfig
from tidegs.data.scene import Scene
from tidegs.train.result import ResultFolder
from tidegs.train.session import open_scene

RUNTIME = ("device", "device_memory", "host_memory", "image_memory", "threads")


def add_result_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("result", type=Path, help="a result folder of tidegs train")


def add_quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="no progress; results and errors only")


def scene_of(result: ResultFolder, config: TrainConfig, override: Path | None, quiet: bool) -> Scene:
    """The scene that a result was trained on, from where it was or from where it is now."""
    return open_scene(override or Path(result.read_run().scene), config, quiet)


def table(rows: list[tuple[str, str]]) -> str:
    """Two columns."""
    width = max((len(k) for k, _ in rows), default=0)
    return "\n".join(f"{k:<{width}}  {v}" for k, v in rows)
