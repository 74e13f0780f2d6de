"""Space: records go to the smallest class that holds them, freed extents serve again, snapshots cost what changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.store.store_cases import SMALL, filled_store, plane_subsets, random_slot
from tidegs.gaussians.layout import RECORD_PLANES, RecordLayout
from tidegs.store import format as fmt
from tidegs.store.block_store import BlockStore
from tidegs.store.extents import Extents


@pytest.mark.parametrize("layout", [RecordLayout(64, 0), RecordLayout(64, 1, 2), RecordLayout(4096, 3)])
def test_records_go_to_the_smallest_class(tmp_path: Path, layout: RecordLayout) -> None:
    sizes = fmt.extent_nbytes(layout)
    rng = np.random.default_rng(0)
    with BlockStore.create(tmp_path / "s", layout) as store:
        [block] = store.allocate(1)
        for planes in plane_subsets(RECORD_PLANES)[1 :: 1 if layout.capacity == 64 else 17]:
            slot = random_slot(layout, planes, rng)
            if not slot.any():
                continue
            store.write([block], [slot])
            need = sum(layout.plane_nbytes(p) for p in planes) + fmt.ALIGN
            best = min(int(sizes[k]) for k in fmt.PLAIN_KINDS if sizes[k] >= need)
            assert sizes[store.table["kind"][block]] == best


def test_rewriting_everything_settles_at_twice_the_space(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with filled_store(tmp_path / "s") as store:
        totals = []
        for i in range(8):
            store.write([3, 4, 5], [random_slot(SMALL, RECORD_PLANES, rng) for _ in range(3)])
            if i % 2:
                store.commit(b"")
            totals.append(store.records.extents[4].used)
        assert max(totals) <= 7 + 1
        assert totals[-1] == totals[-3]


def test_extents_are_handed_out_lowest_first_and_only_when_free() -> None:
    extents = Extents(4096, np.array([1, 2]), 6)
    assert extents.take(3).tolist() == [0, 3, 4]
    assert extents.take(2) is None
    extents.give_back(np.array([3]))
    extents.give_back_later(np.array([1]))
    assert extents.take(2).tolist() == [3, 5]
    assert extents.take(1) is None
    extents.committed()
    assert extents.take(1).tolist() == [1]
    extents.grow(8)
    assert extents.take(2).tolist() == [6, 7]
    assert extents.used == 8


def test_bytes_written_are_counted_and_survive(tmp_path: Path) -> None:
    with filled_store(tmp_path / "s") as store:
        counters = store.counters
        on_disk = sum((tmp_path / "s" / n).stat().st_size for n in (fmt.TABLES[0], fmt.ROOT))
        assert counters.other_written == on_disk
        stored = store.table[store.table["kind"] != fmt.NOTHING]
        payload = fmt.planes_nbytes(SMALL, stored["planes"]).sum() + 3 * store.seed_nbytes
        assert counters.planes_written == payload
        assert counters.records_written == payload + 8 * fmt.ALIGN
        total = store.bytes_written
    with BlockStore.open(tmp_path / "s") as store:
        assert store.bytes_written == total
        store.commit(b"")
        assert store.bytes_written > total
