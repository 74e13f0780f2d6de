"""The block store: records of blocks on SSD, with atomic snapshots by shadow paging.

Invariant: what the last snapshot refers to is never overwritten, so after a crash at any instant opening the folder
gives exactly that snapshot, or an error that names the file and the block.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from tidegs.errors import CorruptError, StoreError
from tidegs.gaussians.layout import RecordLayout
from tidegs.store import format as fmt
from tidegs.store.base import TABLE_DTYPE, ArenaLink
from tidegs.store.files import Files
from tidegs.store.guard import Guard
from tidegs.store.memory import address, aligned_empty
from tidegs.store.native import PACKED, REQUEST_DTYPE
from tidegs.store.records import Counters, Records
from tidegs.store.root import RootFile, TableFiles
from tidegs.store.seeds import INIT_OPACITY_LOGIT

IO_THREADS = 4
Blocks = Sequence[int] | np.ndarray
Begun = tuple[np.ndarray, int]  # a table of records that are durable, and all bytes written so far
_PLACE = ("offset", "generation", "crc", "planes", "kind")  # columns of the table that are the store's own


class BlockStore:
    """See tidegs.store.base.Store. One writer at a time, or any number of readers, by an advisory lock.

    `table` is replaced when blocks are allocated: fetch it again then.
    """

    @staticmethod
    def create(
        path: str | os.PathLike,
        layout: RecordLayout,
        seed_opacity: float = INIT_OPACITY_LOGIT,
        io_threads: int = IO_THREADS,
        files: Files | None = None,
        kept: Callable[[], Begun | None] | None = None,
    ) -> BlockStore:
        """An empty store in a folder that holds none. It can be opened once its first `commit` is done; what an
        unfinished creation left there is replaced, unless `kept`, asked once the folder is locked, knows what to go on
        with. `seed_opacity`: the logit that seeds expand to."""
        store = BlockStore(Path(path), layout, seed_opacity, False, io_threads, files or Files())
        with store._closing_on_error():
            store._begin(kept or (lambda: None))
        return store

    @staticmethod
    def open(
        path: str | os.PathLike,
        readonly: bool = False,
        with_grads: bool = False,
        io_threads: int = IO_THREADS,
        files: Files | None = None,
    ) -> BlockStore:
        """The last snapshot of a store; `with_grads` says whether slots have the scratch plane."""
        folder, files = Path(path), files or Files()
        root, _ = RootFile.read(folder, files)
        layout = RecordLayout(root.capacity, root.sh_degree, root.stat_components, with_grads, root.store_dtype)
        store = BlockStore(folder, layout, root.seed_opacity, readonly, io_threads, files)
        with store._closing_on_error():
            store._lock_folder()
            store._load(*RootFile.read(folder, files))  # again: a writer may have gone on until the lock was taken
        return store

    def __init__(
        self, path: Path, layout: RecordLayout, seed_opacity: float, readonly: bool, io_threads: int, files: Files
    ) -> None:
        """Use `create` or `open`."""
        self.path = path
        self.layout = layout
        self.readonly = readonly
        self.seed_opacity = float(np.float32(seed_opacity))
        self.snapshot = 0
        self._meta = b""
        self._written_before = 0
        self._files = files
        self._guard = Guard(path, readonly)
        self._mutex = threading.Lock()  # of the table's places
        self._lock_fd = -1
        self._rows = np.zeros(0, TABLE_DTYPE)
        self._count = 0
        self._snap_kind = np.zeros(0, np.uint8)  # where the last snapshot has its records
        self._snap_offset = np.zeros(0, np.int64)
        self._root = RootFile(path, files, self._guard)
        self._tables = TableFiles(path, files, self._guard)
        self.records = Records(path, layout, self.seed_opacity, self._guard, readonly, io_threads, files)

    # -- what it holds ------------------------------------------------------------------------------------------------

    @property
    def table(self) -> np.ndarray:
        """TABLE_DTYPE [blocks]: callers write bounds, counts and what they settled; the store writes the places."""
        return self._rows[: self._count]

    @property
    def meta(self) -> bytes:
        """The `meta` of the snapshot that was opened or last committed."""
        return self._meta

    @property
    def seed_nbytes(self) -> int:
        """Bytes of a block's packed seeds."""
        return fmt.seed_nbytes(self.layout)

    @property
    def counters(self) -> Counters:
        """Bytes moved since the store was opened."""
        return self.records.counters

    @property
    def bytes_written(self) -> int:
        """All bytes written to the store since it was created, up to now."""
        return self._written_before + self.counters.written

    # -- records ------------------------------------------------------------------------------------------------------

    def read(self, blocks: Blocks, slots: Sequence[np.ndarray]) -> None:
        """Reads the newest record of each block into its slot; see the seam. CorruptError names file and block."""
        self._guard.check()
        requests = self._requests(blocks, slots)
        requests["scratch"] = self.table["flags"][requests["block"]] & fmt.FLAG_MID_STEP
        stored = requests["kind"] != fmt.NOTHING
        for i in np.flatnonzero(~stored).tolist():
            layout = self.layout
            slots[i][: layout.slot_nbytes if requests["scratch"][i] else layout.record_nbytes] = 0
        self.records.read(requests[stored])

    def write(self, blocks: Blocks, slots: Sequence[np.ndarray], scratch: bool = False) -> None:
        """Writes records to free extents; see the seam. All of them are written, or none replaces its old record."""
        self._guard.check(writing=True)
        requests = self._requests(blocks, slots)
        requests["scratch"], requests["planes"] = scratch, fmt.ALL_BITS
        self.records.scan(requests)
        self._write(requests)

    def write_params(self, blocks: Blocks, slots: Sequence[np.ndarray]) -> None:
        """`write` of blocks whose other planes are zero: slots that hold base and rest alone."""
        self._guard.check(writing=True)
        requests = self._requests(blocks, slots)
        requests["planes"] = fmt.PARAM_BITS
        self.records.scan(requests)
        self._write(requests)

    def connect(self, link: ArenaLink) -> None:
        """Makes `fetch` and `stow` possible, between the files and the slots of an arena; see store.direct."""
        self.records.connect(link)

    def can_fetch(self, blocks: Blocks) -> np.ndarray:
        """bool [n]: the record needs nothing of the host to become a slot. Once true, it stays so."""
        return self.table["kind"][blocks] != fmt.SEEDS

    def fetch(self, blocks: Blocks, slots: Sequence[int]) -> None:
        """`read` into arena slots; of blocks that `can_fetch`. CorruptError names file and block."""
        self._guard.check()
        requests = self._requests_of(blocks, slots)
        requests["scratch"] = self.table["flags"][requests["block"]] & fmt.FLAG_MID_STEP
        stored = requests["kind"] != fmt.NOTHING
        self.records.direct_engine.clear(requests[~stored])
        self.records.read(requests[stored], direct=True)

    def stow(self, blocks: Blocks, slots: Sequence[int], scratch: bool = False) -> None:
        """`write` of arena slots."""
        self._guard.check(writing=True)
        requests = self._requests_of(blocks, slots)
        requests["scratch"] = scratch
        self.records.scan(requests, direct=True)
        self._write(requests, direct=True)

    def write_seeds(self, blocks: Blocks, seeds: Sequence[np.ndarray]) -> None:
        """Writes blocks as seed points: packed uint8 [seed_nbytes], 4 KiB aligned; see store.seeds."""
        self._guard.check(writing=True)
        requests = self._requests(blocks, seeds)
        requests["planes"], requests["kind"] = 0, fmt.SEEDS
        self._write(requests)

    def read_seeds(self, blocks: Blocks, seeds: Sequence[np.ndarray]) -> None:
        """Reads blocks of kind SEEDS as they are stored: into uint8 [seed_nbytes], 4 KiB aligned."""
        self._guard.check()
        requests = self._requests(blocks, seeds)
        if np.any(requests["kind"] != fmt.SEEDS):
            raise ValueError("a block is not stored as seeds")
        requests["part"] = PACKED
        self.records.read(requests)

    def _requests(self, blocks: Blocks, slots: Sequence[np.ndarray]) -> np.ndarray:
        requests = self._requests_of(blocks, [address(s) for s in slots])
        if np.any(requests["slot"] % fmt.ALIGN):
            raise ValueError("a slot does not start on a 4 KiB boundary")
        return requests

    def _requests_of(self, blocks: Blocks, slots: Sequence[int]) -> np.ndarray:
        ids = np.asarray(blocks, np.int64)
        if len(ids) and not (ids.min() >= 0 and ids.max() < self._count):
            raise ValueError(f"blocks {ids.min()} to {ids.max()} asked of a store of {self._count}")
        requests = np.zeros(len(ids), REQUEST_DTYPE)
        requests["slot"] = slots
        requests["block"] = ids
        rows = self.table[ids]
        for name in (*_PLACE, "count"):
            requests[name] = rows[name]
        return requests

    def _write(self, requests: np.ndarray, direct: bool = False) -> None:
        """Writes requests whose planes and kind are set, then switches the table to them."""
        requests["generation"] += 1
        some = requests["kind"] != fmt.NOTHING
        requests["offset"][~some], requests["crc"][~some] = 0, 0
        stored = requests[some]
        self.records.write(stored, direct)
        requests[some] = stored
        ids = requests["block"].astype(np.int64)
        with self._mutex:
            self._release(ids)
            for name in _PLACE:
                self._rows[name][ids] = requests[name]
            flags = self._rows["flags"][ids] & ~np.uint8(fmt.FLAG_MID_STEP)
            self._rows["flags"][ids] = flags | requests["scratch"] * np.uint8(fmt.FLAG_MID_STEP)

    def _release(self, ids: np.ndarray) -> None:
        """Frees the extents of the blocks' newest records: at once, or after the next commit."""
        kinds, offsets = self._rows["kind"][ids], self._rows["offset"][ids]
        self.records.release(kinds, offsets, (kinds == self._snap_kind[ids]) & (offsets == self._snap_offset[ids]))

    # -- blocks -------------------------------------------------------------------------------------------------------

    def allocate(self, n: int) -> np.ndarray:
        """`n` block ids (int64), lowest free ones first, without a record (all planes zero) and with count 1, so that
        they are not free; the caller sets the table's row."""
        self._guard.check(writing=True)
        with self._mutex:
            ids = np.flatnonzero(self.table["count"] == 0)[:n]
            more = n - len(ids)
            if more:
                ids = np.concatenate([ids, np.arange(self._count, self._count + more)])
                self._resize(self._count + more)
            self._rows["count"][ids] = 1
        return ids

    def free(self, blocks: Blocks) -> None:
        """Gives the ids and records of blocks back."""
        self._guard.check(writing=True)
        ids = np.unique(np.asarray(blocks, np.int64))
        with self._mutex:
            self._release(ids)
            generation = self._rows["generation"][ids]
            self._rows[ids] = _empty_rows(len(ids))
            self._rows["generation"][ids] = generation  # goes on, so that old bytes are never mistaken for new ones

    def _resize(self, count: int) -> None:
        if count > len(self._rows):
            more = max(count, len(self._rows) * 5 // 4) - len(self._rows)
            self._rows = np.concatenate([self._rows, _empty_rows(more)])
            self._snap_kind = np.concatenate([self._snap_kind, np.full(more, fmt.NOTHING, np.uint8)])
            self._snap_offset = np.concatenate([self._snap_offset, np.zeros(more, np.int64)])
        self._count = count

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def commit(self, meta: bytes) -> int:
        """Makes the newest records and the table the snapshot; see the seam. Blocks of count 0 are freed, records
        with scratch planes are written again without them. A failed fsync or root write makes the store unusable
        until it is opened again: what reached the disk is then unknown."""
        self._guard.check(writing=True)
        self._settle()
        self.records.sync()
        data = fmt.pack_table(self.table, meta, self.snapshot + 1)
        index, crc = self._tables.write(data)
        self.counters.other_written += len(data) + 2 * fmt.SLOT
        root = fmt.Root(
            snapshot=self.snapshot + 1,
            table_file=index,
            table_crc=crc,
            rows=self._count,
            meta_nbytes=len(meta),
            capacity=self.layout.capacity,
            sh_degree=self.layout.sh_degree,
            stat_components=self.layout.stat_components,
            seed_opacity=self.seed_opacity,
            bytes_written=self.bytes_written,
            store_dtype=self.layout.store_dtype,
        )
        self._root.switch(root)
        self._tables.committed(index)
        self.snapshot, self._meta = root.snapshot, meta
        with self._mutex:
            self._snap_kind[: self._count] = self.table["kind"]
            self._snap_offset[: self._count] = self.table["offset"]
        self.records.committed()
        return self.snapshot

    def _settle(self) -> None:
        """Nothing of the middle of a step, and no record of a free id, may reach a snapshot."""
        self.free(np.flatnonzero((self.table["count"] == 0) & (self.table["kind"] != fmt.NOTHING)))
        slot = None
        for block in np.flatnonzero(self.table["kind"] == fmt.SCRATCH).tolist():
            slot = aligned_empty(self.layout.slot_nbytes) if slot is None else slot
            self.read([block], [slot])
            self.write([block], [slot])
        self.table["flags"] &= ~np.uint8(fmt.FLAG_MID_STEP)

    # -- opening and closing ------------------------------------------------------------------------------------------

    def _begin(self, kept: Callable[[], Begun | None]) -> None:
        """Takes a folder for a new store, and clears what an unfinished creation left or goes on with it."""
        with self._guard.errors(self.path, "creating the folder"):
            self._files.mkdir(self.path)
            names = self._files.listdir(self.path)
        if fmt.ROOT in names:
            raise StoreError(f"{self.path} already holds a store: remove it, or name another folder")
        strangers = [n for n in names if n not in fmt.OUR_FILES]
        if strangers:
            raise StoreError(f"{self.path} is not empty (it holds {strangers[0]}): name an empty or a new folder")
        self._lock_folder()
        begun = kept()
        if begun is None:
            with self._guard.errors(self.path, "clearing the folder"):
                self._files.clear(self.path, fmt.OUR_FILES - {fmt.LOCK})
        else:
            rows, self._written_before = begun
            self._resize(len(rows))
            self._rows[: len(rows)] = rows
            self.records.load(rows)

    def _lock_folder(self) -> None:
        path = self.path / fmt.LOCK
        with self._guard.errors(path, "locking"):
            try:
                flags = os.O_RDONLY if self.readonly else os.O_RDWR | os.O_CREAT
                self._lock_fd = self._files.open(path, flags)
            except FileNotFoundError:
                return  # a copy without its lock file, to be read only
            if self._files.lock(self._lock_fd, exclusive=not self.readonly):
                return
        raise StoreError(f"{self.path} is in use by another process: wait until it ends, or use another store")

    def _load(self, root: fmt.Root, mirrored: bool) -> None:
        self.snapshot, self._written_before = root.snapshot, root.bytes_written
        rows, self._meta = self._tables.read(root)
        known = (rows["kind"] < fmt.SCRATCH) | (rows["kind"] == fmt.NOTHING)
        if not known.all():
            block = int(np.flatnonzero(~known)[0])
            raise CorruptError(
                f"{self._tables.path(root.table_file)}: block {block} has a record of unknown kind "
                f"{rows['kind'][block]}: restore the store from a copy"
            )
        self._resize(root.rows)
        self._rows[: root.rows] = rows
        self._snap_kind[: root.rows], self._snap_offset[: root.rows] = rows["kind"], rows["offset"]
        self.records.load(rows)
        if not self.readonly:
            self._root.resume(root, mirrored)
            with self._guard.errors(self.path, "clearing what a dead process left"):
                self.records.clear_scratch()
                self._files.clear(self.path, fmt.WORK_FILES)

    def close(self) -> None:
        """Ends the threads, closes the files, lets go of the lock. What was not committed is lost."""
        self._guard.closed()
        self.records.close()
        self._tables.close()
        self._root.close()
        if self._lock_fd >= 0:
            self._files.close(self._lock_fd)
            self._lock_fd = -1

    def abandon(self) -> None:
        """Closes a new store whose first commit was not reached or failed, and removes its files as far as possible."""
        self.close()
        with suppress(OSError):
            self._files.clear(self.path, {fmt.ROOT})  # first: a store without its other files must not look like one
            self._files.clear(self.path, fmt.OUR_FILES)

    def __enter__(self) -> BlockStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _closing_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise


def _empty_rows(n: int) -> np.ndarray:
    rows = np.zeros(n, TABLE_DTYPE)
    rows["kind"] = fmt.NOTHING
    return rows
