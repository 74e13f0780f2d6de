"""`tidegs render`: images and videos of a result."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np
from tqdm import tqdm

from tidegs.cli.common import RUNTIME, add_quiet, add_result_argument, scene_of
from tidegs.cli.options import add_config_options, config_from_args
from tidegs.data.scene import Scene
from tidegs.device.base import View
from tidegs.errors import ConfigError, SceneError
from tidegs.eval.evaluate import save_png
from tidegs.eval.frames import depth_to_rgb8, to_rgb8
from tidegs.eval.path import camera_path
from tidegs.eval.video import write_mp4
from tidegs.train.log import say
from tidegs.train.result import ResultFolder
from tidegs.train.session import Session, view_of
from tidegs.train.settled import settled_session
from tidegs.train.state import steps_done

HELP = (
    "Render a result from its last snapshot: the test views, the training views, or a smooth path through the training "
    "cameras. PNG for each view, MP4 for a sequence; scenes larger than memory are rendered through the same tiers."
)
EPILOG = """examples:
  tidegs render results/garden                      test views as PNG
  tidegs render results/garden --views path --mp4   a flight, 240 frames
  tidegs render results/garden --views train --depth"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_result_argument(parser)
    parser.add_argument("--views", choices=("test", "train", "path"), default="test", help="what to render (test)")
    parser.add_argument("--out", type=Path, help="folder to write to (default: RESULT/renders/VIEWS)")
    parser.add_argument("--scene", type=Path, help="where the scene is now, if it was moved")
    parser.add_argument("--frames", type=int, default=240, metavar="N", help="frames of a path (240)")
    parser.add_argument("--fps", type=int, default=30, metavar="N", help="frames a second of an MP4 (30)")
    parser.add_argument("--mp4", action="store_true", help="write VIEWS.mp4 instead of PNGs")
    parser.add_argument("--depth", action="store_true", help="expected depth as grey instead of colour")
    add_quiet(parser)
    add_config_options(parser, RUNTIME)


def run(args: argparse.Namespace) -> int:
    if args.frames < 1 or args.fps < 1:
        raise ConfigError("--frames and --fps must be at least 1")
    result = ResultFolder(args.result)
    config = config_from_args(args, result.cfg)
    scene = scene_of(result, config, args.scene, args.quiet)
    views, names = _views(scene, args)
    out = args.out or result.renders / args.views
    with settled_session(scene, result, config, args.quiet, views) as session:
        frames = _pictures(session, args, len(views))
        if args.mp4:
            target = out / f"{args.views}.mp4"
            target.parent.mkdir(parents=True, exist_ok=True)
            write_mp4(target, frames, args.fps)
        else:
            target = out
            for name, picture in zip(names, frames, strict=True):
                save_png(out / name, picture)
    say(f"wrote {len(views)} views to {target}", args.quiet)
    return 0


def _views(scene: Scene, args: argparse.Namespace) -> tuple[list[View], list[str]]:
    """Views and the names of their PNGs."""
    if args.views == "path":
        views = camera_path([scene.cameras[i] for i in scene.train], args.frames)
        return views, [f"{k:05d}.png" for k in range(len(views))]
    indices = scene.test if args.views == "test" else scene.train
    if not indices:
        raise SceneError(f"{scene.root}: there is no {args.views} image")
    cameras = [scene.cameras[i] for i in indices]
    if args.mp4 and len({(c.width, c.height) for c in cameras}) > 1:
        raise ConfigError(f"--mp4 needs views of one size, and those of {args.views} differ; leave it out, or use path")
    return [view_of(c) for c in cameras], [f"{PurePosixPath(c.name)}.png" for c in cameras]


def _pictures(session: Session, args: argparse.Namespace, count: int) -> Iterator[np.ndarray]:
    rendered = session.render(range(count), steps_done(session.store), depth=args.depth)
    for one in tqdm(rendered, total=count, unit="view", disable=args.quiet):
        yield depth_to_rgb8(one.frame) if args.depth else to_rgb8(one.frame)
