"""The block store: records of blocks on SSD, with atomic snapshots by shadow paging.

Invariant: what the last snapshot refers to is never overwritten, so after a crash at any instant opening the folder
gives exactly that snapshot, or an error that names the file and the block.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tidegs.errors import CorruptError, StoreError
from tidegs.gaussians.layout import RecordLayout
from tidegs.store import format as fmt
from tidegs.store.base import TABLE_DTYPE
from tidegs.store.extents import Extents
from tidegs.store.files import Files
from tidegs.store.memory import address, aligned_empty
from tidegs.store.native import REQUEST_DTYPE, STATUS, Engine, crc32c
from tidegs.store.seeds import INIT_OPACITY_LOGIT, SH0_OF_COLOR

_GROW_LEAST, _GROW_MOST = 16 << 20, 1 << 30  # bytes by which a record file grows ahead of need
IO_THREADS = 4
Blocks = Sequence[int] | np.ndarray


@dataclass
class Counters:
    """Bytes that moved since the store was opened, and the planes among them."""

    records_read: int = 0
    records_written: int = 0
    planes_written: int = 0  # payload that was asked for: records without their headers
    other_written: int = 0  # tables and roots

    @property
    def written(self) -> int:
        return self.records_written + self.other_written


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
    ) -> BlockStore:
        """An empty store in a folder that holds none. It can be opened once its first `commit` is done; what an
        unfinished creation left there is replaced. `seed_opacity`: the logit that seeds expand to."""
        store = BlockStore(Path(path), layout, seed_opacity, False, io_threads, files or Files())
        with store._closing_on_error():
            store._begin()
        return store

    @staticmethod
    def open(
        path: str | os.PathLike,
        readonly: bool = False,
        with_carry: bool = False,
        with_grads: bool = False,
        io_threads: int = IO_THREADS,
        files: Files | None = None,
    ) -> BlockStore:
        """The last snapshot of a store; `with_carry` and `with_grads` say which scratch planes slots have."""
        folder, files = Path(path), files or Files()
        root, mirrored = _read_root(folder, files)
        layout = RecordLayout(root.capacity, root.sh_degree, root.stat_components, with_carry, with_grads)
        store = BlockStore(folder, layout, root.seed_opacity, readonly, io_threads, files)
        with store._closing_on_error():
            store._lock_folder()
            root, mirrored = _read_root(folder, files)  # a writer may have gone on until the lock was taken
            store._load(root, mirrored)
        return store

    def __init__(
        self, path: Path, layout: RecordLayout, seed_opacity: float, readonly: bool, io_threads: int, files: Files
    ) -> None:
        """Use `create` or `open`."""
        self.path = path
        self.layout = layout
        self.readonly = readonly
        self.direct = True
        self.counters = Counters()
        self.snapshot = 0
        self.seed_opacity = float(np.float32(seed_opacity))
        self._files = files
        self._mutex = threading.Lock()
        self._lock_fd = self._root_fd = -1
        self._table_fds = [-1, -1]
        self._fds = np.full(len(fmt.KINDS), -1, np.int32)
        self._unsynced: set[int] = set()  # kinds with writes that no fsync followed
        self._table_file = 0
        self._written_before = 0
        self._meta = b""
        self._poison: str | None = None
        self._rows = np.zeros(0, TABLE_DTYPE)
        self._count = 0
        self._snap_kind = np.zeros(0, np.uint8)
        self._snap_offset = np.zeros(0, np.int64)
        self._extent = fmt.extent_nbytes(layout)
        self._extents = [Extents(int(n), np.empty(0, np.int64), 0) for n in self._extent]
        self._engine = Engine(layout, self.seed_opacity, SH0_OF_COLOR, io_threads, files.read_call, files.write_call)

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
    def bytes_written(self) -> int:
        """All bytes written to the store since it was created, up to now."""
        return self._written_before + self.counters.written

    # -- records ------------------------------------------------------------------------------------------------------

    def read(self, blocks: Blocks, slots: Sequence[np.ndarray]) -> None:
        """Reads the newest record of each block into its slot; see the seam. CorruptError names file and block."""
        self._check_usable()
        requests, rows = self._requests(blocks, slots)
        requests["scratch"] = rows["flags"] & fmt.FLAG_MID_STEP
        for i in np.flatnonzero(rows["kind"] == fmt.NOTHING).tolist():
            slots[i][: self._filled_nbytes(requests["scratch"][i])] = 0
        stored = requests[rows["kind"] != fmt.NOTHING]
        failed = self._engine.read(stored)
        if failed:
            self._raise(stored, "reading")
        self.counters.records_read += self._record_nbytes(stored)
        self._drop_cache(stored)

    def write(self, blocks: Blocks, slots: Sequence[np.ndarray], scratch: bool = False) -> None:
        """Writes records to free extents; see the seam. All of them are written, or none replaces its old record."""
        self._check_usable(writing=True)
        requests, _ = self._requests(blocks, slots)
        requests["scratch"] = scratch
        self._engine.scan(requests)
        requests["kind"] = self._classes(requests["planes"])
        self._write(requests)

    def write_seeds(self, blocks: Blocks, seeds: Sequence[np.ndarray]) -> None:
        """Writes blocks as seed points: packed uint8 [format.seed_nbytes], 4 KiB aligned; see store.seeds."""
        self._check_usable(writing=True)
        requests, _ = self._requests(blocks, seeds)
        requests["planes"], requests["kind"] = 0, fmt.SEEDS
        self._write(requests)

    def _requests(self, blocks: Blocks, slots: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        ids = np.asarray(blocks, np.int64)
        if len(ids) and not (ids.min() >= 0 and ids.max() < self._count):
            raise ValueError(f"blocks {ids.min()} to {ids.max()} asked of a store of {self._count}")
        rows = self.table[ids]
        requests = np.zeros(len(ids), REQUEST_DTYPE)
        requests["slot"] = [address(s) for s in slots]
        if np.any(requests["slot"] % fmt.ALIGN):
            raise ValueError("a slot does not start on a 4 KiB boundary")
        requests["block"] = ids
        for name in ("offset", "generation", "count", "crc", "planes", "kind"):
            requests[name] = rows[name]
        stored = rows["kind"] != fmt.NOTHING
        requests["fd"][stored] = self._fds[rows["kind"][stored]]
        return requests, rows

    def _classes(self, planes: np.ndarray) -> np.ndarray:
        """The smallest size class that holds the planes of each bit set."""
        need = fmt.planes_nbytes(self.layout, planes) + fmt.ALIGN
        kinds = np.full(len(planes), fmt.SCRATCH, np.uint8)
        plain = (planes & fmt.SCRATCH_BITS) == 0
        for kind in (4, 3, 2, 1):
            kinds[plain & (need <= self._extent[kind])] = kind
        kinds[planes == 0] = fmt.NOTHING
        return kinds

    def _write(self, requests: np.ndarray) -> None:
        """Writes requests whose planes and kind are set, then switches the table to them."""
        requests["generation"] += 1
        self._place(requests)
        stored = requests[requests["kind"] != fmt.NOTHING]
        failed = self._engine.write(stored)
        with self._mutex:
            if failed:
                for kind, mine in _by_kind(stored["kind"]):
                    self._extents[kind].give_back(stored["offset"][mine] // self._extent[kind])
            else:
                requests[requests["kind"] != fmt.NOTHING] = stored
                self._switch(requests)
        if failed:
            self._raise(stored, "writing")
        nbytes = self._record_nbytes(stored)
        self.counters.records_written += nbytes
        self.counters.planes_written += nbytes - fmt.ALIGN * len(stored)

    def _place(self, requests: np.ndarray) -> None:
        """Gives each request a free extent."""
        taken: list[tuple[int, np.ndarray]] = []
        with self._mutex:
            try:
                for kind, mine in _by_kind(requests["kind"]):
                    extents = self._take(kind, len(mine))
                    taken.append((kind, extents))
                    requests["offset"][mine] = extents * self._extent[kind]
                    requests["fd"][mine] = self._fds[kind]
                    self._unsynced.add(kind)
            except StoreError:
                for kind, extents in taken:
                    self._extents[kind].give_back(extents)
                raise

    def _switch(self, requests: np.ndarray) -> None:
        ids = requests["block"].astype(np.int64)
        self._release(ids)
        for name in ("offset", "generation", "crc", "planes", "kind"):
            self._rows[name][ids] = requests[name]
        self._rows["flags"][ids] &= ~np.uint8(fmt.FLAG_MID_STEP)
        self._rows["flags"][ids] |= requests["scratch"] * np.uint8(fmt.FLAG_MID_STEP)

    def _release(self, ids: np.ndarray) -> None:
        """Frees the extents of the blocks' newest records: at once, or after the next commit."""
        kinds, offsets = self._rows["kind"][ids], self._rows["offset"][ids]
        kept = (kinds == self._snap_kind[ids]) & (offsets == self._snap_offset[ids])
        for kind, mine in _by_kind(kinds):
            extents = offsets[mine] // self._extent[kind]
            self._extents[kind].give_back(extents[~kept[mine]])
            self._extents[kind].give_back_later(extents[kept[mine]])

    def _take(self, kind: int, n: int) -> np.ndarray:
        extents = self._extents[kind]
        taken = extents.take(n)
        if taken is not None:
            return taken
        path = self._record_path(kind)
        with self._os_errors(path, f"making room for {n} blocks in"):
            if self._fds[kind] < 0:
                self._open_records(kind)
            ahead = min(max(_GROW_LEAST, extents.total * extents.nbytes // 8), _GROW_MOST) // extents.nbytes
            total = extents.total + n + ahead
            try:
                self._files.allocate(int(self._fds[kind]), total * extents.nbytes)
            except OSError:  # perhaps there is room for what is needed, if not for what is convenient
                total = extents.total + n
                self._files.allocate(int(self._fds[kind]), total * extents.nbytes)
        extents.grow(total)
        taken = extents.take(n)
        assert taken is not None
        return taken

    def _record_nbytes(self, requests: np.ndarray) -> int:
        nbytes = fmt.planes_nbytes(self.layout, requests["planes"])
        nbytes[requests["kind"] == fmt.SEEDS] = fmt.seed_nbytes(self.layout)
        return int(nbytes.sum()) + fmt.ALIGN * len(requests)

    def _filled_nbytes(self, scratch: int) -> int:
        return self.layout.slot_nbytes if scratch else self.layout.record_nbytes

    def _raise(self, requests: np.ndarray, doing: str) -> None:
        bad = requests[requests["status"] != 0][0]
        path, status = self._record_path(bad["kind"]), int(bad["status"])
        if status > 0:
            raise StoreError(f"{path}: {doing} block {bad['block']} failed: {os.strerror(status)}")
        raise CorruptError(
            f"{path}: block {bad['block']} at byte {bad['offset']} is damaged: {STATUS[status]}; "
            "restore the store from a copy"
        )

    def _drop_cache(self, requests: np.ndarray) -> None:
        if not self.direct:
            for fd in np.unique(requests["fd"]):
                self._files.drop_cache(int(fd))

    # -- blocks -------------------------------------------------------------------------------------------------------

    def allocate(self, n: int) -> np.ndarray:
        """`n` block ids (int64), lowest free ones first, without a record (all planes zero) and with count 1, so that
        they are not free; the caller sets the table's row."""
        self._check_usable(writing=True)
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
        self._check_usable(writing=True)
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
        self._check_usable(writing=True)
        self._settle()
        for kind in sorted(self._unsynced):
            self._sync(int(self._fds[kind]), self._record_path(kind))
            if not self.direct:
                self._files.drop_cache(int(self._fds[kind]))
        self._unsynced.clear()
        root = self._write_table(meta)
        self._switch_root(root)
        self.snapshot, self._table_file, self._meta = root.snapshot, root.table_file, meta
        with self._mutex:
            self._snap_kind[: self._count] = self.table["kind"]
            self._snap_offset[: self._count] = self.table["offset"]
            for extents in self._extents:
                extents.committed()
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

    def _write_table(self, meta: bytes) -> fmt.Root:
        index = 1 - self._table_file
        path = self.path / fmt.TABLES[index]
        data = fmt.pack_table(self.table, meta, self.snapshot + 1)
        with self._os_errors(path, "writing"):
            if self._table_fds[index] < 0:
                self._table_fds[index] = self._files.open(path, os.O_RDWR | os.O_CREAT)
            self._files.write_all(self._table_fds[index], data, 0)
            self._files.truncate(self._table_fds[index], len(data))
        self._sync(self._table_fds[index], path)
        with self._poisoned_by(self.path, "fsync of the folder"):
            self._files.fsync_folder(self.path)
        self.counters.other_written += len(data) + 2 * fmt.SLOT
        return fmt.Root(
            snapshot=self.snapshot + 1,
            table_file=index,
            table_crc=crc32c(data),
            rows=self._count,
            meta_nbytes=len(meta),
            capacity=self.layout.capacity,
            sh_degree=self.layout.sh_degree,
            stat_components=self.layout.stat_components,
            seed_opacity=self.seed_opacity,
            bytes_written=self.bytes_written,
        )

    def _switch_root(self, root: fmt.Root) -> None:
        """Writes one root slot, syncs, then the other: at every instant one of them is sound and the newest."""
        slot, path = fmt.pack_root(root), self.path / fmt.ROOT
        with self._poisoned_by(path, "switching to the new snapshot"):
            if self._root_fd < 0:
                self._create_root(slot)
                return
            for at in (0, fmt.SLOT):
                self._files.write_all(self._root_fd, slot, at)
                self._files.fsync(self._root_fd)

    def _create_root(self, slot: bytes) -> None:
        path, temporary = self.path / fmt.ROOT, self.path / (fmt.ROOT + ".tmp")
        self._root_fd = self._files.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._files.write_all(self._root_fd, slot * 2, 0)
        self._files.fsync(self._root_fd)
        self._files.rename(temporary, path)
        self._files.fsync_folder(self.path)
        self._files.fsync_folder(self.path.absolute().parent)

    # -- opening and closing ------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Takes a folder for a new store and clears what an unfinished creation left."""
        with self._os_errors(self.path, "creating"):
            self._files.mkdir(self.path)
            names = self._files.listdir(self.path)
        if fmt.ROOT in names:
            raise StoreError(f"{self.path} already holds a store: remove it, or name another folder")
        strangers = [n for n in names if n not in fmt.OUR_FILES]
        if strangers:
            raise StoreError(f"{self.path} is not empty (it holds {strangers[0]}): name an empty or a new folder")
        self._lock_folder()
        with self._os_errors(self.path, "clearing"):
            for name in names:
                if name != fmt.LOCK:
                    self._files.unlink(self.path / name)

    def _lock_folder(self) -> None:
        path = self.path / fmt.LOCK
        with self._os_errors(path, "locking"):
            try:
                flags = os.O_RDONLY if self.readonly else os.O_RDWR | os.O_CREAT
                self._lock_fd = self._files.open(path, flags)
            except FileNotFoundError:
                return  # a copy without its lock file, to be read only
            if self._files.lock(self._lock_fd, exclusive=not self.readonly):
                return
        raise StoreError(f"{self.path} is in use by another process: wait until it ends, or use another store")

    def _load(self, root: fmt.Root, mirrored: bool) -> None:
        self.snapshot, self._table_file = root.snapshot, root.table_file
        self._written_before = root.bytes_written
        path = self.path / fmt.TABLES[root.table_file]
        with self._os_errors(path, "reading"):
            data = _read_file(path, self._files)
        rows, self._meta = fmt.unpack_table(data, root, path)
        self._resize(root.rows)
        self._rows[: root.rows] = rows
        self._check_kinds(rows, path)
        for kind in range(len(fmt.KINDS)):
            self._load_class(kind, rows)
        self._snap_kind[: root.rows], self._snap_offset[: root.rows] = rows["kind"], rows["offset"]
        if not self.readonly:
            self._resume_writing(root, mirrored)

    def _check_kinds(self, rows: np.ndarray, path: Path) -> None:
        known = (rows["kind"] < fmt.SCRATCH) | (rows["kind"] == fmt.NOTHING)
        if not known.all():
            block = int(np.flatnonzero(~known)[0])
            raise CorruptError(f"{path}: block {block} has a record of unknown kind {rows['kind'][block]}")

    def _load_class(self, kind: int, rows: np.ndarray) -> None:
        """Opens a record file and takes the extents that the snapshot refers to."""
        path, nbytes = self._record_path(kind), int(self._extent[kind])
        mine = np.flatnonzero(rows["kind"] == kind)
        try:
            with self._os_errors(path, "opening"):
                self._open_records(kind, create=False)
                size = self._files.size(int(self._fds[kind]))
        except StoreError as e:
            if isinstance(e.__cause__, FileNotFoundError):
                if len(mine) == 0:
                    return
                raise CorruptError(
                    f"{path} is missing, and block {mine[0]} lies in it: restore the store from a copy"
                ) from e
            raise
        extents, rest = np.divmod(rows["offset"][mine], nbytes)
        total = size // nbytes
        wrong = (rest != 0) | (extents < 0) | (extents >= total)
        if wrong.any():
            block = mine[np.flatnonzero(wrong)[0]]
            raise CorruptError(
                f"{path}: block {block} lies at byte {rows['offset'][block]} of a file of {size} bytes: "
                "the file was cut short; restore the store from a copy"
            )
        if len(np.unique(extents)) != len(extents):
            raise CorruptError(f"{path}: two blocks of the table claim one place: restore the store from a copy")
        self._extents[kind] = Extents(nbytes, extents, total)

    def _resume_writing(self, root: fmt.Root, mirrored: bool) -> None:
        """Brings a crashed writer's leftovers in order: the second root slot, the scratch file."""
        with self._poisoned_by(self.path, "opening for writing"):
            self._root_fd = self._files.open(self.path / fmt.ROOT, os.O_RDWR)
            if not mirrored:
                self._switch_root(root)
            if self._fds[fmt.SCRATCH] >= 0:
                self._files.truncate(int(self._fds[fmt.SCRATCH]), 0)
                self._extents[fmt.SCRATCH] = Extents(int(self._extent[fmt.SCRATCH]), np.empty(0, np.int64), 0)

    def _open_records(self, kind: int, create: bool = True) -> None:
        flags = os.O_RDONLY if self.readonly else os.O_RDWR | (os.O_CREAT if create else 0)
        fd, direct = self._files.open_direct(self._record_path(kind), flags)
        self._fds[kind] = fd
        self.direct = self.direct and direct

    def close(self) -> None:
        """Ends the threads, closes the files, lets go of the lock. What was not committed is lost."""
        self._engine.close()
        self._poison = self._poison or "it is closed"
        for fd in [*map(int, self._fds), *self._table_fds, self._root_fd, self._lock_fd]:
            if fd >= 0:
                self._files.close(fd)
        self._fds[:] = -1
        self._table_fds, self._root_fd, self._lock_fd = [-1, -1], -1, -1

    def abandon(self) -> None:
        """Closes a store that was never committed and removes its files."""
        self.close()
        for name in self._files.listdir(self.path):
            if name in fmt.OUR_FILES:
                self._files.unlink(self.path / name)

    def __enter__(self) -> BlockStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- errors -------------------------------------------------------------------------------------------------------

    def _record_path(self, kind: int) -> Path:
        return self.path / fmt.RECORD_FILES[kind]

    def _check_usable(self, writing: bool = False) -> None:
        if self._poison:
            raise StoreError(f"{self.path} cannot be used: {self._poison}")
        if writing and self.readonly:
            raise StoreError(f"{self.path} was opened for reading only: open it for writing")

    def _sync(self, fd: int, path: Path) -> None:
        with self._poisoned_by(path, "fsync"):
            self._files.fsync(fd)

    @contextmanager
    def _os_errors(self, path: Path, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise StoreError(f"{path}: {doing} it failed: {e.strerror or e}") from e

    @contextmanager
    def _poisoned_by(self, path: Path, doing: str) -> Iterator[None]:
        """Operations after whose failure nobody knows what is on the disk."""
        try:
            yield
        except OSError as e:
            self._poison = (
                f"{doing} failed earlier ({path}: {e.strerror or e}): open it again to go on from its snapshot"
            )
            raise StoreError(
                f"{path}: {doing} failed: {e.strerror or e}; nothing more is written, open the store again"
            ) from e

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


def _by_kind(kinds: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Each kind of stored record among `kinds`, and where it occurs."""
    for kind in np.unique(kinds):
        if kind != fmt.NOTHING:
            yield int(kind), np.flatnonzero(kinds == kind)


def _read_file(path: Path, files: Files) -> bytes:
    fd = files.open(path, os.O_RDONLY)
    try:
        return files.read_all(fd, files.size(fd), 0)
    finally:
        files.close(fd)


def _read_root(folder: Path, files: Files) -> tuple[fmt.Root, bool]:
    path = folder / fmt.ROOT
    try:
        data = _read_file(path, files)
    except (FileNotFoundError, NotADirectoryError) as e:
        raise StoreError(
            f"{folder} holds no store (there is no file {fmt.ROOT} in it): name the folder of a store that was finished"
        ) from e
    except OSError as e:
        raise StoreError(f"{path}: reading it failed: {e.strerror or e}") from e
    return fmt.newest_root(data, path)
