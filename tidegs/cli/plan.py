"""`tidegs plan`: what a scene will need, before training."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tidegs.cli.common import add_quiet, scene_of, table
from tidegs.cli.options import add_config_options, config_from_args
from tidegs.config import TrainConfig
from tidegs.data.scene import Scene
from tidegs.errors import ConfigError
from tidegs.gaussians.layout import RecordLayout
from tidegs.machine import human
from tidegs.store.block_store import BlockStore
from tidegs.train.imagined import city_table, city_views, ground_for
from tidegs.train.plan import LinkRates, Plan, plan_run, plan_views
from tidegs.train.result import ResultFolder
from tidegs.train.session import ingest_scene, open_scene
from tidegs.train.strategies.choose import resolved
from tidegs.train.summary import LINK_NAMES

HELP = (
    "Say what a scene will need under given budgets before training starts: working sets, memory of each tier, bytes "
    "over each link in a step, where the scene will live (in core, RAM or SSD), and what to change. Takes a scene "
    "folder, or a result whose blocks have moved since."
)
EPILOG = """examples:
  tidegs plan garden
  tidegs plan --synthetic 1e9 --device-memory 20GiB --host-memory 64GiB
  tidegs plan city --device-memory 20GiB --host-memory 64GiB --ssd-rate 5 --copy-rate 25"""
OPTIONS = (
    "data_factor", "test_every", "device_memory", "host_memory", "block_capacity", "batch_size", "order", "seed",
    "sh_degree", "strategy",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, nargs="?", help="a scene folder, or a result folder of tidegs train")
    parser.add_argument(
        "--synthetic",
        type=float,
        metavar="N",
        help="plan an aerial survey of a city of N Gaussians, with its cameras, of which only the table is made",
    )
    parser.add_argument("--ssd-rate", type=float, metavar="GB/S", help="rate of the SSD, reads and writes alike")
    parser.add_argument("--copy-rate", type=float, metavar="GB/S", help="rate of copies between host and device")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    add_quiet(parser)
    add_config_options(parser, OPTIONS)


def run(args: argparse.Namespace) -> int:
    rates = _rates(args)
    found = make_plan(args)
    facts = found.as_json(rates)
    print(json.dumps(facts, indent=2) if args.json else table(_rows(found, facts)))
    return 0


def _rates(args: argparse.Namespace) -> LinkRates | None:
    given = (args.ssd_rate, args.copy_rate)
    if given == (None, None):
        return None
    if None in given or min(given) <= 0:
        raise ConfigError("give both --ssd-rate and --copy-rate, in GB a second, or neither")
    return LinkRates(args.ssd_rate * 1e9, args.ssd_rate * 1e9, args.copy_rate * 1e9)


def make_plan(args: argparse.Namespace) -> Plan:
    """The plan for whatever lies at args.path, or for a scene that does not exist."""
    if (args.path is None) == (args.synthetic is None):
        raise ConfigError("give a scene or result folder, or --synthetic N")
    if args.synthetic is not None:
        return _imagined(args.synthetic, config_from_args(args))
    result = ResultFolder(args.path)
    if result.run.exists():
        config = config_from_args(args, result.cfg)
        scene = scene_of(result, config, None, args.quiet)
        return plan_run(scene, config, *_table(result.store_path()))
    config = config_from_args(args)
    scene = open_scene(args.path, config, args.quiet)
    config = resolved(config, scene.require_points().count)
    return plan_run(scene, config, *_ingested(scene, config))


def _imagined(gaussians: float, config: TrainConfig) -> Plan:
    if not 1 <= gaussians <= 1e12:
        raise ConfigError(f"--synthetic {gaussians:g} is not between 1 and 1e12 Gaussians")
    ground = ground_for(int(gaussians))
    views = city_views(*ground)
    table = city_table(*ground, config.block_capacity)
    return plan_views(
        views, tuple(range(len(views))), config, table, RecordLayout(config.block_capacity, config.sh_degree)
    )


def _ingested(scene: Scene, config: TrainConfig) -> tuple[np.ndarray, RecordLayout]:
    """The table that training would begin with, from an ingest that is thrown away."""
    with tempfile.TemporaryDirectory(prefix="tidegs-plan-") as folder:
        ingest_scene(scene.require_points(), Path(folder) / "store", config, quiet=True)
        return _table(Path(folder) / "store")


def _table(path: Path) -> tuple[np.ndarray, RecordLayout]:
    with BlockStore.open(path, readonly=True) as store:
        return store.table.copy(), store.layout


def _rows(found: Plan, facts: dict[str, Any]) -> list[tuple[str, str]]:
    b, sets, moved = found.budgets, facts["working_set"], facts["bytes_a_step"]
    slot = b.layout.slot_nbytes
    rows = [
        ("scene", f"{b.blocks:,} blocks of {b.layout.capacity} Gaussians, {human(b.scene_bytes)}"),
        (
            "lives",
            {"in core": "in core", "RAM": "in RAM, behind the arena", "SSD": "on SSD, behind both tiers"}[found.mode],
        ),
        ("arena", f"{b.arena_slots:,} blocks, {human(b.arena_bytes)}"),
        ("host cache", f"{b.host_slots:,} blocks, {human(b.host_bytes)}"),
        ("a view needs", f"{sets['mean']:,.0f} blocks ({human(sets['mean'] * slot)}), at most {sets['max']:,}"),
        ("views in parts", f"{100 * facts['parted_cameras_share']:.0f} %"),
        ("camera order", found.order),
        ("loads a step", f"{facts['blocks_loaded_a_step']:,.1f} blocks"),
        *[(f"{LINK_NAMES[link]}, a step", human(n)) for link, n in moved.items()],
        ("store, at most", f"{human(2 * facts['store_bytes'])} of SSD, with a snapshot"),
    ]
    if "io_seconds_a_step" in facts:
        rows.append(
            ("moving, a step", f"{1000 * facts['io_seconds_a_step']:.1f} ms, hidden while rendering takes longer")
        )
    return rows + [("advice", text) for text in found.advice() or ["nothing to change"]]
