"""The figures of a run: `stats/summary.json`, and the table that a person reads.

Invariant: every figure is counted or measured in this run; what was not measured is null.
"""

from __future__ import annotations

from typing import Any

from tidegs.eval.evaluate import Evaluation
from tidegs.machine import human, peak_rss
from tidegs.train.session import Session
from tidegs.train.trainer import Outcome, Trainer

LINK_NAMES = {"read": "SSD to host", "upload": "host to device", "download": "device to host", "write": "host to SSD"}


def build_summary(
    session: Session, outcome: Outcome, trainer: Trainer, evaluation: Evaluation | None
) -> dict[str, Any]:
    """The summary of a run that ended."""
    counters, budgets = session.residency.counters.snapshot(), session.budgets
    slot = budgets.layout.slot_nbytes
    return {
        "psnr": evaluation.mean("psnr") if evaluation else None,
        "ssim": evaluation.mean("ssim") if evaluation else None,
        "num_gaussians": session.num_gaussians,
        "dropped_blocks": counters["dropped_blocks"],
        "peak_bytes": {
            "arena": counters["peak_slots"]["arena"] * slot,
            "host": counters["peak_slots"]["host"] * slot,
            "images": session.images.held_bytes,
            "rss": peak_rss(),
        },
        "budget_bytes": {
            "arena": budgets.arena_bytes,
            "host": budgets.host_bytes,
            "images": session.image_budget,
            "scene": budgets.scene_bytes,
        },
        "moved_bytes": counters["moved_bytes"],
        "overlap": counters["overlap"],
        "seconds": round(outcome.seconds, 3),
        "step": outcome.step,
        "finished": outcome.finished,
        "in_core": budgets.in_core,
        "order": trainer.order.name,
        "planning_seconds": round(trainer.planning_seconds, 3),  # to choose the order of the cameras
        "route": session.route or "through the host cache",
        "passes": counters["passes"],
        "memory_splits": getattr(session.device, "splits", 0),  # work done again in pieces: device memory ran out
        "stalls": counters["stalls"],
        "stall_seconds": counters["stall_seconds"],
        "amplification": counters["amplification"],  # rows of needed blocks for each row that a camera saw
        "hits": counters["hits"],
        "misses": counters["misses"],
        "store_bytes_written": session.store.counters.written,
        "protocol": evaluation.protocol.as_json() if evaluation else None,
    }


def summary_rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """A summary as lines of a table."""
    peak, budget, moved = summary["peak_bytes"], summary["budget_bytes"], summary["moved_bytes"]

    def number(value: float | None, form: str) -> str:
        return "not measured" if value is None else format(value, form)

    return [
        ("PSNR", number(summary["psnr"], ".2f")),
        ("SSIM", number(summary["ssim"], ".4f")),
        ("Gaussians", f"{summary['num_gaussians']:,}"),
        ("steps", f"{summary['step']:,}"),
        ("seconds", f"{summary['seconds']:.1f}"),
        ("scene in slots", human(budget["scene"])),
        ("peak arena", f"{human(peak['arena'])} of {human(budget['arena'])}"),
        ("peak host cache", f"{human(peak['host'])} of {human(budget['host'])}"),
        ("peak images", f"{human(peak['images'])} of {human(budget['images'])}"),
        ("peak RSS", human(peak["rss"])),
        *[(f"moved {LINK_NAMES[link]}", human(n)) for link, n in moved.items()],
        ("written to SSD", human(summary["store_bytes_written"])),
        ("overlap", f"{100 * summary['overlap']:.1f} %"),
        ("stalled", f"{summary['stall_seconds']:.1f} s in {summary['stalls']} passes"),
        ("rows needed, of 1 visible", number(summary["amplification"], ".2f")),
        ("visible blocks dropped", str(summary["dropped_blocks"])),
        *([("split for lack of memory", f"{splits} times")] if (splits := summary["memory_splits"]) else []),
    ]
