"""`tidegs doctor`: what this machine means for training."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from tidegs.errors import StoreError
from tidegs.report.doctor import Finding, examine

HELP = (
    "Look at this machine: CPU, RAM, the SSD's rates past the page cache, limits of the system, GPU, driver and "
    "GPUDirect Storage. Each line says what was found and what to do. Writes and removes a file of 256 MiB, for a few "
    "seconds."
)
EPILOG = "examples:\n  tidegs doctor\n  tidegs doctor /ssd/stores     the disk on which --store will lie"

_MARKS = {"good": "ok", "note": "note", "problem": "FIX"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, nargs="?", default=Path(), help="where stores will lie (this folder)")
    parser.add_argument("--quick", action="store_true", help="measure nothing, write nothing")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")


def run(args: argparse.Namespace) -> int:
    if not args.folder.is_dir():
        raise StoreError(f"{args.folder} is no folder; name one that exists")
    found = examine(args.folder, measure=not args.quick)
    print(json.dumps([asdict(f) for f in found], indent=2) if args.json else lines(found))
    return 0


def lines(found: list[Finding]) -> str:
    """A line for each finding, its remedy below it."""
    width = max(len(f.name) for f in found)
    out = []
    for f in found:
        out.append(f"{_MARKS[f.state]:<5} {f.name:<{width}}  {f.found}")
        out.append(f"{'':<5} {'':<{width}}  -> {f.remedy}")
    return "\n".join(out)
