"""`tidegs export`: a result's Gaussians as a PLY in the INRIA property order, streamed."""

from __future__ import annotations

import argparse
from pathlib import Path

from tidegs.cli.common import add_quiet, add_result_argument
from tidegs.machine import human
from tidegs.train.export import export_result
from tidegs.train.log import say
from tidegs.train.result import ResultFolder

HELP = (
    "Write the Gaussians of a result as a PLY that other viewers and trainers read (INRIA's property order). The file "
    "is streamed block by block, so it works at any size; coordinates are in the frame of the input scene."
)
EPILOG = "example:\n  tidegs export results/city --out city.ply"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_result_argument(parser)
    parser.add_argument("--out", type=Path, help="the file to write (default: RESULT/ply/point_cloud_STEP.ply)")
    add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    result = ResultFolder(args.result)
    path, count = export_result(result, args.out, progress=not args.quiet)
    say(f"wrote {count:,} Gaussians to {path} ({human(path.stat().st_size)})", args.quiet)
    return 0
