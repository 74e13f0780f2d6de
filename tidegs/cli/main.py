"""`tidegs`: finds the command, runs it, and turns a TidegsError into one line and exit status 2.

Invariant: a command's module is imported only when it is asked for, so `tidegs --help` is quick.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import sys
import textwrap
from functools import partial

from tidegs import __version__
from tidegs.errors import TidegsError

COMMANDS = {
    "train": "train a COLMAP scene, out of core when it does not fit",
    "eval": "PSNR and SSIM of a result's test split",
    "render": "render test views, train views or a camera path to PNG and MP4",
    "export": "write a result as PLY, compressed PLY, .splat, SPZ or SOG",
    "info": "what a scene, a store or a result holds",
    "plan": "what a scene will need under given budgets, before training",
    "report": "where memory and time went in a run",
    "view": "look at a result or a store in the browser",
    "doctor": "what this machine means for training, and what to change",
    "store": "make a block store ahead of a run; check, compact or copy one",
    "synth": "generate a city as a COLMAP scene",
    "demo": "generate a city and do all of the above with it",
    "completion": "print a script that completes commands and options in bash",
}


def build_parser(command: str | None) -> argparse.ArgumentParser:
    """The parser with the arguments of one command filled in; the other commands are listed only."""
    parser = argparse.ArgumentParser(
        prog="tidegs",
        description="Out-of-core training of 3D Gaussian Splatting.",
        epilog="Start with: tidegs train SCENE   (a folder with images/ and sparse/0/). See tidegs COMMAND --help.",
    )
    parser.add_argument("--version", action="version", version=f"tidegs {__version__}")
    width = shutil.get_terminal_size().columns - 2
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text in COMMANDS.items():
        if name == command:
            module = importlib.import_module(f"tidegs.cli.{name}")
            sub = commands.add_parser(
                name,
                help=text,
                description=textwrap.fill(module.HELP, width),
                epilog=getattr(module, "EPILOG", None),
                formatter_class=partial(argparse.RawDescriptionHelpFormatter, max_help_position=44, width=width),
            )
            module.add_arguments(sub)
        else:
            commands.add_parser(name, help=text, add_help=False)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Runs one command. Returns the exit status: 0, 2 for an error of use or data, 130 after Ctrl-C."""
    argv = sys.argv[1:] if argv is None else argv
    command = next((a for a in argv if not a.startswith("-")), None)
    parser = build_parser(command if command in COMMANDS else None)
    args = parser.parse_args(argv)
    try:
        return int(importlib.import_module(f"tidegs.cli.{args.command}").run(args))
    except TidegsError as error:
        print(f"tidegs {args.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


if __name__ == "__main__":
    sys.exit(main())
