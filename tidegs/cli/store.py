"""`tidegs store`: check, compact or copy a block store."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from tidegs.machine import human
from tidegs.store.maintain import check_store, compact_store, copy_store
from tidegs.train.result import ResultFolder

NAME = "store"
HELP = "Care of a block store: verify every record, give free space back, copy the last snapshot."
EPILOG = (
    "examples:\n  tidegs store check results/garden\n  tidegs store copy results/garden /mnt/backup/garden.store\n"
    "  tidegs store compact results/garden"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser("check", help="read and verify everything; status 1 where something is damaged")
    check.add_argument("--json", action="store_true", help="print JSON")
    compact = actions.add_parser("compact", help="move records into holes and cut the files")
    copy = actions.add_parser("copy", help="copy the last snapshot to a new folder, and verify the copy")
    for action in (check, compact, copy):
        action.add_argument("path", type=Path, help="a store, or a result folder of tidegs train")
    copy.add_argument("target", type=Path, help="a folder that does not exist yet, or is empty")


def run(args: argparse.Namespace) -> int:
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
