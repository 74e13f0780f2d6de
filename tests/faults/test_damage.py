"""Damage of the files themselves: each is told as an error that names the file and the block, or does not matter."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.store.store_cases import SMALL, contents, filled_store, read_slots
from tidegs.errors import CorruptError, StoreError
from tidegs.store import format as fmt
from tidegs.store.block_store import BlockStore
from tidegs.store.files import Files
from tidegs.store.memory import aligned_slots

HEADER = 64
Sound = tuple[Path, dict[int, bytes], np.ndarray]


@pytest.fixture
def sound(quick_folder: Path) -> Sound:
    """A closed store, what it holds, and its table."""
    with filled_store(quick_folder / "sound") as store:
        return quick_folder / "sound", contents(store), store.table.copy()


def flip(path: Path, byte: int, bit: int) -> None:
    with path.open("r+b") as f:
        f.seek(byte)
        value = f.read(1)[0]
        f.seek(byte)
        f.write(bytes([value ^ 1 << bit]))


def read_each(path: Path, right: dict[int, bytes]) -> dict[int, str]:
    """Reads each block alone: either right, or a CorruptError, whose text is returned by block."""
    told = {}
    with BlockStore.open(path, readonly=True, io_threads=0) as store:
        assert store.snapshot == 1
        for block, expected in right.items():
            try:
                assert read_slots(store, [block])[0].tobytes() == expected
            except CorruptError as e:
                told[block] = str(e)
    return told


def test_any_byte_of_a_root_slot_may_flip(sound: Sound, injected: list[int]) -> None:
    """Both slots say the same, so that damage to one of them loses nothing."""
    path, right, _ = sound
    rng = np.random.default_rng(0)
    bytes_ = [*range(80), *rng.integers(80, 2 * fmt.SLOT, 40).tolist(), *range(fmt.SLOT, fmt.SLOT + 80)]
    for byte in bytes_:
        flip(path / fmt.ROOT, byte, bit := int(rng.integers(8)))
        assert read_each(path, right) == {}
        flip(path / fmt.ROOT, byte, bit)
        injected.append(1)


def test_both_root_slots_damaged_is_told(sound: Sound) -> None:
    path, _, _ = sound
    flip(path / fmt.ROOT, 9, 0)
    flip(path / fmt.ROOT, fmt.SLOT + 9, 0)
    with pytest.raises(CorruptError, match="root"):
        BlockStore.open(path)


def test_a_writer_mends_a_damaged_root_slot(sound: Sound) -> None:
    path, right, _ = sound
    whole = (path / fmt.ROOT).read_bytes()
    for slot in range(2):
        flip(path / fmt.ROOT, slot * fmt.SLOT + 30, 3)
        with BlockStore.open(path) as store:
            assert contents(store) == right
        assert (path / fmt.ROOT).read_bytes() == whole


@pytest.mark.parametrize("step", [pytest.param(97, id="some"), pytest.param(3, id="most", marks=pytest.mark.slow)])
def test_any_byte_of_the_table_may_flip(sound: Sound, step: int, injected: list[int]) -> None:
    path, _, _ = sound
    table = path / fmt.TABLES[0]
    for byte in range(0, table.stat().st_size, step):
        flip(table, byte, byte % 8)
        with pytest.raises(CorruptError, match=r"table\.0"):
            BlockStore.open(path, readonly=True, io_threads=0)
        flip(table, byte, byte % 8)
        injected.append(1)


@pytest.mark.parametrize("count", [pytest.param(20, id="some"), pytest.param(700, id="many", marks=pytest.mark.slow)])
def test_any_bit_of_a_record_may_flip(sound: Sound, count: int, injected: list[int]) -> None:
    """Every byte of each header, and sampled bits of each payload: the block is named, all others are read."""
    path, right, table = sound
    rng = np.random.default_rng(1)
    layout_nbytes = fmt.planes_nbytes(SMALL, table["planes"])
    for block in np.flatnonzero(table["kind"] != fmt.NOTHING).tolist():
        row = table[block]
        size = fmt.seed_nbytes(SMALL) if row["kind"] == fmt.SEEDS else int(layout_nbytes[block])
        payload = rng.integers(fmt.ALIGN, fmt.ALIGN + size, count).tolist()
        for byte in [*range(0, HEADER, 1 if count > 100 else 9), *payload]:
            file = path / fmt.RECORD_FILES[row["kind"]]
            flip(file, int(row["offset"]) + byte, bit := int(rng.integers(8)))
            told = read_each(path, {block: right[block], 8: right[8]})
            assert list(told) == [block]
            assert f"block {block} " in told[block]
            assert file.name in told[block]
            flip(file, int(row["offset"]) + byte, bit)
            injected.append(1)
    assert read_each(path, right) == {}


def test_files_cut_short_are_told(sound: Sound, quick_folder: Path, injected: list[int]) -> None:
    path, right, table = sound
    for name in sorted(os.listdir(path)):
        whole = (path / name).stat().st_size
        kind = fmt.RECORD_FILES.index(name) if name in fmt.RECORD_FILES else None
        offsets = table["offset"][table["kind"] == kind]
        end = int(offsets.max()) + fmt.ALIGN if len(offsets) else whole
        for size in sorted({0, 1, 512, end // 2, end - 1} - {whole}):
            if name == fmt.LOCK or size >= end:
                continue
            copy = quick_folder / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(path, copy)
            os.truncate(copy / name, size)
            if name == fmt.ROOT and size >= fmt.SLOT:
                assert read_each(copy, right) == {}
            else:
                with pytest.raises(CorruptError, match=name):
                    BlockStore.open(copy, readonly=True)
            injected.append(1)


def test_a_file_that_is_longer_does_no_harm(sound: Sound) -> None:
    path, right, _ = sound
    for name in fmt.RECORD_FILES[:5]:
        with (path / name).open("ab") as f:
            f.write(b"\xff" * 12345)
    assert read_each(path, right) == {}
    with BlockStore.open(path) as store:
        store.write([0], [all_ones()])
        store.commit(b"")
    with (path / fmt.TABLES[1]).open("ab") as f:
        f.write(b"x")
    with pytest.raises(CorruptError, match=r"table\.1"):
        BlockStore.open(path)


def all_ones() -> np.ndarray:
    slot = aligned_slots(1, SMALL.slot_nbytes)[0]
    slot[:] = 1
    return slot


def test_files_swapped_are_told(sound: Sound, quick_folder: Path) -> None:
    path, right, table = sound
    names = [fmt.RECORD_FILES[k] for k in np.unique(table["kind"]) if k != fmt.NOTHING] + [fmt.TABLES[0], fmt.ROOT]
    for i, one in enumerate(names):
        for two in names[i + 1 :]:
            copy = quick_folder / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(path, copy)
            (copy / one).rename(copy / "x")
            (copy / two).rename(copy / one)
            (copy / "x").rename(copy / two)
            try:
                told = read_each(copy, right)
            except CorruptError:
                continue
            assert told, (one, two)


def test_extents_swapped_are_told(sound: Sound) -> None:
    path, right, table = sound
    a, b = table["offset"][:2].tolist()
    file, nbytes = path / fmt.RECORD_FILES[fmt.SEEDS], int(fmt.extent_nbytes(SMALL)[0])
    data = bytearray(file.read_bytes())
    data[a : a + nbytes], data[b : b + nbytes] = data[b : b + nbytes], data[a : a + nbytes]
    file.write_bytes(data)
    told = read_each(path, right)
    assert sorted(told) == [0, 1]
    assert "another record lies there" in told[0]


@pytest.mark.parametrize("name", [fmt.ROOT, fmt.TABLES[0], *fmt.RECORD_FILES[:5]])
def test_a_file_that_is_gone_is_told(sound: Sound, name: str) -> None:
    path, _, _ = sound
    (path / name).unlink()
    with pytest.raises(StoreError, match=name.replace(".", r"\.")):
        BlockStore.open(path)


def test_a_record_of_an_older_generation_is_told(sound: Sound) -> None:
    """A write that the disk acknowledged and lost."""
    path, _, _ = sound
    old = {n: (path / n).read_bytes() for n in fmt.RECORD_FILES if (path / n).exists()}
    with BlockStore.open(path) as store:
        for _ in range(2):  # the second one is written where the first snapshot had its record
            store.write([4], [all_ones()])
            store.commit(b"")
        store.write([4], [all_ones()])
        store.commit(b"")
    for name, data in old.items():
        (path / name).write_bytes(data)
    with BlockStore.open(path) as store, pytest.raises(CorruptError, match="block 4 "):
        read_slots(store, [4])


def _version(path: Path) -> None:
    data = bytearray((path / fmt.ROOT).read_bytes())
    for at in (0, fmt.SLOT):
        data[at + 8] = 99
        body = bytes(data[at : at + fmt.SLOT - 4])
        data[at + fmt.SLOT - 4 : at + fmt.SLOT] = fmt.crc32c(body).to_bytes(4, "little")
    (path / fmt.ROOT).write_bytes(data)


def _forge(change: Callable[[np.ndarray], None]) -> Callable[[Path], None]:
    """A table that was written wrongly, with the right checksum."""

    def forge(path: Path) -> None:
        with BlockStore.open(path) as store:
            change(store.table)
            store.commit(b"")

    return forge


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (_version, "format version 99"),
        (_forge(lambda t: t["kind"].__setitem__(4, 77)), "block 4 has a record of unknown kind 77"),
        (_forge(lambda t: t["offset"].__setitem__(4, 8)), "block 4 lies at byte 8"),
        (_forge(lambda t: t["offset"].__setitem__(4, -4096)), "block 4 lies at byte -4096"),
        (_forge(lambda t: t["offset"].__setitem__(4, 1 << 50)), "block 4 lies at byte"),
        (_forge(lambda t: t["offset"].__setitem__(1, t["offset"][0])), "two blocks claim one place"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(sound: Sound, break_it: Callable[[Path], None], message: str) -> None:
    path, _, _ = sound
    break_it(path)
    with pytest.raises(StoreError, match=message):
        BlockStore.open(path)


def test_a_store_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no store"):
        BlockStore.open(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="holds no store"):
        BlockStore.open(tmp_path / "file")
    with pytest.raises(StoreError, match="creating the folder"):
        BlockStore.create(tmp_path / "file", SMALL)
    (tmp_path / "root").mkdir()
    with pytest.raises(StoreError, match="reading failed"):
        BlockStore.open(tmp_path)


def test_a_file_system_without_direct_io_serves_as_well(tmp_path: Path) -> None:
    class Buffered(Files):
        dropped = 0

        def open(self, path: Path, flags: int) -> int:
            if flags & os.O_DIRECT:
                raise OSError(22, "Invalid argument")
            return super().open(path, flags)

        def drop_cache(self, fd: int) -> None:
            self.dropped += 1
            super().drop_cache(fd)

    files = Buffered()
    with filled_store(tmp_path / "s", files) as store:
        right = contents(store)
        assert not store.records.direct
        assert files.dropped > 0
    with BlockStore.open(tmp_path / "s") as store:
        assert contents(store) == right
