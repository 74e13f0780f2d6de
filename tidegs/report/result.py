"""What a result folder says of its run: settings, log, summary, evaluations and comparison images.

Invariant: reading changes nothing, and every part but `run.json` may be absent: a run that goes on has no summary yet.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidegs.config import TrainConfig, load_config
from tidegs.errors import ConfigError, SceneError

_SUMS = ("seconds", "stall_seconds", "stalls", "hits", "misses", "passes", "busy_seconds", "image_wait_seconds")
_SUMS_BY_LINK = ("moved_bytes", "moved_seconds", "moved_blocks")


@dataclass(frozen=True)
class Comparison:
    """A PNG with the truth on its left half and the render on its right."""

    step: int
    index: int
    path: Path


@dataclass(frozen=True)
class RunData:
    """One run as its result folder tells it. What is absent is None or empty."""

    root: Path
    run: dict[str, Any]  # run.json
    config: TrainConfig
    ledger: dict[str, Any]  # stats/ledger.json
    rows: list[dict[str, Any]]  # stats/train.jsonl; sums go on over resumes
    restarts: list[int]  # steps after which the run was resumed
    summary: dict[str, Any] | None  # stats/summary.json
    evaluations: dict[int, dict[str, Any]] = field(default_factory=dict)  # by step
    comparisons: list[Comparison] = field(default_factory=list)  # of the newest evaluation
    plan: dict[str, Any] | None = None  # stats/plan.json
    order: dict[str, Any] | None = None  # ckpts/order.json

    @property
    def name(self) -> str:
        return self.root.resolve().name

    @property
    def last(self) -> dict[str, Any]:
        """The newest line of the log."""
        return self.rows[-1] if self.rows else {}


def read_run(root: Path) -> RunData:
    """Reads a result folder. Raises SceneError where it is none, or a file in it cannot be read."""
    run = _json(root / "run.json")
    if run is None:
        raise SceneError(f"{root}: not a result folder of tidegs train (no run.json)")
    try:
        config = load_config(root / "cfg.yml")
    except ConfigError as error:
        raise SceneError(str(error)) from error
    stats = root / "stats"
    rows, restarts = stitch(_rows(stats / "train.jsonl"))
    evaluations = {step: value for step, path in _numbered(stats, "val_step*.json") if (value := _json(path))}
    return RunData(
        root=root,
        run=run,
        config=config,
        ledger=_json(stats / "ledger.json") or {},
        rows=rows,
        restarts=restarts,
        summary=_json(stats / "summary.json"),
        evaluations=evaluations,
        comparisons=_comparisons(root / "renders"),
        plan=_json(stats / "plan.json"),
        order=_json(root / "ckpts" / "order.json"),
    )


def stitch(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[int]]:
    """Rows whose sums go on where the process before a resume left them, and the steps where that happened."""
    out: list[dict[str, Any]] = []
    restarts: list[int] = []
    base: dict[str, Any] = {}
    for raw in rows:
        if out and raw.get("seconds", 0) + base.get("seconds", 0) < out[-1].get("seconds", 0):
            base = out[-1]
            restarts.append(int(base["step"]))
        row = dict(raw)
        if base:
            for name in _SUMS:
                if name in row:
                    row[name] += base.get(name, 0)
            for name in _SUMS_BY_LINK:
                if name in row:
                    row[name] = {k: v + base.get(name, {}).get(k, 0) for k, v in row[name].items()}
        out.append(row)
    return out, restarts


def _rows(path: Path) -> list[dict[str, Any]]:
    """The log's lines; one torn by a crash, or half written by a run that goes on, is left out."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text().splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and "step" in row:
            rows.append(row)
    return rows


def _json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise SceneError(
            f"{path}: cannot be read: {error}; remove it, or run the command again that wrote it"
        ) from error
    if not isinstance(value, dict):
        raise SceneError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def _numbered(folder: Path, pattern: str) -> list[tuple[int, Path]]:
    """Files by the step in their name, ascending."""
    found = [(re.search(r"step(\d+)", p.name), p) for p in folder.glob(pattern)]
    return sorted((int(m[1]), p) for m, p in found if m)


def _comparisons(folder: Path) -> list[Comparison]:
    steps = _numbered(folder, "val_step*_*.png")
    if not steps:
        return []
    newest = steps[-1][0]
    out = []
    for step, path in steps:
        match = re.fullmatch(r"val_step\d+_(\d+)\.png", path.name)
        if step == newest and match:
            out.append(Comparison(step, int(match[1]), path))
    return sorted(out, key=lambda c: c.index)
