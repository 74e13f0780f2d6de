"""The memory ledger: who owns each byte of each tier.

Invariant: the owners of a tier add up to its size; what cannot be told apart is named, not left out.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tidegs.gaussians.layout import RECORD_PLANES, SCRATCH_PLANES, RecordLayout
from tidegs.machine import rss

PLANE_OWNERS = {
    "base": "parameters",
    "rest": "parameters",
    "m_base": "moments",
    "m_rest": "moments",
    "v_base": "moments",
    "v_rest": "moments",
    "stats": "statistics",
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
    program_bytes: int  # resident and anonymous before anything of the run was opened: Python and its libraries
    table_bytes: int  # block table and its copies for culling and planning

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class ProcessMemory:
    """Of this process, bytes."""

    resident: int
    anonymous: int  # heap and mapped memory
    code: int  # mapped files: programs and libraries
    pinned: int  # locked

    @classmethod
    def now(cls) -> ProcessMemory:
        """One read of /proc; where there is none, the peak of the resident set stands for all."""
        try:
            lines = Path("/proc/self/status").read_text().splitlines()
        except OSError:
            return cls(rss(), rss(), 0, 0)
        kib = {name: int(rest.split()[0]) for name, _, rest in (x.partition(":") for x in lines) if name in _STATUS}
        resident, code = kib["VmRSS"], kib.get("RssFile", 0) + kib.get("RssShmem", 0)
        return cls(1024 * resident, 1024 * (resident - code), 1024 * code, 1024 * kib.get("VmLck", 0))


_STATUS = frozenset({"VmRSS", "RssFile", "RssShmem", "VmLck"})
