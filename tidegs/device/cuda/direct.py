"""The arena as files see it that read and write device memory themselves (kvikio): see tidegs.store.base.ArenaLink.

Invariant: files know of no streams, so the host thread waits for the events of earlier uses of their slots; whoever
uses the slots next waits for an event that lies behind the files' work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import numpy as np
from torch import Tensor

from tidegs.device.cuda import checksum
from tidegs.device.cuda.arena import Arena
from tidegs.device.cuda.copies import SlotOrder, slot_names
from tidegs.device.cuda.streams import Name, Streams

Piece = tuple[int, int, int]  # slot, first byte in it, bytes


class DirectSlots:
    """`filling` and all within is for one thread, `leaving` for another."""

    def __init__(self, arena: Arena, streams: Streams, order: SlotOrder) -> None:
        self._arena, self._streams, self._order = arena, streams, order
        self._fold: checksum.Fold = checksum.fold if arena.device.type == "cuda" else checksum.fold_twin

    def filling(self, slots: Sequence[int]) -> AbstractContextManager[None]:
        """Inside, files may write the slots."""
        return self._used("fetch", slots, self._streams.host_writes)

    def leaving(self, slots: Sequence[int]) -> AbstractContextManager[None]:
        """Inside, files may read the slots."""
        return self._used("stow", slots, self._streams.host_reads)

    @contextmanager
    def _used(self, stream: Name, slots: Sequence[int], states: Callable[[list], None]) -> Iterator[None]:
        self._order.begin_on_host(slots)
        states(slot_names(slots))
        try:
            yield
        finally:
            self._order.end(stream, slots)

    def window(self, piece: Piece) -> Tensor:
        """The bytes, uint8, sharing the arena's memory."""
        first = self._first(piece)
        return self._arena.memory[first : first + piece[2]]

    def zero(self, pieces: Sequence[Piece]) -> None:
        """Fills them with zeros, on the stream."""
        with self._streams.on("fetch"):
            self._streams.writes("fetch", slot_names({slot for slot, _, _ in pieces}))
            for piece in pieces:
                self.window(piece).zero_()

    def fold(self, pieces: Sequence[Piece], leaving: bool) -> tuple[np.ndarray, np.ndarray]:
        """Remainders uint32 [n], and whether any byte is not zero, bool [n]; waits for the stream."""
        stream: Name = "stow" if leaving else "fetch"
        with self._streams.on(stream):
            self._streams.reads(stream, slot_names({slot for slot, _, _ in pieces}))
            found = self._fold(self._arena.memory, [(self._first(p), p[2]) for p in pieces])
        self._streams.finish(self._streams.record(stream))
        return found

    def _first(self, piece: Piece) -> int:
        return piece[0] * self._arena.layout.slot_nbytes + piece[1]
