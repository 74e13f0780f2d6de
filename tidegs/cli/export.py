"""`tidegs export`: a result's Gaussians as a file for viewers and other tools, streamed."""

from __future__ import annotations

import argparse
from pathlib import Path

from tidegs.cli.common import add_quiet, add_result_argument
from tidegs.gaussians.select import Selection
from tidegs.gaussians.write import FORMATS
from tidegs.machine import human
from tidegs.train.export import export_result
from tidegs.train.log import say
from tidegs.train.result import ResultFolder

HELP = (
    "Write the Gaussians of a result as a file that viewers and other trainers read, in the frame of the input scene. "
    "Files are streamed block by block, so it works at any size; SOG takes some 30 bytes of memory a Gaussian. PLY is "
    "exact and in INRIA's property order; the other formats round, and .splat has no view-dependent colour."
)
EPILOG = """examples:
  tidegs export results/city --out city.ply
  tidegs export results/city --out city.sog            for PlayCanvas and SuperSplat, some 15 times smaller
  tidegs export results/city --out block.spz --crop -50 -50 0 50 50 40
  tidegs export results/city --out phone.splat --max-count 500000"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_result_argument(parser)
    parser.add_argument("--out", type=Path, help="the file to write (default: RESULT/ply/point_cloud_STEP.ply)")
    parser.add_argument("--format", choices=FORMATS, help="its format (default: as its suffix says)")
    parser.add_argument(
        "--crop",
        type=float,
        nargs=6,
        metavar=("X0", "Y0", "Z0", "X1", "Y1", "Z1"),
        help="only Gaussians with their centre in this box; coordinates of the input scene",
    )
    parser.add_argument(
        "--max-count",
        type=int,
        metavar="N",
        help="only the N that show most: greatest opacity times area of the greatest cross-section",
    )
    add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    result = ResultFolder(args.result)
    selection = Selection(tuple(args.crop) if args.crop else None, args.max_count)
    path, count = export_result(result, args.out, not args.quiet, args.format, selection)
    say(f"wrote {count:,} Gaussians to {path} ({human(path.stat().st_size)})", args.quiet)
    return 0
