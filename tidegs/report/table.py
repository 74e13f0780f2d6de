"""The report as a plain table for terminals. Invariant: every line fits 110 columns for figures of usual size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tidegs.machine import human
from tidegs.report.advice import advice, bottleneck
from tidegs.report.facts import LINKS, TIERS

UNKNOWN = "-"


def render(facts: dict[str, Any]) -> str:
    """The whole report of one run."""
    parts = [_head(facts), _memory(facts), _owners(facts), _traffic(facts), _flow(facts), _predicted(facts)]
    lines = [f"bottleneck  {bottleneck(facts)}", *(f"advice      {text}" for text in advice(facts))]
    return "\n\n".join([*(p for p in parts if p), "\n".join(lines)])


def columns(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Rows in columns; the first `left` columns are flush left, the others right."""
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    out = []
    for row in rows:
        cells = [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        out.append("  ".join(cells).rstrip())
    return "\n".join(out)


def size(nbytes: float | None) -> str:
    return UNKNOWN if nbytes is None else human(nbytes)


def share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{100 * value:.1f} %"


def duration(seconds: float | None) -> str:
    """75 -> "1 min 15 s"."""
    if seconds is None:
        return UNKNOWN
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def number(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else format(value, form)


def _head(facts: dict[str, Any]) -> str:
    quality, scene = facts["quality"], facts["scene_size"]
    a_step = facts["seconds_a_step"]
    where = {True: "in core", False: "out of core", None: "mode not recorded"}[facts["in_core"]]
    state = f"{facts['state']} at step {facts['step']:,} of {facts['max_steps']:,}"
    if facts["resumes"]:
        state += f", resumed {facts['resumes']} times"
    rows = [
        ("result", facts["result"]),
        ("run", f"{state}; {where}, order {facts['order']}, batch {facts['batch_size']}"),
        ("time", duration(facts["seconds"]) + (f", {1000 * a_step:.1f} ms a step" if a_step else "")),
        ("quality", _quality(quality)),
        ("scene", f"{number(scene['gaussians'], ',')} Gaussians, {size(scene['bytes'])} in slots"),
    ]
    return columns(rows, left=2)


def _quality(quality: dict[str, Any]) -> str:
    if not quality:
        return "not evaluated yet"
    return (
        f"PSNR {number(quality['psnr'], '.2f')}  SSIM {number(quality['ssim'], '.4f')}  "
        f"LPIPS {number(quality['lpips'], '.4f')}  ({quality['images']} test images at step {quality['step']:,})"
    )


def _memory(facts: dict[str, Any]) -> str:
    rows = [("memory", "budget", "peak", "of budget")]
    for tier, found in facts["tiers"].items():
        used = found["peak"] / found["budget"] if found["budget"] else None
        rows.append((TIERS[tier], size(found["budget"]), size(found["peak"]), share(used)))
    return columns(rows) if len(rows) > 1 else ""


def _owners(facts: dict[str, Any]) -> str:
    rows = []
    for tier, found in facts["tiers"].items():
        total = sum(found["owners"].values())
        for name, nbytes in found["owners"].items():
            if nbytes:
                rows.append((TIERS[tier], name, size(nbytes), share(nbytes / total)))
    return columns([("owners at the greatest use", "", "bytes", "share"), *rows], left=2) if rows else ""


def _traffic(facts: dict[str, Any]) -> str:
    rows = [("traffic", "in all", "a step", "full reload", "of reload", "Belady", "a second")]
    for link in facts["links"].values():
        rows.append(
            (
                link["label"],
                size(link["bytes"]),
                size(link["bytes_a_step"]),
                size(link["full_reload_a_step"]),
                share(link["share_of_full_reload"]),
                size(link["bound_a_step"]),
                size(link["bytes_a_second"]),
            )
        )
    return columns(rows) if len(rows) > 1 else ""


def _flow(facts: dict[str, Any]) -> str:
    flow = facts["flow"]
    stalls = f"{duration(flow['stall_seconds'])} ({share(flow['stall_share'])} of the time"
    stalls += f", {flow['stalls']:,} passes waited)" if flow["stalls"] is not None else ")"
    rows = [("overlap of transfers and compute", share(flow["overlap"])), ("stalls", stalls)]
    if flow["hits"] is not None and flow["misses"] is not None:
        text = f"{share(flow['hit_share'])} of {flow['hits'] + flow['misses']:,} blocks needed by passes"
        rows.append(("in the arena when due", text))
    if flow["amplification"] is not None:
        rows.append(("rows of needed blocks", f"{flow['amplification']:.2f} for each visible one"))
    if flow["image_wait_seconds"] is not None:
        rows.append(("waited for images", duration(flow["image_wait_seconds"])))
    if flow["store_bytes_written"] is not None:
        rows.append(("written to the SSD", size(flow["store_bytes_written"])))
    if facts["dropped_blocks"] is not None:
        rows.append(("visible blocks dropped", str(facts["dropped_blocks"])))
    return columns(rows, left=2)


def _predicted(facts: dict[str, Any]) -> str:
    if not facts["predicted"]:
        return ""
    rows = [("plan", "predicted", "actual", "actual / predicted")]
    for one in facts["predicted"]:
        form = size if one["unit"] == "bytes" else (lambda v: number(v, ".4f"))
        rows.append((one["name"], form(one["predicted"]), form(one["actual"]), number(one["ratio"], ".2f")))
    return columns(rows)


def compare_rows(names: Sequence[str], facts: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Figures of several runs side by side, names in the first row."""

    def line(label: str, pick: Callable[[dict[str, Any]], str]) -> tuple[str, ...]:
        return (label, *(pick(f) for f in facts))

    rows = [
        ("", *names),
        line("state", lambda f: f"{f['state']}, step {f['step']:,}"),
        line("mode", lambda f: {True: "in core", False: "out of core", None: UNKNOWN}[f["in_core"]]),
        line("order", lambda f: str(f["order"])),
        line("PSNR", lambda f: number(f["quality"].get("psnr"), ".2f")),
        line("SSIM", lambda f: number(f["quality"].get("ssim"), ".4f")),
        line("Gaussians", lambda f: number(f["scene_size"]["gaussians"], ",")),
        line("time", lambda f: duration(f["seconds"])),
        line("ms a step", lambda f: number(f["seconds_a_step"] and 1000 * f["seconds_a_step"], ".1f")),
        line("waiting for blocks", lambda f: share(f["flow"]["stall_share"])),
        line("overlap", lambda f: share(f["flow"]["overlap"])),
        line("in the arena when due", lambda f: share(f["flow"]["hit_share"])),
    ]
    for tier, label in TIERS.items():
        rows.append(line(f"peak {label}", lambda f, t=tier: _peak(f["tiers"].get(t))))  # type: ignore[misc]
    for link, label in LINKS.items():
        rows.append(line(f"{label}, a step", lambda f, k=link: size(f["links"].get(k, {}).get("bytes_a_step"))))  # type: ignore[misc]
    return [r for r in rows if any(cell != UNKNOWN for cell in r[1:])]


def _peak(tier: dict[str, Any] | None) -> str:
    if tier is None:
        return UNKNOWN
    return size(tier["peak"]) + (f" of {size(tier['budget'])}" if tier["budget"] else "")
