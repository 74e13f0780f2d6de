"""`tidegs store`: make a block store ahead of a run; check, compact or copy one."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from tidegs.cli.common import add_quiet
from tidegs.cli.options import add_config_options, config_from_args
from tidegs.config import parse_memory
from tidegs.machine import available_memory, human
from tidegs.store.maintain import check_store, compact_store, copy_store
from tidegs.train.made_ahead import make_store
from tidegs.train.result import ResultFolder

NAME = "store"
HELP = (
    "Block stores: make one ahead of a run, verify every record of one, give free space back, copy the last snapshot."
)
EPILOG = (
    "examples:\n  tidegs store make city --store /nvme/city --init scan.ply\n"
    "  tidegs train city --store /nvme/city           begins there\n"
    "  tidegs store check results/garden\n  tidegs store copy results/garden /mnt/backup/garden.store\n"
    "  tidegs store compact results/garden"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    make = actions.add_parser("make", help="stream points or Gaussians of any number into a new store")
    make.add_argument("scene", type=Path, metavar="SCENE", help="scene folder of the run")
    make.add_argument("--store", type=Path, required=True, metavar="PATH", help="new folder, best on a fast SSD")
    make.add_argument(
        "--init",
        type=Path,
        metavar="FILE",
        help="a PLY of points, or Gaussians (PLY, compressed PLY, .splat, SPZ, SOG), in the scene's frame; without it, "
        "the scene's own points",
    )
    make.add_argument("--host-memory", default="1GiB", metavar="SIZE", help="what the external sort may hold (1GiB)")
    add_quiet(make)
    add_config_options(make, ("block_capacity", "store_dtype", "sh_degree", "init_opacity", "init_scale", "strategy"))
    check = actions.add_parser("check", help="read and verify everything; status 1 where something is damaged")
    check.add_argument("--json", action="store_true", help="print JSON")
    compact = actions.add_parser("compact", help="move records into holes and cut the files")
    copy = actions.add_parser("copy", help="copy the last snapshot to a new folder, and verify the copy")
    for action in (check, compact, copy):
        action.add_argument("path", type=Path, help="a store, or a result folder of tidegs train")
    copy.add_argument("target", type=Path, help="a folder that does not exist yet, or is empty")


def run(args: argparse.Namespace) -> int:
    if args.action == "make":
        memory = parse_memory(args.host_memory, total=available_memory(), name="--host-memory")
        count = make_store(args.scene, args.store, config_from_args(args), memory, args.init, args.quiet)
        print(f"{args.store}: {count:,} Gaussians; train them with: tidegs train {args.scene} --store {args.store}")
        return 0
    path = ResultFolder(args.path).store_path() if (args.path / "run.json").exists() else args.path
    if args.action == "check":
        return _check(path, args.json)
    if args.action == "copy":
        blocks = copy_store(path, args.target, progress=True)
        print(f"copied {blocks:,} blocks to {args.target} and read them back")
    else:
        print(f"gave {human(compact_store(path, progress=True))} back")
    return 0


def _check(path: Path, as_json: bool) -> int:
    report = check_store(path, progress=not as_json)
    if as_json:
        print(json.dumps(asdict(report), indent=2))
    else:
        for problem in report.problems:
            print(problem)
        found = f"{len(report.problems)} problems" if report.problems else "sound"
        print(f"{path}: snapshot {report.snapshot}, {report.blocks:,} blocks, {human(report.bytes_read)}: {found}")
    return 1 if report.problems else 0
