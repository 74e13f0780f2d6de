"""A result folder written by hand, with figures that a test can predict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tidegs.config import TrainConfig, dump_config
from tidegs.gaussians.layout import RecordLayout
from tidegs.report.ledger import LedgerHeader, slot_owners

LAYOUT = RecordLayout(64, with_grads=True)
SLOTS = {"arena": 40, "host": 30}
BLOCKS = 100


def row(step: int, **changes: Any) -> dict[str, Any]:
    """A line of the log after `step` steps of 0.1 s, a tenth of which compute waited."""
    slot = LAYOUT.slot_nbytes
    return {
        "step": step,
        "seconds": 0.1 * step,
        "loss": 1.0 / step,
        "psnr": 20.0,
        "arena_used": 40,
        "arena_slots": SLOTS["arena"],
        "host_used": 10,
        "host_slots": SLOTS["host"],
        "moved_bytes": {"read": 2 * step * slot, "upload": 5 * step * slot, "download": 5 * step * slot, "write": step},
        "moved_blocks": {"read": 2 * step, "upload": 5 * step, "download": 5 * step, "write": step},
        "moved_seconds": {"read": 0.05 * step, "upload": 0.01 * step, "download": 0.01 * step, "write": 0.2 * step},
        "stalls": step,
        "stall_seconds": 0.01 * step,
        "hits": 18 * step,
        "misses": 2 * step,
        "passes": step,
        "overlap": 0.9,
        "image_wait_seconds": 0.001 * step,
        "num_GS": BLOCKS * 64,
        "rss": 300 << 20,
        "memory": {
            "images": 1 << 20,
            "rasterizer": 2 << 20,
            "code": 100 << 20,
            "pinned": 0,
            "disk": {"parameters": 4096 * step, "moments": 8192 * step, "statistics": 0, "gradients": 0, "seeds": 77},
        },
        **changes,
    }


def write(root: Path, rows: list[dict[str, Any]], **config: Any) -> Path:
    """The folder, without summary, store and pictures."""
    (root / "stats").mkdir(parents=True)
    config = {"max_steps": 100, "order": "cache", **config}
    (root / "cfg.yml").write_text(dump_config(TrainConfig(**config)))
    (root / "run.json").write_text(json.dumps({"scene": str(root / "no-scene"), "store": "store", "scale": 1.0}))
    slot = LAYOUT.slot_nbytes
    header = LedgerHeader(
        blocks=BLOCKS,
        gaussians=BLOCKS * 64,
        capacity=64,
        sh_degree=3,
        slot_bytes=slot,
        record_bytes=LAYOUT.record_nbytes,
        slot_owners=slot_owners(LAYOUT),
        budget_bytes={"arena": 40 * slot, "host": 30 * slot, "images": 8 << 20, "scene": BLOCKS * slot},
        in_core=False,
        order="cache",
        batch_size=1,
        program_bytes=50 << 20,
        table_bytes=12_000,
    )
    (root / "stats" / "ledger.json").write_text(json.dumps(header.as_json()))
    (root / "stats" / "train.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return root
