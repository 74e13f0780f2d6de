"""Check, copy, compact and info."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.store.store_cases import SMALL, contents, filled_store, random_slot
from tidegs.cli.main import main
from tidegs.errors import CorruptError, StoreError
from tidegs.gaussians.layout import RECORD_PLANES
from tidegs.store import format as fmt
from tidegs.store.block_store import BlockStore
from tidegs.store.info import describe
from tidegs.store.maintain import check_store, compact_store, copy_store


def holey_store(path: Path) -> dict[int, bytes]:
    """A store that was rewritten and lost blocks; what it holds."""
    rng = np.random.default_rng(1)
    with filled_store(path) as store:
        more = store.allocate(40)
        store.write(more, [random_slot(SMALL, RECORD_PLANES, rng) for _ in more])
        store.commit(b"more")
        store.free(more[:35])
        store.commit(b"meta")
        return contents(store)


def spoil(path: Path, block: int) -> None:
    with BlockStore.open(path, readonly=True) as store:
        row = store.table[block]
    with (path / fmt.RECORD_FILES[row["kind"]]).open("r+b") as f:
        f.seek(int(row["offset"]) + 5000)
        f.write(b"spoilt")


def test_check_finds_nothing_in_a_sound_store(tmp_path: Path) -> None:
    holey_store(tmp_path / "s")
    report = check_store(tmp_path / "s")
    assert report.problems == []
    assert report.blocks == 9 + 5
    assert report.snapshot == 3


def test_check_names_every_damaged_block(tmp_path: Path) -> None:
    holey_store(tmp_path / "s")
    for block in (2, 4):
        spoil(tmp_path / "s", block)
    problems = check_store(tmp_path / "s").problems
    assert len(problems) == 2
    assert "records.seeds: block 2 " in problems[0]
    assert "block 4 " in problems[1]


def test_check_tells_of_roots_and_tables(tmp_path: Path) -> None:
    holey_store(tmp_path / "s")
    root = (tmp_path / "s" / fmt.ROOT).read_bytes()
    (tmp_path / "s" / fmt.ROOT).write_bytes(root[: fmt.SLOT] + bytes(fmt.SLOT))
    assert "root" in check_store(tmp_path / "s").problems[0]
    (tmp_path / "s" / fmt.ROOT).write_bytes(root)
    (tmp_path / "s" / fmt.TABLES[0]).write_bytes(b"")
    assert "table.0" in check_store(tmp_path / "s").problems[0]
    with pytest.raises(StoreError, match="holds no store"):
        check_store(tmp_path / "nowhere")


def test_a_copy_holds_the_same_and_is_packed(tmp_path: Path) -> None:
    right = holey_store(tmp_path / "s")
    assert copy_store(tmp_path / "s", tmp_path / "t") == len(right)
    with BlockStore.open(tmp_path / "t") as store:
        assert contents(store) == right
        assert store.meta == b"meta"
        facts = describe(store)
        assert facts["adjacent"] == 1.0
        assert facts["blocks_by_kind"]["seeds"] == 3
    sizes = [sum(f.stat().st_size for f in (tmp_path / n).glob("records.*")) for n in "st"]
    assert sizes[1] < sizes[0]


def test_a_copy_of_damage_leaves_nothing(tmp_path: Path) -> None:
    holey_store(tmp_path / "s")
    spoil(tmp_path / "s", 4)
    with pytest.raises(CorruptError, match="block 4 "):
        copy_store(tmp_path / "s", tmp_path / "t")
    assert list((tmp_path / "t").iterdir()) == []


def test_compaction_gives_space_back_and_keeps_everything(tmp_path: Path) -> None:
    right = holey_store(tmp_path / "s")
    before = sum(f.stat().st_size for f in (tmp_path / "s").glob("records.*"))
    freed = compact_store(tmp_path / "s")
    after = sum(f.stat().st_size for f in (tmp_path / "s").glob("records.*"))
    assert before - after == freed > 0
    with BlockStore.open(tmp_path / "s") as store:
        assert contents(store) == right
        assert store.meta == b"meta"
        for extents in store.records.extents:
            assert extents.total == extents.used
        facts = describe(store)
        assert facts["file_bytes"] == after
        store.write([4], [random_slot(SMALL, RECORD_PLANES, np.random.default_rng(0))])
        store.commit(b"")
    assert compact_store(tmp_path / "s") >= 0
    assert check_store(tmp_path / "s").problems == []


def test_info_counts_planes_and_amplification(tmp_path: Path) -> None:
    with filled_store(tmp_path / "s") as store:
        facts = describe(store)
        assert facts["blocks_by_kind"] == {
            "seeds": 3, "base": 1, "base-adam": 2, "params": 1, "params-adam": 1, "scratch": 0, "nothing": 1
        }  # fmt: skip
        planes = facts["bytes_by_plane"]
        assert planes["base"] == 5 * SMALL.plane_nbytes("base")
        assert planes["rest"] == 3 * SMALL.plane_nbytes("rest")
        assert sum(planes.values()) == facts["record_bytes"]
        assert facts["write_amplification"] == store.counters.written / store.counters.planes_written > 1
        assert facts["bytes_written_ever"] == store.counters.written


def test_the_command_checks_copies_and_compacts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    holey_store(tmp_path / "s")
    assert main(["store", "check", str(tmp_path / "s")]) == 0
    assert "14 blocks" in capsys.readouterr().out
    assert main(["store", "copy", str(tmp_path / "s"), str(tmp_path / "t")]) == 0
    assert main(["store", "compact", str(tmp_path / "s")]) == 0
    shutil.rmtree(tmp_path / "t")
    spoil(tmp_path / "s", 4)
    capsys.readouterr()
    assert main(["store", "check", "--json", str(tmp_path / "s")]) == 1
    assert "block 4 " in capsys.readouterr().out
    assert main(["store", "copy", str(tmp_path / "s"), str(tmp_path / "t")]) == 2
    assert "block 4 " in capsys.readouterr().err
