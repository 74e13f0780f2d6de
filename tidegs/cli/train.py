"""`tidegs train`: a scene in, a result folder out."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from tidegs.cli.common import add_quiet, table
from tidegs.cli.options import add_config_options, config_from_args
from tidegs.config import TrainConfig
from tidegs.errors import ConfigError
from tidegs.gaussians.open import open_gaussians
from tidegs.train.log import say
from tidegs.train.made_ahead import trained_degree
from tidegs.train.profile import STEPS
from tidegs.train.run import RunRequest, run_training
from tidegs.train.summary import summary_rows

HELP = (
    "Train SCENE, a COLMAP folder (images/ and sparse/0/). With no flags, budgets are the machine's: what fits is "
    "trained in core, a larger scene out of core, with the same result. Ctrl-C commits a snapshot; --resume goes on, "
    "without SCENE."
)
EPILOG = """examples:
  tidegs train garden                            in results/garden, as gsplat would
  tidegs train city --device-memory 4GiB --host-memory 8GiB --store /ssd/city
  tidegs train --resume results/garden           after Ctrl-C or a crash
  tidegs train garden --config fast              a preset: quality, fast, city, cpu, mcmc
--no-NAME turns a switch off. Also: --data_dir --result_dir --data_factor --max_steps, -s -m -r --iterations"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "tidegs train SCENE [--out RESULT] [options]"
    parser.add_argument("scene", type=Path, nargs="?", help=argparse.SUPPRESS)  # in HELP
    parser.add_argument("--out", type=Path, help="result folder (default: results/NAME of the scene)")
    hidden: dict[str, Any] = {"type": Path, "help": argparse.SUPPRESS, "default": argparse.SUPPRESS}
    parser.add_argument("-s", "--source_path", "--data_dir", dest="scene_alias", **hidden)
    parser.add_argument("-m", "--model_path", "--result_dir", dest="out", **hidden)
    parser.add_argument("--eval", action="store_true", help=argparse.SUPPRESS)  # INRIA's; images are held out anyway
    parser.add_argument(
        "--store",
        type=Path,
        help="where the blocks lie (OUT/store), best on a fast SSD",
    )
    parser.add_argument("--resume", type=Path, metavar="RESULT", help="go on from the last snapshot of a result")
    parser.add_argument(
        "--init",
        type=Path,
        metavar="FILE",
        help="start from these Gaussians (PLY, .splat, SPZ, SOG), optimizer state anew",
    )
    parser.add_argument("--config", metavar="PRESET", help="a preset of configs/, or a YAML file of settings")
    parser.add_argument("--no-eval", action="store_true", help="no evaluation and no PLY at the end")
    add_quiet(parser)
    parser.add_argument("--log-file", type=Path, metavar="FILE", help="also write messages and a line a minute here")
    parser.add_argument("--tensorboard", action="store_true", help="also write scalars and images to OUT/tb")
    parser.add_argument("--viewer", action="store_true", help="show the run in the browser while it trains")
    parser.add_argument(
        "--profile",
        action="store_true",
        help=f"write what every thread did in {STEPS} steps to OUT/stats/trace.json (Perfetto)",
    )
    add_config_options(parser)


def _config_for(trained: int, config: TrainConfig, args: argparse.Namespace) -> TrainConfig:
    """Harmonics that are trained already, up to a degree, are in use at once, unless the user says otherwise."""
    if trained and args.cfg_sh_degree_interval is None:
        return replace(config, sh_degree_interval=1)
    return config


def _apply_aliases(args: argparse.Namespace) -> None:
    """The scene of `-s` takes the place of SCENE."""
    alias = getattr(args, "scene_alias", None)
    if alias and args.scene:
        raise ConfigError(f"the scene is given twice, as {args.scene} and as {alias}: leave one out")
    args.scene = args.scene or alias


def run(args: argparse.Namespace) -> int:
    _apply_aliases(args)
    watch: dict[str, Any] = {name: getattr(args, name) for name in ("log_file", "tensorboard", "viewer", "profile")}
    if args.resume:
        if args.store or args.out or args.config or args.init:
            raise ConfigError(
                "--resume goes on with the result's store, folder and settings: "
                "leave out --store, --out, --config and --init"
            )
        config = config_from_args(args, args.resume / "cfg.yml")
        request = RunRequest(args.scene, args.resume, None, config, True, not args.no_eval, args.quiet, **watch)
    else:
        if args.scene is None:
            raise ConfigError("give a scene folder, or --resume RESULT")
        out = args.out or Path("results") / args.scene.resolve().name
        config = config_from_args(args)
        if args.init:
            config = _config_for(open_gaussians(args.init).sh_degree, config, args)
            watch["init"] = args.init
        elif args.store:
            config = _config_for(trained_degree(args.store), config, args)
        request = RunRequest(args.scene, out, args.store, config, False, not args.no_eval, args.quiet, **watch)
    outcome = run_training(request)
    if not outcome.finished:
        say(f"stopped after step {outcome.step}; go on with: tidegs train --resume {request.out}")
        return 130
    print(table(summary_rows(outcome.summary)))
    return 0
