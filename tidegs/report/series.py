"""Curves of a run for the page: a few hundred points, however long the run was.

Invariant: a point stands for all steps since the one before it: rates are differences of sums, losses are means.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegs.report.facts import LINKS, TIERS, owners_at, tier_series
from tidegs.report.result import RunData

POINTS = 400


def curves(run: RunData) -> dict[str, Any]:
    """Everything that is drawn over steps: {"step": [...], "loss": [...], "psnr": [...], ...}."""
    rows = run.rows
    if not rows:
        return {}
    edges = _edges(len(rows))
    chosen = [rows[i] for i in edges]
    steps = [int(r["step"]) for r in chosen]
    out: dict[str, Any] = {
        "step": steps,
        "seconds": [_round(r.get("seconds")) for r in chosen],
        "loss": _means(rows, edges, "loss"),
        "psnr": _means(rows, edges, "psnr"),
        "restarts": run.restarts,
        "evaluations": _evaluations(run),
        "ms": _rates([1000 * r.get("seconds", 0.0) for r in chosen], steps),
        "stall_share": _rates([r.get("stall_seconds", 0.0) for r in chosen], [r.get("seconds", 0.0) for r in chosen]),
        "links": _links(chosen, steps),
        "tiers": _tiers(run, edges),
        "owners": _owners(run, chosen),
    }
    if all("image_wait_seconds" in r for r in chosen):
        waits = [r["image_wait_seconds"] for r in chosen]
        out["image_share"] = _rates(waits, [r.get("seconds", 0.0) for r in chosen])
    return out


def _edges(count: int) -> list[int]:
    """Indices of the rows that end a point's span."""
    return np.unique(np.linspace(0, count - 1, min(POINTS, count)).round().astype(int)).tolist()


def _means(rows: list[dict[str, Any]], edges: list[int], name: str) -> list[float | None]:
    values = np.array([r.get(name, np.nan) for r in rows], float)
    out, first = [], 0
    for edge in edges:
        part = values[first : edge + 1]
        part = part[np.isfinite(part)]
        out.append(_round(part.mean()) if len(part) else None)
        first = edge + 1
    return out


def _rates(sums: list[float], by: list[float] | list[int]) -> list[float | None]:
    """Differences of `sums` over differences of `by`, both from 0."""
    up, down = np.diff(sums, prepend=0.0), np.diff(np.asarray(by, float), prepend=0.0)
    return [_round(a / b) if b > 0 and a >= 0 else None for a, b in zip(up, down, strict=True)]


def _links(chosen: list[dict[str, Any]], steps: list[int]) -> dict[str, list[float | None]]:
    if not all("moved_bytes" in r for r in chosen):
        return {}
    return {link: _rates([r["moved_bytes"].get(link, 0) for r in chosen], steps) for link in LINKS}


def _tiers(run: RunData, edges: list[int]) -> dict[str, list[int]]:
    found = {tier: tier_series(run, tier) for tier in TIERS}
    return {tier: [values[i] for i in edges] for tier, values in found.items() if len(values) == len(run.rows)}


def _owners(run: RunData, chosen: list[dict[str, Any]]) -> dict[str, dict[str, list[int]]]:
    """For each tier, the bytes of each owner."""
    out: dict[str, dict[str, list[int]]] = {}
    for tier in ("arena", "host", "rss", "disk"):
        if not tier_series(run, tier):
            continue
        found = [owners_at(run, tier, r) for r in chosen]
        names = list(dict.fromkeys(name for one in found for name in one))
        if names:
            out[tier] = {name: [one.get(name, 0) for one in found] for name in names}
    return out


def _evaluations(run: RunData) -> list[dict[str, Any]]:
    return [
        {"step": step, "psnr": _round(found.get("psnr")), "ssim": _round(found.get("ssim"))}
        for step, found in run.evaluations.items()
    ]


def _round(value: Any) -> float | None:
    """Six digits: enough for a plot, and a small page. None where it is no number."""
    if value is None or not np.isfinite(value):
        return None
    return float(f"{float(value):.6g}")
