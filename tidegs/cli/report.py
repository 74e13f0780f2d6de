"""`tidegs report`: where memory and time went."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tidegs.cli.common import add_quiet
from tidegs.errors import TidegsError
from tidegs.files import write_bytes
from tidegs.report.facts import collect
from tidegs.report.page import build, build_comparison, unique_names
from tidegs.report.result import RunData, read_run
from tidegs.report.study import Cameras, add_study, study
from tidegs.report.table import columns, compare_rows, render
from tidegs.train.log import say
from tidegs.train.session import load_as, view_of

HELP = (
    "Say where memory and time went in a run: budget, peak and owners of each tier, bytes moved on each link against a "
    "reload of the whole scene in each step, stalls, overlap, quality. Prints a table and writes RESULT/report.html, "
    "one file that works offline. Several results are compared. Works while the run goes on."
)
EPILOG = """examples:
  tidegs report results/garden                     table, and results/garden/report.html
  tidegs report results/garden --json | jq .tiers
  tidegs report results/small-arena results/big-arena --html compare.html"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("result", type=Path, nargs="+", help="a result folder of tidegs train; several to compare")
    parser.add_argument("--scene", type=Path, help="where the scene is now, if it was moved")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table, and write no page")
    parser.add_argument("--html", type=Path, metavar="FILE", help="where to write the page (RESULT/report.html)")
    add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    runs = [read_run(root) for root in args.result]
    return _one(runs[0], args) if len(runs) == 1 else _several(runs, args)


def _one(found: RunData, args: argparse.Namespace) -> int:
    facts = collect(found)
    studied = study(found, _cameras(found, args.scene))
    add_study(facts, studied)
    if args.json:
        print(json.dumps(facts, indent=2))
        return 0
    page = args.html or found.root / "report.html"
    write_bytes(page, build(found, facts, studied).encode())
    print(render(facts))
    say(f"wrote {page}", args.quiet)
    return 0


def _several(runs: list[RunData], args: argparse.Namespace) -> int:
    facts = [collect(one) for one in runs]
    if args.json:
        print(json.dumps(facts, indent=2))
        return 0
    print(columns(compare_rows(unique_names(runs), facts)))
    if args.html:
        write_bytes(args.html, build_comparison(runs).encode())
        say(f"wrote {args.html}", args.quiet)
    return 0


def _cameras(found: RunData, override: Path | None) -> Cameras | str:
    """Cameras of the scene, or why there are none."""
    root = override or Path(str(found.run.get("scene", "")))
    try:
        scene = load_as(root, found.config)
    except TidegsError as error:
        return f"{error} (--scene says where it is now)"
    return Cameras([view_of(camera) for camera in scene.cameras], scene.train)
