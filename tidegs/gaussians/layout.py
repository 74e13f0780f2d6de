"""The layout of a block's record: named planes of float32, attribute-major, each plane padded to 4 KiB.

Invariant: the same layout holds on SSD, in the host cache and in the device arena, so that moving a block is one copy;
only where a store is asked to narrow its records do planes on the SSD have 16 bits a value.
Within a plane, component `k` of all rows is contiguous: `plane[k, row]`, shape [components, capacity].
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tidegs.errors import ConfigError

ALIGN = 4096
MIN_CAPACITY, MAX_CAPACITY = 64, 8192

# Components of the parameters, in order. "base" is what is always active; "rest" is shN, zero until its degree is on.
BASE_FIELDS: dict[str, slice] = {
    "means": slice(0, 3),  # scene frame
    "quats": slice(3, 7),  # wxyz, not normalised
    "scales": slice(7, 10),  # log
    "opacities": slice(10, 11),  # logit
    "sh0": slice(11, 14),  # rgb
}
BASE_COMPONENTS = 14

RECORD_PLANES = ("base", "rest", "m_base", "m_rest", "v_base", "v_rest", "stats")
SCRATCH_PLANES = ("grads",)
STORE_DTYPES = ("float32", "bfloat16", "float16")  # of NARROWED planes in a store, by their number in its root
NARROWED = ("rest", "m_base", "m_rest", "v_base", "v_rest")


def sh_rest_count(sh_degree: int) -> int:
    """Number of coefficients in shN for a degree: (degree + 1)^2 - 1."""
    return (sh_degree + 1) ** 2 - 1


@dataclass(frozen=True)
class RecordLayout:
    """Where each plane of a slot lies.

    Planes, in order: `base` [14, C], `rest` [3K, C] (component 3k + channel), the first and second Adam moments of
    both (`m_*`, `v_*`), and `stats` [stat_components, C]: together the record. Where a step has several cameras, a slot
    in the arena or the host cache has a scratch plane behind the record: `grads` [14 + 3K + 1, C], whose last component
    is 1 where a camera of the step saw the row.
    """

    capacity: int
    sh_degree: int = 3
    stat_components: int = 0
    with_grads: bool = False
    store_dtype: str = "float32"

    def __post_init__(self) -> None:
        if not MIN_CAPACITY <= self.capacity <= MAX_CAPACITY or self.capacity % 64:
            raise ConfigError(
                f"block capacity {self.capacity} is not a multiple of 64 between {MIN_CAPACITY} and {MAX_CAPACITY}"
            )
        if not 0 <= self.sh_degree <= 3:
            raise ConfigError(f"sh_degree {self.sh_degree} is not between 0 and 3")

    @property
    def rest_components(self) -> int:
        return 3 * sh_rest_count(self.sh_degree)

    @property
    def param_components(self) -> int:
        """Floats of one Gaussian: 59 for SH degree 3."""
        return BASE_COMPONENTS + self.rest_components

    def components(self, plane: str) -> int:
        """Number of components (rows of the plane's array); 0 where this layout lacks the plane."""
        if plane.endswith("base"):
            return BASE_COMPONENTS
        if plane.endswith("rest"):
            return self.rest_components
        return {
            "stats": self.stat_components,
            "grads": self.param_components + 1 if self.with_grads else 0,
        }[plane]

    def plane_nbytes(self, plane: str) -> int:
        """Bytes of a plane, padded to 4 KiB."""
        raw = self.components(plane) * self.capacity * 4
        return -(-raw // ALIGN) * ALIGN

    def narrows(self, plane: str) -> bool:
        """Whether a store keeps the plane in 16 bits a value."""
        return self.store_dtype != "float32" and plane in NARROWED

    def stored_nbytes(self, plane: str) -> int:
        """Bytes of a plane in a record of the store, padded to 4 KiB; in float16, each component has a scale."""
        if not self.narrows(plane):
            return self.plane_nbytes(plane)
        raw = self.components(plane) * (2 * self.capacity + (4 if self.store_dtype == "float16" else 0))
        return -(-raw // ALIGN) * ALIGN

    @cached_property
    def stored_record_nbytes(self) -> int:
        """Bytes of a record in the store when no plane is left out."""
        return sum(self.stored_nbytes(p) for p in RECORD_PLANES)

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Byte offset of each plane from the start of the slot; planes of zero components keep their place."""
        out, at = {}, 0
        for plane in RECORD_PLANES + SCRATCH_PLANES:
            out[plane] = at
            at += self.plane_nbytes(plane)
        return out

    @cached_property
    def record_nbytes(self) -> int:
        """Bytes of the record: what the store holds of a block when no plane is left out."""
        return sum(self.plane_nbytes(p) for p in RECORD_PLANES)

    @cached_property
    def slot_nbytes(self) -> int:
        """Bytes of a slot: the record and its scratch planes."""
        return self.record_nbytes + sum(self.plane_nbytes(p) for p in SCRATCH_PLANES)

    def view(self, slot: np.ndarray, plane: str) -> np.ndarray:
        """The plane as float32 [components, capacity], sharing memory with `slot` (uint8, at least slot_nbytes)."""
        n = self.components(plane)
        at = self.offsets[plane]
        return slot[at : at + n * self.capacity * 4].view(np.float32).reshape(n, self.capacity)

    def field(self, slot: np.ndarray, name: str) -> np.ndarray:
        """One attribute ("means", ..., "sh0", "shN") as float32 [components, capacity], sharing memory with `slot`."""
        if name == "shN":
            return self.view(slot, "rest")
        return self.view(slot, "base")[BASE_FIELDS[name]]
