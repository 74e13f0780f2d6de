"""`tidegs info`: what a scene, a store or a result holds."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from tidegs.cli.common import table
from tidegs.data.load import load_scene
from tidegs.data.scene import Scene
from tidegs.gaussians.open import open_gaussians
from tidegs.gaussians.packing import field, sigmoid
from tidegs.machine import human
from tidegs.store.block_store import BlockStore
from tidegs.store.info import describe as describe_store
from tidegs.train.result import ResultFolder
from tidegs.train.state import steps_done

HELP = (
    "Say what a scene folder, a block store, a result folder or a file of Gaussians (PLY, compressed PLY, .splat, SPZ, "
    "SOG) holds, without changing anything."
)
EPILOG = "examples:\n  tidegs info garden\n  tidegs info results/garden --json\n  tidegs info garden.spz"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, help="a scene folder, a store, a result folder, or a file of Gaussians")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    facts = describe(args.path)
    print(
        json.dumps(facts, indent=2)
        if args.json
        else table([(k.replace("_", " "), _shown(v)) for k, v in facts.items()])
    )
    return 0


def describe(path: Path) -> dict[str, Any]:
    """Facts about whatever lies at `path`. Raises TidegsError."""
    if (path / "run.json").exists():
        result = ResultFolder(path)
        run = result.read_run()
        store = {f"store_{k}" if k == "path" else k: v for k, v in _store(result.store_path()).items() if k != "kind"}
        return {"kind": "result", "scene": run.scene, "tidegs": run.tidegs, "train_images": run.train_images} | {
            "test_images": run.test_images,
            **store,
        }
    if (path / "root").exists():
        return _store(path)
    if path.is_file() or (path / "meta.json").is_file():
        return _gaussians(path)
    return _scene(load_scene(path))


def _gaussians(path: Path) -> dict[str, Any]:
    file = open_gaussians(path)
    low, high, opacity, infinite = np.full(3, np.inf), np.full(3, -np.inf), 0.0, 0
    for rows in file.chunks():
        means, logits = field(rows, "means"), field(rows, "opacities")
        low, high = np.minimum(low, means.min(0)), np.maximum(high, means.max(0))
        opacity += float(sigmoid(logits.astype(np.float64)).sum())
        infinite += int(np.isinf(logits).sum())
    return {
        "kind": "gaussians",
        "path": str(path),
        "format": file.format,
        "gaussians": file.count,
        "sh_degree": file.sh_degree,
        "antialiased": {True: "yes", False: "no", None: "not said"}[file.antialiased],
        "low": low.tolist() if file.count else None,
        "high": high.tolist() if file.count else None,
        "mean_opacity": opacity / max(1, file.count),
        "infinite_opacities": infinite,
    }


def _store(path: Path) -> dict[str, Any]:
    with BlockStore.open(path, readonly=True) as store:
        rows = store.table
        used = rows["count"] > 0
        space = describe_store(store)
        return {
            "kind": "store",
            "path": str(path),
            "step": steps_done(store),
            "snapshot": store.snapshot,
            "gaussians": int(rows["count"].sum()),
            "blocks": int(used.sum()),
            "block_capacity": store.layout.capacity,
            "sh_degree": store.layout.sh_degree,
            "store_dtype": store.layout.store_dtype,
            "record_bytes": store.layout.stored_record_nbytes,
            "space_by_plane": {plane: n for plane, n in space["bytes_by_plane"].items() if n},
            "file_bytes": space["file_bytes"],
            "fragmentation": space["fragmentation"],
            "adjacent": space["adjacent"],
            "bytes_written_ever": space["bytes_written_ever"],
            "low": rows["lo"][used].min(0).tolist() if used.any() else None,
            "high": rows["hi"][used].max(0).tolist() if used.any() else None,
        }


def _scene(scene: Scene) -> dict[str, Any]:
    sizes = sorted({(c.width, c.height) for c in scene.cameras})
    return {
        "kind": "scene",
        "path": str(scene.root),
        "images": len(scene.cameras),
        "train_images": len(scene.train),
        "test_images": len(scene.test),
        "image_sizes": [f"{w}x{h}" for w, h in sizes[:5]] + (["..."] if len(sizes) > 5 else []),
        "points": scene.points.count,
        "center": np.round(scene.transform.center, 6).tolist(),
        "scale": scene.transform.scale,
        "extent": scene.extent,
        "warnings": list(scene.warnings),
    }


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_shown(v) for v in value) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{name} {human(n)}" for name, n in value.items())
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}" if value < 1 << 30 else f"{value:,} ({human(value)})"
    return "none" if value is None else str(value)
