"""`tidegs view`: look at a store or a result in the browser."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tidegs.cli.common import RUNTIME, add_quiet, scene_of
from tidegs.cli.options import add_config_options, config_from_args
from tidegs.config import TrainConfig
from tidegs.data.scene import Points, Scene, WorldTransform
from tidegs.errors import SceneError, TidegsError
from tidegs.report.looks import Painter
from tidegs.report.viewer import DEFAULT_PORT, LOCAL, Viewer
from tidegs.store.block_store import BlockStore
from tidegs.train.log import say
from tidegs.train.rates import render_settings
from tidegs.train.result import ResultFolder
from tidegs.train.session import Session

HELP = (
    "Look at a result or a block store of any size in the browser. Frames come through the same tiers as in training, "
    "under a small budget of their own: coarse while the camera moves, finer when it rests. Needs the package viser."
)
EPILOG = """examples:
  tidegs view results/garden
  tidegs view /ssd/city --device-memory 2GiB --port 9000
  tidegs train city --viewer        while it trains"""
_SMALL = {"device_memory": "1GiB", "host_memory": "512MiB"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, help="a result folder of tidegs train, or a block store")
    parser.add_argument("--scene", type=Path, help="where the scene is now, if it was moved")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help=f"port of the page ({DEFAULT_PORT})")
    parser.add_argument("--host", default=LOCAL, help=f"address to listen on ({LOCAL}; 0.0.0.0 lets others look)")
    add_quiet(parser)
    add_config_options(parser, RUNTIME)


def run(args: argparse.Namespace) -> int:
    result = ResultFolder(args.path)
    is_result = result.run.exists()
    store = result.store_path() if is_result else args.path
    config = _config(args, result.cfg if is_result else None, store)
    scene = _scene(args, result, config) if is_result else _no_scene(args.path)
    with Session(scene, store, config, result, readonly=True) as session:
        settings = replace(render_settings(config, 0), sh_degree=session.store.layout.sh_degree)
        painter = Painter(session.residency, session.device, settings)
        viewer = Viewer(painter, session.views, session.store.table, settings.sh_degree, args.port, args.host)
        say(f"{session.num_gaussians:,} Gaussians at {viewer.address}   (Ctrl-C ends)", args.quiet)
        try:
            viewer.serve()
        except KeyboardInterrupt:
            return 0
        finally:
            viewer.close()
    return 0


def _config(args: argparse.Namespace, source: Path | None, store: Path) -> TrainConfig:
    """Settings of the result, with small budgets unless others are asked for."""
    config = config_from_args(args, source)
    small: dict[str, Any] = {name: value for name, value in _SMALL.items() if getattr(args, f"cfg_{name}") is None}
    with BlockStore.open(store, readonly=True) as peek:
        return replace(config, **small, block_capacity=peek.layout.capacity, sh_degree=peek.layout.sh_degree)


def _scene(args: argparse.Namespace, result: ResultFolder, config: TrainConfig) -> Scene:
    """The result's scene for its cameras; without it the store is shown alone."""
    try:
        return scene_of(result, config, args.scene, args.quiet)
    except TidegsError as error:
        if args.scene is not None:
            raise
        say(f"cameras are not shown: {error}", args.quiet)
        return _no_scene(args.path)


def _no_scene(root: Path) -> Scene:
    if not root.is_dir():
        raise SceneError(f"{root} is neither a result folder nor a block store")
    points = Points(np.empty((0, 3), np.float32), np.empty((0, 3), np.uint8))
    return Scene(root, (), points, WorldTransform(np.zeros(3), 1.0), (), (), 1.0)
