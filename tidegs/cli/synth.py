"""tidegs synth: writes a generated city as a COLMAP scene, or its points alone."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from tidegs.cli.options import add_config_options, config_from_args
from tidegs.config import parse_memory
from tidegs.data.synth import PRESETS, write_scene
from tidegs.data.synth_ply import write_point_shards
from tidegs.errors import ConfigError
from tidegs.train.made_ahead import extent_for, write_city

NAME = "synth"
HELP = "generate a city as a COLMAP scene (images, cameras, points), for trying out, tests and benchmarks"

EPILOG = """examples:
  tidegs synth city                              the scene of the demo: 80 images of 480x320, 60,000 points
  tidegs synth city --preset tiny                a few small images, in a second or two
  tidegs synth big --extent 1000 --aerial 600 --street 200 --size 960 640 --points 2e6
  tidegs synth utm --origin 500000 5400000 120   the same in map coordinates
  tidegs synth huge --points 1e9 --store /nvme/huge --size 512 512 --district 640 --aerial 256 --oblique 0 --street 0
  tidegs synth scan --points-only --points 1e9 --extent 5900 7900 --ply-shards 32

The same arguments give the same bytes. Frame: metres, x east, y north, z up."""


def _count(text: str) -> int:
    """A whole number, also as 1e9."""
    value = float(text)
    if value != int(value) or value < 0:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number")
    return int(value)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("out", type=Path, metavar="OUT", help="new folder for the scene: images/ and sparse/0/")
    add("--preset", choices=sorted(PRESETS), default="demo", help="start from these settings (default: demo)")
    add("--seed", type=int, help="another seed gives another city (default: 0)")
    add("--extent", type=float, nargs="+", metavar="M", help="side of the city in metres, one number or two (200)")
    add("--aerial", type=_count, metavar="N", help="cameras of the survey flight, half nadir, half oblique (60)")
    add("--street", type=_count, metavar="N", help="cameras of the drive through the streets (20)")
    add("--size", type=int, nargs=2, metavar=("W", "H"), help="image size in pixels (480 320)")
    add("--samples", type=int, metavar="N", help="N x N rays a pixel, against aliasing (2)")
    add("--altitude", type=float, metavar="M", help="height of the survey flight over ground, metres (90)")
    add("--oblique", type=float, metavar="F", help="share of the survey's cameras that look 45 degrees down (0.5)")
    add("--district", type=float, metavar="M", help="side of the square in the middle that is surveyed (all)")
    add("--image-format", choices=("jpg", "png"), help="JPEG of quality 97 with full chroma, or lossless PNG (jpg)")
    add("--points", type=_count, metavar="N", help="number of points, e.g. 60000 or 1e9 (60000)")
    add(
        "--points-from",
        choices=("seen", "all"),
        help="seen: only surfaces that two cameras see, as photogrammetry finds them; costs points x cameras. "
        "all: all surfaces (seen)",
    )
    add("--point-noise", type=float, metavar="M", help="standard deviation of each coordinate, metres (0.02)")
    add("--origin", type=float, nargs=3, metavar=("X", "Y", "Z"), help="added to all coordinates, metres (0 0 0)")
    add("--no-text", action="store_true", help="write only the binary model, not the .txt files beside it")
    add("--points-only", action="store_true", help="no images: all surfaces' points as PLY, streamed")
    add(
        "--store",
        type=Path,
        metavar="PATH",
        help="stream all points into a new block store there, for tidegs train OUT --store PATH; OUT holds a sample of "
        "them. --extent is then what gives 21 points a square metre, and cameras need not see a point",
    )
    add("--memory", default="1GiB", metavar="SIZE", help="what the external sort of --store may hold (1GiB)")
    add("--ply-shards", type=_count, metavar="N", help="number of PLY files of --points-only (1)")
    add_config_options(parser, ("block_capacity", "sh_degree", "init_opacity"))


def run(args: argparse.Namespace) -> int:
    """Writes the scene; raises TidegsError."""
    if args.store and args.points_only:
        raise ConfigError("--store and --points-only exclude each other: the store takes all points")
    if args.ply_shards is not None and not args.points_only:
        raise ConfigError("--ply-shards needs --points-only: a COLMAP scene keeps its points in sparse/0/points3D.bin")
    settings = PRESETS[args.preset]
    same = (
        "seed", "aerial", "street", "samples", "altitude", "oblique", "district", "image_format", "points",
        "point_noise",
    )  # fmt: skip
    given = {name: getattr(args, name) for name in same if getattr(args, name) is not None}
    if args.extent:
        if len(args.extent) > 2:
            raise ConfigError(f"--extent takes one or two numbers, not {len(args.extent)}")
        given["extent"] = (args.extent[0], args.extent[-1])
    if args.size:
        given["width"], given["height"] = args.size
    if args.points_from:
        given["seen_points"] = args.points_from == "seen"
    if args.origin:
        given["origin"] = tuple(args.origin)
    if args.no_text:
        given["text"] = False
    if args.store and "extent" not in given:
        given["extent"] = (extent_for(given.get("points", settings.points)),) * 2
    settings = replace(settings, **given)
    if args.store:
        memory = parse_memory(args.memory, total=1 << 30, name="--memory")
        write_city(args.out, args.store, settings, config_from_args(args), memory)
        print(f"wrote {args.store}; train it with: tidegs train {args.out} --store {args.store}")
    elif args.points_only:
        write_point_shards(args.out, settings, args.ply_shards or 1)
    else:
        write_scene(args.out, settings)
    if not args.store:
        print(f"wrote {args.out}")
    return 0
