"""`tidegs eval`: quality of a result on its test split."""

from __future__ import annotations

import argparse
from pathlib import Path

from tidegs.cli.common import RUNTIME, add_quiet, add_result_argument, scene_of, table
from tidegs.cli.options import add_config_options, config_from_args
from tidegs.errors import SceneError
from tidegs.train.log import say
from tidegs.train.result import ResultFolder
from tidegs.train.run import evaluate_session
from tidegs.train.settled import settled_session
from tidegs.train.state import steps_done

HELP = (
    "Render the test split of a result from its last snapshot and print PSNR, SSIM and, where its weights are at hand, "
    "LPIPS. Writes stats/val_stepNNNN.json with the protocol, and truth beside render for each image."
)
EPILOG = "example:\n  tidegs eval results/garden --device-memory 2GiB"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_result_argument(parser)
    parser.add_argument("--scene", type=Path, help="where the scene is now, if it was moved")
    parser.add_argument("--no-images", action="store_true", help="save no comparison images")
    add_quiet(parser)
    add_config_options(parser, RUNTIME)


def run(args: argparse.Namespace) -> int:
    result = ResultFolder(args.result)
    config = config_from_args(args, result.cfg)
    scene = scene_of(result, config, args.scene, args.quiet)
    if not scene.test:
        raise SceneError(f"{scene.root}: there is no test image; the result was trained with --test-every 0")
    with settled_session(scene, result, config, args.quiet) as session:
        step = steps_done(session.store)
        found = evaluate_session(session, step, save=not args.no_images)
    say(f"step {step}; details in {result.stats / f'val_step{step:04d}.json'}", args.quiet)
    lpips, matched = found.mean("lpips"), found.mean("cc_psnr")
    print(
        table(
            [
                ("PSNR", f"{found.mean('psnr'):.3f}"),
                *([] if matched is None else [("PSNR, colours matched", f"{matched:.3f}")]),
                ("SSIM", f"{found.mean('ssim'):.4f}"),
                ("LPIPS", f"{lpips:.4f}" if lpips is not None else found.protocol.lpips),
                ("images", str(len(found.images))),
                ("Gaussians", f"{found.num_gaussians:,}"),
                ("seconds an image", f"{found.seconds_per_image:.3f}"),
            ]
        )
    )
    return 0
