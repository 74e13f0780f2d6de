"""Samples the memory ledger of a session for the log. Invariant: it only observes, and costs under 1 % of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import numpy as np

from tidegs.config import parse_memory
from tidegs.report.ledger import PLANE_OWNERS, LedgerHeader, ProcessMemory, slot_owners
from tidegs.store.format import NOTHING, PLANES, SEEDS, seed_nbytes

if TYPE_CHECKING:
    from tidegs.store.block_store import BlockStore
    from tidegs.train.session import Session

# Of csrc/raster: a visit is a pair of a tile and a splat that can touch it, with its share of partial gradients.
_VISIT_NBYTES, _SPLAT_NBYTES = 65, 64
# Per block, besides its row of the table: boxes for culling, the planner's state, the store's places of the snapshot.
_BLOCK_NBYTES = 32 + 41 + 9
_SUMS = (
    "moved_bytes",
    "moved_blocks",
    "moved_seconds",
    "stalls",
    "stall_seconds",
    "hits",
    "misses",
    "passes",
    "overlap",
)
_FRAME_NBYTES = 32  # a pixel: rgb, alpha, rgb gradient, alpha gradient


def header(session: Session, order: str) -> LedgerHeader:
    """What stays the same during a run; `order`: the name of its camera order."""
    budgets, layout = session.budgets, session.budgets.layout
    return LedgerHeader(
        blocks=budgets.blocks,
        gaussians=session.num_gaussians,
        capacity=layout.capacity,
        sh_degree=layout.sh_degree,
        slot_bytes=layout.slot_nbytes,
        record_bytes=layout.record_nbytes,
        slot_owners=slot_owners(layout),
        budget_bytes={
            "arena": budgets.arena_bytes,
            "host": budgets.host_bytes,
            "images": parse_memory(session.config.image_memory, total=1 << 30, name="image_memory"),
            "scene": budgets.scene_bytes,
        },
        in_core=budgets.in_core,
        order=order,
        batch_size=session.config.batch_size,
        program_bytes=session.program_bytes,
        table_bytes=budgets.blocks * (session.store.table.dtype.itemsize + _BLOCK_NBYTES),
    )


def sample(session: Session) -> dict[str, Any]:
    """The state of the tiers and the sums of the links, for a line of the log."""
    counters, budgets = session.residency.counters.snapshot(), session.budgets
    slots: Any = counters["slots"]
    memory = ProcessMemory.now()
    return {
        "arena_used": slots["arena"],
        "arena_slots": budgets.arena_slots,
        "host_used": slots["host"],
        "host_slots": budgets.host_slots,
        **{name: counters[name] for name in _SUMS},
        "image_wait_seconds": session.images.stats.waited_s,
        "num_GS": session.num_gaussians,
        "rss": memory.resident,
        "memory": {
            "images": session.images.held_bytes,
            "rasterizer": _rasterizer_bytes(session),
            "code": memory.code,
            "pinned": memory.pinned,
            "disk": disk_bytes(session.store),
        },
    }


def disk_bytes(store: BlockStore) -> dict[str, int]:
    """Bytes that the newest records hold on disk, by owner; untouched blocks are "seeds"."""
    layout = store.layout
    seeds, counts = _count_records(store.table)
    out = dict.fromkeys((*dict.fromkeys(PLANE_OWNERS.values()), "seeds"), 0)
    out["seeds"] = seeds * seed_nbytes(layout)
    for planes in np.flatnonzero(counts).tolist():
        for bit, plane in enumerate(PLANES):
            if planes >> bit & 1:
                out[PLANE_OWNERS[plane]] += int(counts[planes]) * layout.stored_nbytes(plane)
    return out


@numba.njit(nogil=True, cache=True)
def _count_records(table: np.ndarray) -> tuple[int, np.ndarray]:
    """Blocks stored as seeds, and the others by their set of planes, int64 [2^planes]."""
    seeds, counts = 0, np.zeros(1 << len(PLANES), np.int64)
    for row in table:
        if row["kind"] == SEEDS:
            seeds += row["count"] > 0
        elif row["kind"] != NOTHING:
            counts[row["planes"]] += 1
    return seeds, counts


def _rasterizer_bytes(session: Session) -> int:
    """What the last pass took beside the arena, frame included; on the CPU as counted, on CUDA as allocated."""
    from tidegs.device.cpu import CpuDevice

    if isinstance(session.device, CpuDevice):
        counts = session.device.counts()
        pixels = max((v.width * v.height for v in session.views), default=0)
        return counts.visits * _VISIT_NBYTES + counts.splats * _SPLAT_NBYTES + pixels * _FRAME_NBYTES
    import torch

    return max(0, torch.cuda.memory_allocated() - session.budgets.arena_bytes)
