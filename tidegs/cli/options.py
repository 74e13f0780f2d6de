"""Command line options made from the fields of TrainConfig, so that help, presets and settings cannot differ."""

from __future__ import annotations

import argparse
import dataclasses
import typing
from pathlib import Path
from typing import Any, Literal

from tidegs.config import TrainConfig, load_config, preset_path

# Spellings of INRIA's trainer for settings that mean the same there; understood, and not in the help.
INRIA = {
    "data_factor": ("-r", "--resolution"),
    "max_steps": ("--iterations",),
    "eval_steps": ("--test_iterations",),
    "save_steps": ("--checkpoint_iterations",),
    "ply_steps": ("--save_iterations",),
    "ssim_lambda": ("--lambda_dssim",),
}

_METAVARS = {int: "N", float: "X", str: "SIZE"}


def add_config_options(parser: argparse.ArgumentParser, only: tuple[str, ...] | None = None) -> None:
    """Adds `--name` for each setting, grouped; a value that is not given stays with the preset or the default."""
    hints = typing.get_type_hints(TrainConfig)
    groups: dict[str, Any] = {}
    for f in dataclasses.fields(TrainConfig):
        if only is not None and f.name not in only:
            continue
        group = groups.setdefault(f.metadata["group"], parser.add_argument_group(f.metadata["group"]))
        _add(group, f, hints[f.name])


def _add(group: Any, f: dataclasses.Field[Any], hint: Any) -> None:
    flag = f"--{f.name.replace('_', '-')}"
    others = list(INRIA.get(f.name, ()))
    if "_" in f.name:
        others.append(f"--{f.name}")  # gsplat's spelling
    text = f"{f.metadata['help']} ({_shown(f.default)})"
    origin = typing.get_origin(hint)
    extra: dict[str, Any] = {"dest": f"cfg_{f.name}", "default": None, "help": text}
    if origin is Literal:
        extra |= {"choices": typing.get_args(hint)}
    elif origin is tuple:
        args = typing.get_args(hint)
        variable = Ellipsis in args
        extra |= {"nargs": "*" if variable else len(args), "type": args[0], "metavar": "N" if variable else "X"}
    elif hint is bool:
        extra |= {"action": "store_true"}
        no = {**extra, "action": "store_false", "help": argparse.SUPPRESS}
        group.add_argument(f"--no-{flag[2:]}", **no)
    else:
        extra |= {"type": hint, "metavar": f.metadata.get("metavar") or _METAVARS[hint]}
    group.add_argument(flag, **extra)
    if others:
        group.add_argument(*others, **{**extra, "help": argparse.SUPPRESS})


def _shown(default: Any) -> str:
    if isinstance(default, tuple):
        return " ".join(f"{v:g}" for v in default)
    return f"{default:g}" if isinstance(default, float) else str(default)


def config_overrides(args: argparse.Namespace) -> dict[str, Any]:
    """The settings given on the command line."""
    return {k[4:]: v for k, v in vars(args).items() if k.startswith("cfg_") and v is not None}


def config_from_args(args: argparse.Namespace, source: Path | None = None) -> TrainConfig:
    """Settings from a file (or `--config`, or the defaults) and the command line over them. Raises ConfigError."""
    if source is None and getattr(args, "config", None):
        source = preset_path(args.config)
    overrides = config_overrides(args)
    return load_config(source, overrides) if source else TrainConfig(**overrides)
