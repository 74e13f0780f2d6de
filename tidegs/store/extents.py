"""Which extents of a file are in use.

Invariant: an extent that the last snapshot refers to is never handed out: the next commit frees it at the earliest.
"""

from __future__ import annotations

import numpy as np

_WINDOW = 4096


class Extents:
    """The extents of one size class. Callers hold the store's lock."""

    def __init__(self, nbytes: int, used: np.ndarray, total: int) -> None:
        """`nbytes` of an extent; `used`: indices in use; `total`: extents of the file."""
        self.nbytes = nbytes
        self._used = np.zeros(total, bool)
        self._used[used] = True
        self._pending: list[np.ndarray] = []
        self._hint = 0  # no extent below it is free

    @property
    def total(self) -> int:
        """Extents that the file has."""
        return len(self._used)

    @property
    def used(self) -> int:
        """Extents that hold a record of now or of the last snapshot."""
        return int(np.count_nonzero(self._used))

    @property
    def last_used(self) -> int:
        """One past the highest extent in use."""
        at = np.flatnonzero(self._used)
        return int(at[-1]) + 1 if len(at) else 0

    def take(self, n: int) -> np.ndarray | None:
        """The `n` lowest free extents, int64, now in use; None where there are fewer."""
        found: list[np.ndarray] = []
        missing, at = n, self._hint
        while missing and at < self.total:
            window = np.flatnonzero(~self._used[at : at + _WINDOW])[:missing] + at
            found.append(window)
            missing -= len(window)
            at += _WINDOW
        if missing:
            return None
        out = np.concatenate(found) if found else np.empty(0, np.int64)
        self._used[out] = True
        if n:
            self._hint = int(out[-1]) + 1
        return out

    def grow(self, total: int) -> None:
        """The file has `total` extents from now on."""
        self._used = np.concatenate([self._used, np.zeros(total - self.total, bool)])

    def shrink(self) -> None:
        """Drops the free extents at the end; the caller cuts the file."""
        self._used = self._used[: self.last_used].copy()
        self._hint = min(self._hint, self.total)

    def give_back(self, extents: np.ndarray) -> None:
        """Frees extents that no snapshot refers to."""
        if len(extents):
            self._used[extents] = False
            self._hint = min(self._hint, int(extents.min()))

    def give_back_later(self, extents: np.ndarray) -> None:
        """Frees extents of the last snapshot once the next one is committed."""
        if len(extents):
            self._pending.append(np.asarray(extents, np.int64).copy())

    def committed(self) -> None:
        """A commit is done: what waited for it is free."""
        for extents in self._pending:
            self.give_back(extents)
        self._pending.clear()
