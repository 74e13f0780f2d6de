"""The figures of a run, from what its result folder says: the same for the table, the page, `--json` and comparisons.

Invariant: every figure is measured or counted in the run, or a stated product of such; what is not known is None.
"""

from __future__ import annotations

import statistics
from itertools import pairwise
from typing import Any

from tidegs.report.result import RunData

LINKS = {"read": "SSD to host", "upload": "host to device", "download": "device to host", "write": "host to SSD"}
TIERS = {
    "arena": "arena",
    "host": "host cache",
    "images": "images",
    "rasterizer": "rasterizer",
    "rss": "process (RSS)",
    "disk": "records on SSD",
}


def collect(run: RunData) -> dict[str, Any]:
    """All figures as plain values; see docs/report.md for their meaning."""
    last, summary = run.last, current_summary(run)
    step = int(summary["step"] if summary else last.get("step", 0))
    seconds = float(last.get("seconds", 0.0)) if run.restarts or not summary else float(summary["seconds"])
    facts: dict[str, Any] = {
        "result": str(run.root),
        "scene": run.run.get("scene"),
        "state": _state(run, summary, step),
        "step": step,
        "max_steps": run.config.max_steps,
        "resumes": len(run.restarts),
        "seconds": seconds,
        "seconds_a_step": _seconds_a_step(run.rows),
        "in_core": _first(summary, run.ledger, "in_core"),
        "order": _first(summary, run.ledger, "order") or run.config.order,
        "batch_size": run.config.batch_size,
        "quality": _quality(run),
        "scene_size": _scene_size(run, summary),
        "tiers": _tiers(run, summary),
        "dropped_blocks": summary.get("dropped_blocks") if summary else None,
    }
    facts["links"] = _links(run, facts)
    facts["flow"] = _flow(run, summary, facts)
    facts["predicted"] = _predicted(run, facts)
    facts["working_set"], facts["loads_curve"] = None, None  # see study.add_study
    return facts


def _seconds_a_step(rows: list[dict[str, Any]]) -> float | None:
    """The median over the log's lines, so that warming up, evaluations and exports count little."""
    spans = [
        (b["seconds"] - a["seconds"]) / (b["step"] - a["step"])
        for a, b in pairwise([{"seconds": 0.0, "step": 0}, *rows])
        if "seconds" in b and b["step"] > a["step"]
    ]
    return statistics.median(spans) if spans else None


def current_summary(run: RunData) -> dict[str, Any] | None:
    """The summary, unless the run has gone on since it was written."""
    if run.summary and run.summary.get("step", 0) >= run.last.get("step", 0):
        return run.summary
    return None


def _state(run: RunData, summary: dict[str, Any] | None, step: int) -> str:
    if summary:
        return "finished" if summary.get("finished") or step >= run.config.max_steps else "stopped"
    return "running or interrupted" if run.rows else "not begun"


def _quality(run: RunData) -> dict[str, Any]:
    if not run.evaluations:
        return {}
    step = max(run.evaluations)
    found = run.evaluations[step]
    names = ("psnr", "ssim", "lpips", "num_GS", "protocol")
    return {"step": step, "images": len(found.get("per_view", {})), **{k: found.get(k) for k in names}}


def _scene_size(run: RunData, summary: dict[str, Any] | None) -> dict[str, Any]:
    """What the scene would take if it were whole in slots."""
    nbytes = _get(summary, "budget_bytes", "scene") or _get(run.ledger, "budget_bytes", "scene")
    return {
        "gaussians": (summary or {}).get("num_gaussians") or run.ledger.get("gaussians"),
        "blocks": run.ledger.get("blocks"),
        "block_capacity": run.config.block_capacity,
        "slot_bytes": run.ledger.get("slot_bytes"),
        "bytes": nbytes,
    }


def _tiers(run: RunData, summary: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Budget, peak and owners of each tier, bytes. Owners are those at the greatest use in the log."""
    out: dict[str, dict[str, Any]] = {}
    for tier in TIERS:
        series = tier_series(run, tier)
        logged = max(series, default=None)
        peak = _get(summary, "peak_bytes", tier)
        out[tier] = {
            "budget": _get(run.ledger, "budget_bytes", tier) or _get(summary, "budget_bytes", tier),
            "peak": max((v for v in (peak, logged) if v is not None), default=None),
            "last": series[-1] if series else None,
            "owners": {},
        }
        if series and logged:
            at = max(range(len(series)), key=series.__getitem__)
            out[tier]["owners"] = owners_at(run, tier, run.rows[at])
    return {k: v for k, v in out.items() if v["peak"] is not None}


def tier_series(run: RunData, tier: str) -> list[int]:
    """Bytes in use at each line of the log; empty where the log does not say."""
    rows = run.rows
    slot = slot_bytes(run)
    if tier in ("arena", "host"):
        return [r[f"{tier}_used"] * slot for r in rows] if slot and all(f"{tier}_used" in r for r in rows) else []
    if tier == "rss":
        return [r["rss"] for r in rows if "rss" in r]
    if not rows or not all(tier in r.get("memory", {}) for r in rows):
        return []
    found = [r["memory"][tier] for r in rows]
    return [sum(f.values()) for f in found] if tier == "disk" else found


def slot_bytes(run: RunData) -> int | None:
    """Bytes of a slot: as the ledger says, or the budget over its slots."""
    if run.ledger.get("slot_bytes"):
        return int(run.ledger["slot_bytes"])
    budget, slots = _get(run.summary, "budget_bytes", "arena"), run.last.get("arena_slots")
    return budget // slots if budget and slots else None


def owners_at(run: RunData, tier: str, row: dict[str, Any]) -> dict[str, int]:
    """Who holds the bytes of a tier at a line of the log; they add up to the tier's size."""
    owners = run.ledger.get("slot_owners", {})
    if tier in ("arena", "host"):
        used = row[f"{tier}_used"]
        out = {k: v * used for k, v in owners.items() if v}
        free = (row.get(f"{tier}_slots", used) - used) * (slot_bytes(run) or 0)
        return {**out, "free": free} if out else {}
    if tier == "rss" and run.ledger:
        return _process_owners(run, row)
    if tier == "disk":
        return {k: v for k, v in row.get("memory", {}).get("disk", {}).items() if v}
    return {}


def _process_owners(run: RunData, row: dict[str, Any]) -> dict[str, int]:
    """Owners of the resident bytes; the arena is among them where the device is the CPU."""
    slot, memory = slot_bytes(run) or 0, row.get("memory", {})
    out = {
        "code": memory.get("code", 0),
        "Python": run.ledger.get("program_bytes", 0),
        "arena": row.get("arena_used", 0) * slot if run.config.device == "cpu" else 0,
        "host cache": row.get("host_used", 0) * slot,
        "images": memory.get("images", 0),
        "rasterizer": memory.get("rasterizer", 0) if run.config.device == "cpu" else 0,
        "block table": run.ledger.get("table_bytes", 0),
    }
    rest = row["rss"] - sum(out.values())
    return {**{k: v for k, v in out.items() if v}, "other": max(rest, 0)}


def _links(run: RunData, facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Bytes of each link in all, a step, and beside a reload of the whole scene in each step."""
    rows, steps = run.rows, int(run.last.get("step", 0))
    summary = current_summary(run)
    moved = run.last.get("moved_bytes") or {}
    total = moved if run.restarts or not summary else summary.get("moved_bytes", moved)
    whole = facts["scene_size"]["bytes"]
    busy, blocks = run.last.get("moved_seconds") or {}, run.last.get("moved_blocks") or {}
    slot = slot_bytes(run)
    needed = [run.last[k] for k in ("hits", "misses") if k in run.last]
    no_reuse = _ratio(sum(needed) * slot, steps) if slot and len(needed) == 2 else None
    out = {}
    for link, label in LINKS.items():
        if link not in total:
            continue
        a_step = _ratio(moved.get(link), steps) if rows else None
        out[link] = {
            "label": label,
            "bytes": total[link],
            "bytes_a_step": a_step,
            "full_reload_a_step": whole,
            "share_of_full_reload": _ratio(a_step, whole),
            "seconds": busy.get(link),
            "bytes_a_second": _ratio(moved.get(link), busy.get(link)),
            "blocks": blocks.get(link),
            "bytes_a_block": _ratio(moved.get(link), blocks.get(link)),
            "no_reuse_a_step": no_reuse if link == "upload" else None,
            "bound_a_step": None,  # see study.add_study
        }
    return out


def _flow(run: RunData, summary: dict[str, Any] | None, facts: dict[str, Any]) -> dict[str, Any]:
    """Stalls, hits and overlap."""
    last = run.last
    source = last if "hits" in last or not summary else {**summary, **last}
    hits, misses = source.get("hits"), source.get("misses")
    stalled = last.get("stall_seconds", (summary or {}).get("stall_seconds"))
    return {
        "overlap": (summary or {}).get("overlap", last.get("overlap")),
        "stalls": source.get("stalls"),
        "stall_seconds": stalled,
        "stall_share": _share_of_time(run.rows, "stall_seconds"),
        "hits": hits,
        "misses": misses,
        "hit_share": _ratio(hits, None if hits is None or misses is None else hits + misses),
        "passes": source.get("passes"),
        "image_wait_seconds": last.get("image_wait_seconds"),
        "image_wait_share": _share_of_time(run.rows, "image_wait_seconds"),
        "amplification": (summary or {}).get("amplification"),
        "store_bytes_written": (summary or {}).get("store_bytes_written"),
    }


def _share_of_time(rows: list[dict[str, Any]], name: str) -> float | None:
    """Of the time since the first line of the log, by when everything has been loaded and compiled."""
    found = [r for r in rows if name in r and "seconds" in r]
    if not found:
        return None
    first = found[0] if len(found) > 2 else {name: 0.0, "seconds": 0.0}
    return _ratio(found[-1][name] - first[name], found[-1]["seconds"] - first["seconds"])


def _predicted(run: RunData, facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Figures of `tidegs plan` beside those of the run."""
    if not run.plan:
        return []
    pairs: list[tuple[str, str, Any, Any]] = [
        ("seconds a step", "s", run.plan.get("seconds_a_step"), facts["seconds_a_step"])
    ]
    for tier, label in TIERS.items():
        actual = facts["tiers"].get(tier, {}).get("peak")
        pairs.append((f"peak {label}", "bytes", _get(run.plan, "peak_bytes", tier), actual))
    for link, label in LINKS.items():
        actual = facts["links"].get(link, {}).get("bytes_a_step")
        pairs.append((f"{label}, a step", "bytes", _get(run.plan, "bytes_a_step", link), actual))
    return [
        {"name": name, "unit": unit, "predicted": p, "actual": a, "ratio": _ratio(a, p)}
        for name, unit, p, a in pairs
        if p is not None
    ]


def _first(one: dict[str, Any] | None, other: dict[str, Any], name: str) -> Any:
    return one[name] if one and name in one else other.get(name)


def _get(values: dict[str, Any] | None, *names: str) -> Any:
    found: Any = values
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _ratio(value: float | None, by: float | None) -> float | None:
    return None if value is None or not by else value / by
