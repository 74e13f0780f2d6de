"""`tidegs demo`: the main job end to end on a generated city, or on a scene of the user's."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from tidegs.cli.common import add_quiet, table
from tidegs.cli.main import main
from tidegs.errors import TidegsError
from tidegs.train.log import say
from tidegs.train.summary import summary_rows

HELP = (
    "Generate a city (or take --scene), train it out of core with an arena and a host cache smaller than the scene, "
    "evaluate the test split, render a flight, export a PLY, write the report, and print a table."
)
EPILOG = "examples:\n  tidegs demo\n  tidegs demo --scene garden --out results/garden-demo"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scene", type=Path, help="a scene of yours instead of the generated city")
    parser.add_argument("--out", type=Path, default=Path("results/demo"), help="result folder (results/demo); replaced")
    parser.add_argument("--steps", type=int, default=1000, metavar="N", help="optimizer steps (1000)")
    add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    quiet = ["--quiet"] if args.quiet else []
    if (args.out / "run.json").exists():
        shutil.rmtree(args.out)
    scene = args.scene or args.out.parent / f"{args.out.name}-city"
    if args.scene is None and not (scene / "sparse").exists():
        _do(["synth", str(scene)])
    steps = str(args.steps)
    budgets = ["--device-memory", "40%", "--host-memory", "30%", "--block-capacity", "256"]
    schedule = ["--max-steps", steps, "--eval-steps", steps, "--save-steps", steps, "--ply-steps", steps]
    _do(
        [
            "train",
            str(scene),
            "--out",
            str(args.out),
            "--sh-degree-interval",
            str(max(1, args.steps // 4)),
            *budgets,
            *schedule,
            *quiet,
        ]
    )
    _do(["render", str(args.out), "--views", "path", "--mp4", "--frames", "90", *quiet])
    _do(["render", str(args.out), "--views", "test", *quiet])
    _do(["report", str(args.out)])
    summary = json.loads((args.out / "stats" / "summary.json").read_text())
    say("\nwhat is where:", args.quiet)
    say(
        table([(str(p.relative_to(args.out)), "") for p in sorted(args.out.glob("*")) if not p.name.startswith(".")]),
        args.quiet,
    )
    print(table(summary_rows(summary)))
    return 0


def _do(argv: list[str]) -> None:
    """Runs a command as a user would."""
    say(f"\n$ tidegs {' '.join(argv)}")
    status = main(argv)
    if status:
        raise TidegsError(f"`tidegs {argv[0]}` ended with status {status}")
