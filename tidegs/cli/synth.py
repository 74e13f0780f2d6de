"""tidegs synth: writes a generated city as a COLMAP scene, or its points alone."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from tidegs.data.synth import PRESETS, write_scene
from tidegs.data.synth_ply import write_point_shards
from tidegs.errors import ConfigError

NAME = "synth"
HELP = "generate a city as a COLMAP scene (images, cameras, points), for trying out, tests and benchmarks"

EPILOG = """examples:
  tidegs synth city                              the scene of the demo: 80 images of 480x320, 60,000 points
  tidegs synth city --preset tiny                a few small images, in a second or two
  tidegs synth big --extent 1000 --aerial 600 --street 200 --size 960 640 --points 2e6
  tidegs synth utm --origin 500000 5400000 120   the same in map coordinates
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
    add("--ply-shards", type=_count, metavar="N", help="number of PLY files of --points-only (1)")


def run(args: argparse.Namespace) -> int:
    """Writes the scene; raises TidegsError."""
    if args.ply_shards is not None and not args.points_only:
        raise ConfigError("--ply-shards needs --points-only: a COLMAP scene keeps its points in sparse/0/points3D.bin")
    settings = PRESETS[args.preset]
    same = ("seed", "aerial", "street", "samples", "altitude", "image_format", "points", "point_noise")
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
    settings = replace(settings, **given)
    if args.points_only:
        write_point_shards(args.out, settings, args.ply_shards or 1)
    else:
        write_scene(args.out, settings)
    print(f"wrote {args.out}")
    return 0
