"""Records straight between files and the arena (kvikio's way, with a stand-in for it): the same bytes, nothing
unverified, faults that end in one sentence, and an order that the checker can see."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cuda.device_files import PAGE, DeviceFiles, OneFault, random_bytes
from tests.cuda.ordering import OrderingError, RecordedEvent, RecordedStreams
from tests.store.store_cases import SMALL_SCRATCH, contents, filled_store, random_slot, read_slots
from tidegs import crc
from tidegs.device.cuda import checksum
from tidegs.device.cuda.arena import Arena
from tidegs.device.cuda.copies import CopyEngine, SlotOrder, slot_names
from tidegs.device.cuda.direct import DirectSlots
from tidegs.errors import CorruptError, StoreError
from tidegs.gaussians.layout import RECORD_PLANES, SCRATCH_PLANES
from tidegs.store.block_store import BlockStore
from tidegs.store.format import RECORD_FILES
from tidegs.store.native import crc32c

LAYOUT, SLOTS = SMALL_SCRATCH, 9
N = LAYOUT.slot_nbytes
TRAINED = list(range(3, 9))  # blocks of filled_store that are not seeds; 8 has no record: all planes are zero
WHOLE = 7  # has all planes


class Rig:
    """A store whose block b lies in slot b of an arena, at first full of rubbish."""

    def __init__(self, folder: Path, fault=None, streams: RecordedStreams | None = None) -> None:
        self.files = DeviceFiles(*([fault] if fault else []))
        filled_store(folder, layout=LAYOUT).close()
        self.store = BlockStore.open(folder, with_grads=True, io_threads=1, files=self.files)
        self.connect(streams or RecordedStreams())

    def connect(self, streams: RecordedStreams) -> None:
        self.streams = streams
        self.arena = Arena(LAYOUT, SLOTS, torch.device("cpu"))
        self.arena.memory.fill_(0xA5)
        self.order = SlotOrder(streams, SLOTS)
        self.copies = CopyEngine(self.arena, streams, self.order)
        self.store.connect(DirectSlots(self.arena, streams, self.order))

    def slot(self, block: int) -> np.ndarray:
        return self.arena.memory[block * N : (block + 1) * N].numpy()

    def compute(self, slots: Sequence[int], writes: bool = True) -> None:
        """Something that the compute stream does to slots."""
        self.order.begin("compute", slots)
        (self.streams.writes if writes else self.streams.reads)("compute", slot_names(slots))
        self.order.end("compute", slots)


@contextmanager
def rig(folder: Path, *args, **kwargs) -> Iterator[Rig]:
    made = Rig(folder, *args, **kwargs)
    try:
        yield made
    finally:
        made.store.close()


def in_thread(work: Callable[[], None]) -> None:
    """As the queues of residency do; raises what it raised."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


# -- checksums ------------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 99))
def test_a_checksum_of_pieces_is_that_of_the_whole(pages, seed):
    """Against the store's CRC32C, which is tested against RFC 3720's vectors."""
    memory = torch.from_numpy(random_bytes(seed, PAGE * sum(pages)))
    firsts = PAGE * np.cumsum([0, *pages[:-1]])
    remainders, filled = checksum.fold_twin(memory, [(int(f), PAGE * n) for f, n in zip(firsts, pages, strict=True)])
    joined = crc.join(remainders, np.array(pages), np.zeros(len(pages), int), 1)
    assert crc.finish(int(joined[0]), sum(pages)) == crc32c(memory.numpy())
    assert filled.all()


def test_the_kernel_is_its_twin(monkeypatch):
    """Pieces of less and of more than a chunk, one of zeros, and a single bit in the last word."""
    pytest.importorskip("triton", reason="triton is not installed")
    if not torch.cuda.is_available():
        pytest.importorskip("tidegs.device.cuda.launch")
    monkeypatch.setattr(checksum, "CHUNK_PAGES", 2)
    memory = torch.from_numpy(random_bytes(1, 9 * PAGE))
    memory[PAGE : 4 * PAGE] = 0
    memory[4 * PAGE - 1] = 0x80
    pieces = [(0, PAGE), (PAGE, 2 * PAGE), (3 * PAGE, PAGE), (6 * PAGE, 3 * PAGE)]
    (a, a_filled), (b, b_filled) = checksum.fold(memory, pieces), checksum.fold_twin(memory, pieces)
    np.testing.assert_array_equal(a, b)
    assert a_filled.tolist() == b_filled.tolist() == [True, False, True, True]
    for (first, nbytes), remainder in zip(pieces, a.tolist(), strict=True):
        assert crc.finish(remainder, nbytes // PAGE) == crc32c(memory[first : first + nbytes].numpy())
    assert checksum.fold(memory, [])[0].shape == (0,)


# -- bytes ----------------------------------------------------------------------------------------------------------


def test_fetched_records_are_those_that_are_read(tmp_path):
    """Of every kind; planes that are not stored are zeros, also over rubbish."""
    with rig(tmp_path / "s") as r:
        wanted = read_slots(r.store)
        assert np.flatnonzero(r.store.can_fetch(range(SLOTS))).tolist() == TRAINED
        r.store.fetch(TRAINED, TRAINED)
        for block in TRAINED:
            np.testing.assert_array_equal(r.slot(block)[: LAYOUT.record_nbytes], wanted[block])
        assert r.files.moved["pread"] == sum(
            LAYOUT.plane_nbytes(p) for b in TRAINED for i, p in enumerate(RECORD_PLANES) if _has(r.store, b, i)
        )


def _has(store: BlockStore, block: int, plane: int) -> bool:
    return bool(store.table["kind"][block] != 255 and store.table["planes"][block] >> plane & 1)


@settings(max_examples=8, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(RECORD_PLANES + SCRATCH_PLANES), unique=True), min_size=1, max_size=4),
    st.booleans(),
)
def test_stowed_records_are_those_that_are_written(tmp_path_factory, planes, scratch):
    """The same files, byte for byte, whether a slot is written from the arena or from memory; and what is fetched again
    is what was there."""
    rng = np.random.default_rng(len(planes))
    slots = [random_slot(LAYOUT, tuple(p for p in each if scratch or p != "grads"), rng) for each in planes]
    blocks = TRAINED[: len(slots)]
    tables, folders = [], []
    for way in ("arena", "memory"):
        folders.append(tmp_path_factory.mktemp("stow") / "s")
        with rig(folders[-1]) as r:
            if way == "memory":
                r.store.write(blocks, slots, scratch)
            else:
                for block, slot in zip(blocks, slots, strict=True):
                    r.slot(block)[:] = slot
                r.store.stow(blocks, blocks, scratch)
                r.arena.memory.fill_(0xA5)
                r.store.fetch(blocks, blocks)
                for block, slot in zip(blocks, slots, strict=True):
                    end = N if scratch else LAYOUT.record_nbytes
                    np.testing.assert_array_equal(r.slot(block)[:end], slot[:end])
            tables.append(r.store.table.copy())
            if not scratch:
                r.store.commit(b"")
    np.testing.assert_array_equal(tables[0], tables[1])
    for one, other in zip(*(sorted(f.iterdir()) for f in folders), strict=True):
        assert one.name == other.name
        if one.name.startswith("records") and "scratch" not in one.name:
            for row in tables[0][tables[0]["kind"] == _kind(one.name)]:
                at = int(row["offset"])
                with one.open("rb") as a, other.open("rb") as b:
                    a.seek(at)
                    b.seek(at)
                    assert a.read(PAGE) == b.read(PAGE)  # headers; payloads are covered by their checksums


def _kind(name: str) -> int:
    return RECORD_FILES.index(name)


def test_a_store_that_is_opened_again_has_what_was_stowed(tmp_path):
    with rig(tmp_path / "s") as r:
        r.store.fetch(TRAINED, TRAINED)
        LAYOUT.view(r.slot(WHOLE), "base")[:] = 7
        r.store.stow([WHOLE], [WHOLE])
        r.store.commit(b"stowed")
    with BlockStore.open(tmp_path / "s", readonly=True) as store:
        (slot,) = read_slots(store, [WHOLE])
        assert (LAYOUT.view(slot, "base") == 7).all()


# -- faults ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["header", "payload", "last byte"])
def test_damage_is_found_in_device_memory(tmp_path, where):
    with rig(tmp_path / "s") as r:
        row = r.store.table[WHOLE]
        path = r.store.records.path(int(row["kind"]))
        nbytes = sum(LAYOUT.plane_nbytes(p) for p in RECORD_PLANES)
        at = int(row["offset"]) + {"header": 20, "payload": PAGE + 5000, "last byte": PAGE + nbytes - 1}[where]
        with path.open("r+b") as f:
            f.seek(at)
            byte = f.read(1)[0]
            f.seek(at)
            f.write(bytes([byte ^ 1]))
        with pytest.raises(CorruptError, match=rf"{path.name}: block {WHOLE} at byte \d+ is damaged: .* checksum"):
            r.store.fetch(TRAINED, TRAINED)


def test_an_older_record_in_its_place_is_found(tmp_path):
    """Its own checksum is right, but it is not the one that the table means."""
    with rig(tmp_path / "s") as r:
        r.store.table["generation"][WHOLE] += 1
        with pytest.raises(CorruptError, match="another record lies there"):
            r.store.fetch([WHOLE], [WHOLE])


@pytest.mark.parametrize("call", ["pread", "pwrite"])
def test_short_transfers_go_on(tmp_path, call):
    fault = OneFault(call, 0, "short", sticky=True)
    with rig(tmp_path / "s", fault) as r:
        wanted = read_slots(r.store)
        r.store.fetch(TRAINED, TRAINED)
        r.store.stow(TRAINED, TRAINED)
        assert fault.met > len(TRAINED)
        np.testing.assert_array_equal(read_slots(r.store)[TRAINED], wanted[TRAINED])


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("end", CorruptError, "the file ends inside it"),
        ("EIO", StoreError, r"reading block \d failed: Input/output error"),
        ("words", StoreError, r"reading block \d failed: .*kvikio: Linux system/library function call error"),
    ],
)
@pytest.mark.parametrize("k", [0, 3])
def test_a_read_that_fails_says_which_block(tmp_path, kind, error, words, k):
    with rig(tmp_path / "s", OneFault("pread", k, kind)) as r:
        with pytest.raises(error, match=rf"records\.[a-z-]+: .*{words}"):
            r.store.fetch(TRAINED, TRAINED)
        wanted = read_slots(r.store)
        r.store.fetch(TRAINED, TRAINED)  # the fault has passed
        np.testing.assert_array_equal(r.slot(WHOLE)[: LAYOUT.record_nbytes], wanted[WHOLE])


@pytest.mark.parametrize("kind", ["end", "EIO", "words"])
@pytest.mark.parametrize("k", [0, 2])
def test_a_write_that_fails_leaves_the_old_records(tmp_path, kind, k):
    """And takes no room for good."""
    with rig(tmp_path / "s", OneFault("pwrite", k, kind)) as r:
        before, table = contents(r.store), r.store.table.copy()
        used = [e.used for e in r.store.records.extents]
        r.store.fetch(TRAINED, TRAINED)
        LAYOUT.view(r.slot(WHOLE), "base")[:] = 7
        with pytest.raises(StoreError, match=r"records\.[a-z-]+: writing block \d failed: Input/output error"):
            r.store.stow(TRAINED, TRAINED)
        np.testing.assert_array_equal(r.store.table, table)
        assert contents(r.store) == before
        assert [e.used for e in r.store.records.extents] == used
        r.store.stow(TRAINED, TRAINED)
        assert contents(r.store) != before


def test_a_file_that_kvikio_cannot_open(tmp_path, monkeypatch):
    with rig(tmp_path / "s") as r:

        def refuse(path: Path):
            raise RuntimeError("Unable to open file.\nmore")

        monkeypatch.setattr(r.files, "open_for_device", refuse)
        with pytest.raises(StoreError, match=r"reading block \d failed: .*kvikio: Unable to open file\.\)"):
            r.store.fetch(TRAINED, TRAINED)


# -- order ----------------------------------------------------------------------------------------------------------


def ride(r: Rig) -> None:
    """Every use of a slot by files behind and before each other use; files work in threads of their own."""
    host = [np.zeros(N, np.uint8) for _ in range(2)]
    r.compute(TRAINED)
    in_thread(lambda: r.store.fetch(TRAINED, TRAINED))
    r.compute(TRAINED)
    in_thread(lambda: r.store.stow(TRAINED, TRAINED))
    in_thread(lambda: r.store.fetch(TRAINED, TRAINED))
    r.compute([WHOLE], writes=False)
    in_thread(lambda: r.store.stow([WHOLE], [WHOLE]))
    r.compute([WHOLE])
    in_thread(lambda: r.copies.download([WHOLE], host[:1]))
    in_thread(lambda: r.store.fetch([WHOLE], [WHOLE]))
    in_thread(lambda: r.copies.download([WHOLE], host[1:]))
    in_thread(lambda: r.copies.upload(host[:1], [WHOLE]))
    in_thread(lambda: r.store.stow([WHOLE], [WHOLE]))


def test_all_uses_by_files_are_ordered(tmp_path):
    with rig(tmp_path / "s") as r:
        ride(r)
        assert r.streams.checked > 60


class Forgetful(RecordedStreams):
    """Forgets to make `who` wait for events of `source`: a stream, or ("host") the thread that is about to let a file
    work on slots. What the thread waits for at the end of its own folds it still does."""

    def __init__(self, who: str, source: str) -> None:
        super().__init__()
        self.fault = (who, source)

    def wait(self, stream: str, event: RecordedEvent) -> None:
        if (stream, event.source) != self.fault:
            super().wait(stream, event)

    def finish(self, event: RecordedEvent) -> None:
        if ("host", event.source) != self.fault:
            super().finish(event)


@pytest.mark.parametrize(
    ("who", "source"),
    [
        ("host", "compute"),  # a file fills a slot that a pass still reads, or writes out what is not yet updated
        ("host", "download"),  # a slot is filled anew before its block has come down
        ("host", "upload"),  # a block is written out that has not arrived
        ("compute", "fetch"),  # a pass reads a block that no file has delivered yet
        ("compute", "stow"),  # a pass changes a block while a file writes it out
        ("download", "fetch"),
    ],
)
def test_a_forgotten_wait_of_files_is_noticed(tmp_path, who, source):
    with (
        rig(tmp_path / "s", streams=Forgetful(who, source)) as r,
        pytest.raises(OrderingError, match="without waiting"),
    ):
        ride(r)


@pytest.mark.parametrize("gone", ["begin_on_host", "end"])
def test_files_without_a_bracket_are_noticed(tmp_path, monkeypatch, gone):
    """Neither what comes before nor what comes after is ordered by chance."""
    original = SlotOrder.end

    def end(self: SlotOrder, stream: str, slots: Sequence[int]):
        if stream not in ("fetch", "stow"):
            return original(self, stream, slots)  # type: ignore[arg-type]
        return self._streams.record(stream)  # type: ignore[arg-type]

    monkeypatch.setattr(SlotOrder, gone, end if gone == "end" else lambda self, slots: None)
    with rig(tmp_path / "s") as r, pytest.raises(OrderingError, match="without waiting"):
        ride(r)
