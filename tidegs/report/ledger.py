"""The memory ledger: who owns each byte of each tier, sampled with the log.

Invariant: the owners of a tier add up to its size; what cannot be told apart is named, not left out.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tidegs.gaussians.layout import RECORD_PLANES, SCRATCH_PLANES, RecordLayout

PLANE_OWNERS = {
    "base": "parameters",
    "rest": "parameters",
    "m_base": "moments",
    "m_rest": "moments",
    "v_base": "moments",
    "v_rest": "moments",
    "stats": "statistics",
    "carry": "gradients",
    "grads": "gradients",
}
OWNERS = ("parameters", "moments", "gradients", "statistics")


def slot_owners(layout: RecordLayout) -> dict[str, int]:
    """Bytes of each owner in a slot, padding included; they add up to layout.slot_nbytes."""
    out = dict.fromkeys(OWNERS, 0)
    for plane in RECORD_PLANES + SCRATCH_PLANES:
        out[PLANE_OWNERS[plane]] += layout.plane_nbytes(plane)
    return out


@dataclass(frozen=True)
class LedgerHeader:
    """What does not change during a run: `stats/ledger.json`. Bytes."""

    blocks: int
    gaussians: int
    capacity: int  # Gaussians a block
    sh_degree: int
    slot_bytes: int
    record_bytes: int
    slot_owners: dict[str, int]
    budget_bytes: dict[str, int]  # arena, host, images, scene
    in_core: bool
    order: str
    batch_size: int
    program_bytes: int  # resident before anything of the run was opened
    table_bytes: int  # block table and its copies for culling and planning

    def as_json(self) -> dict[str, Any]:
        return asdict(self)
