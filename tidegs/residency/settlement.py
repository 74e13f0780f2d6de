"""What settling deferred events made of the blocks of a pass: the seam between residency and whoever settles.

Invariant: a settlement names rows of the table and contents of slots only; ids and places are residency's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tidegs.store.base import TABLE_DTYPE

# What a settlement says of a block; the other columns of the table are the store's own.
COLUMNS = ("lo", "hi", "extent", "count", "event", "opacity_mass", "dead", "relocated", "added", "doomed", "adam")


@dataclass
class Settled:
    """Of a pass of phase "settle"."""

    rows: np.ndarray  # TABLE_DTYPE [n], the COLUMNS of the blocks as they are now; a block of count 0 dies
    touched: np.ndarray  # bool [n], the slot's bytes changed
    born_slots: list[np.ndarray] = field(default_factory=list)  # uint8 [slot_nbytes], 4 KiB aligned: new blocks
    born_rows: np.ndarray = field(default_factory=lambda: np.empty(0, TABLE_DTYPE))  # their COLUMNS
