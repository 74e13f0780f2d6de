"""`tidegs report`: where memory and time went."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tidegs.cli.common import add_quiet
from tidegs.report.facts import collect
from tidegs.report.result import read_run
from tidegs.report.table import render

HELP = (
    "Say where memory and time went in a run: budget, peak and owners of each tier, bytes moved on each link against a "
    "reload of the whole scene in each step, stalls, overlap, quality. Prints a table and writes RESULT/report.html, "
    "one file that works offline. Two results are compared. Works while the run goes on."
)
EPILOG = """examples:
  tidegs report results/garden                     table, and results/garden/report.html
  tidegs report results/garden --json | jq .tiers
  tidegs report results/small-arena results/big-arena"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("result", type=Path, nargs="+", help="a result folder of tidegs train; two or more to compare")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table, and write no page")
    add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    runs = [read_run(root) for root in args.result]
    facts = [collect(one) for one in runs]
    if args.json:
        print(json.dumps(facts[0] if len(facts) == 1 else facts, indent=2))
        return 0
    print(render(facts[0]))
    return 0
