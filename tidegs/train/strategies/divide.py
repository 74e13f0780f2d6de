"""A block that holds more rows than its capacity becomes several: cut in half, again and again, along what is longest.

Invariant: the parts depend on the rows alone, keep their order, and each is at least half full.
"""

from __future__ import annotations

import numpy as np

from tidegs.train.strategies.rows import MEANS, SCALES

_REACH = 6.66  # sigmas: both sides of a splat


def parts_of(base: np.ndarray, count: int, capacity: int) -> list[np.ndarray]:
    """Row numbers (int32, ascending) of each part, of at most `capacity` rows. `base`: float32 [14, rows].

    The cut goes through the median of the longest axis of the means' box; or of the sizes, where the largest splat is
    longer than that box, so that few large splats do not blow up a block of small ones.
    """
    means = base[MEANS : MEANS + 3, :count]
    sizes = np.exp(base[SCALES : SCALES + 3, :count].max(axis=0))
    todo, out = [np.arange(count, dtype=np.int32)], []
    while todo:
        rows = todo.pop()
        if len(rows) <= capacity:
            out.append(rows)
            continue
        box = means[:, rows]
        lengths = box.max(axis=1) - box.min(axis=1)
        axis = int(np.argmax(lengths))
        own = sizes[rows]
        by_size = own.max() * _REACH > lengths[axis] and own.max() > 2 * np.median(own)
        order = np.argsort(own if by_size else box[axis], kind="stable")
        half = len(rows) // 2
        todo += [np.sort(rows[order[half:]]), np.sort(rows[order[:half]])]
    return out
