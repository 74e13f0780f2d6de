"""Turns planned moves into tasks on the queues.

Invariant: a task waits for the last earlier task that touched any of its slots, and what reads or writes a record for
the last write of its block; so each slot and each record is used by one task at a time, in the planned order.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from tidegs.device.base import Device
from tidegs.gaussians.layout import RecordLayout
from tidegs.residency.counters import Counters
from tidegs.residency.hostcache import HostCache
from tidegs.residency.moves import (
    ARENA_SLOT,
    BATCH,
    BLOCK,
    DOWNLOAD,
    FETCH,
    HOST_SLOT,
    KIND,
    READ,
    SCRATCH,
    STOW,
    UPLOAD,
    WRITE,
    shorten,
)
from tidegs.residency.transfers import Task, Transfers
from tidegs.store.base import Store
from tidegs.store.format import SEEDS, planes_nbytes, seed_nbytes

_LINKS = {
    READ: ("read",),
    UPLOAD: ("upload",),
    DOWNLOAD: ("download",),
    WRITE: ("write",),
    FETCH: ("read", "upload"),
    STOW: ("write", "download"),
}  # that a move goes over; its task stands in the queue of the first
_TIERS = {
    READ: (False, True, True),
    UPLOAD: (True, True, False),
    DOWNLOAD: (True, True, False),
    WRITE: (False, True, True),
    FETCH: (True, False, True),
    STOW: (True, False, True),
}  # whether it touches a slot of the arena, one of the host tier, a record

# What of a batch comes before what, so that moves of a kind stand together: room is made before it is filled.
_TURNS = np.zeros(6, np.int8)
_TURNS[[DOWNLOAD, STOW, WRITE, FETCH, READ, UPLOAD]] = range(6)


class Mover:
    """Submits moves in the order given, and waits for slots. Calls, but for `wait`, are made under one lock."""

    def __init__(
        self,
        store: Store,
        device: Device,
        layout: RecordLayout,
        host: HostCache,
        arena_slots: int,
        counters: Counters,
        direct: bool = False,
    ) -> None:
        """`direct`: the store is connected to the arena, and no block stays in a host slot: moves spare the host tier
        where they can."""
        self._direct = direct
        self._store, self._device, self._layout, self._host = store, device, layout, host
        self._transfers = Transfers(counters)
        # Number of the last task on each arena slot, host slot and record; 0 where there was none.
        self._arena = np.zeros(arena_slots, np.int64)
        self._hosted = np.zeros(len(host.slots), np.int64)
        self._stored = np.zeros(len(store.table), np.int64)

    def grow(self, blocks: int) -> None:
        """Makes room for blocks up to id `blocks` (exclusive)."""
        more = blocks - len(self._stored)
        if more > 0:
            more = max(more, len(self._stored) // 4)
            self._stored = np.concatenate([self._stored, np.zeros(more, np.int64)])

    def writes(self, blocks: np.ndarray) -> list[Task]:
        """Writes of the records of these blocks that have not ended."""
        return self._unfinished(self._stored[blocks])

    def submit(self, moves: np.ndarray) -> None:
        """Queues the moves; raises the error of an earlier task."""
        self.check()
        if self._direct:
            moves = shorten(moves, self._store.can_fetch(moves[:, BLOCK]), len(self._hosted))
            moves = moves[np.lexsort((_TURNS[moves[:, KIND]], moves[:, BATCH]))]
        if len(moves):
            changes = np.diff(moves[:, (KIND, BATCH, SCRATCH)], axis=0).any(axis=1)
            edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(moves)]
            for first, last in pairwise(edges):
                self._submit_batch(moves[first:last])

    def check(self) -> None:
        """Raises the first error of any task."""
        self._transfers.check()

    def uploads(self, arena_slots: np.ndarray) -> list[Task]:
        """Tasks on these arena slots that have not ended."""
        return self._unfinished(self._arena[arena_slots])

    def on_host(self, host_slots: np.ndarray) -> list[Task]:
        """Tasks on these host slots that have not ended."""
        return self._unfinished(self._hosted[host_slots])

    def wait(self, tasks: list[Task]) -> None:
        """Returns when all have ended; raises the first error of any task."""
        self._transfers.wait(tasks)

    def drain(self) -> None:
        """Waits for all tasks; raises the first error of any."""
        self._transfers.drain()

    def close(self) -> None:
        """Ends the threads, after what is queued."""
        self._transfers.close()

    def _unfinished(self, numbers: np.ndarray) -> list[Task]:
        return self._transfers.pending(np.unique(numbers[numbers > 0]).tolist())

    def _submit_batch(self, moves: np.ndarray) -> None:
        kind, blocks = int(moves[0, KIND]), moves[:, BLOCK]
        hosts, arenas = moves[:, HOST_SLOT], moves[:, ARENA_SLOT]
        in_arena, in_host, in_store = _TIERS[kind]
        after = []
        if in_host:
            after.append(self._hosted[hosts])
        if in_arena:
            after.append(self._arena[arenas])
        if in_store:
            after.append(self._stored[blocks])
        run = self._action(kind, moves)
        number = self._transfers.submit(_LINKS[kind], run, np.unique(np.concatenate(after)).tolist(), len(moves))
        if in_host:
            self._hosted[hosts] = number
        if in_arena:
            self._arena[arenas] = number
        if kind in (WRITE, STOW):
            self._stored[blocks] = number

    def _action(self, kind: int, moves: np.ndarray) -> Callable[[], int]:
        """What the task does; it returns the bytes moved."""
        blocks: list[int] = moves[:, BLOCK].tolist()
        arenas: list[int] = moves[:, ARENA_SLOT].tolist()
        slots = [self._host.slots[h] for h in moves[:, HOST_SLOT]] if _TIERS[kind][1] else []
        scratch = bool(moves[0, SCRATCH])

        def read() -> int:
            nbytes = self._stored_nbytes(blocks)
            self._store.read(blocks, slots)
            return nbytes

        def upload() -> int:
            self._device.upload(slots, arenas)
            return len(slots) * self._layout.slot_nbytes

        def download() -> int:
            self._device.download(arenas, slots)
            return len(slots) * self._layout.slot_nbytes

        def write() -> int:
            self._store.write(blocks, slots, scratch)
            return self._stored_nbytes(blocks)

        def fetch() -> int:
            nbytes = self._stored_nbytes(blocks)
            self._store.fetch(blocks, arenas)
            return nbytes

        def stow() -> int:
            self._store.stow(blocks, arenas, scratch)
            return self._stored_nbytes(blocks)

        return {READ: read, UPLOAD: upload, DOWNLOAD: download, WRITE: write, FETCH: fetch, STOW: stow}[kind]

    def _stored_nbytes(self, blocks: list[int]) -> int:
        """Payload bytes of the blocks' newest records."""
        rows = self._store.table[blocks]
        nbytes = planes_nbytes(self._layout, rows["planes"])
        nbytes[rows["kind"] == SEEDS] = seed_nbytes(self._layout)
        return int(nbytes.sum())
