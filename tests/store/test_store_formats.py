"""docs/formats.md: its reader reads what the store writes, and its figures are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from tests.store.store_cases import SMALL, filled_store, read_slots
from tidegs.store.base import TABLE_DTYPE
from tidegs.store.native import crc32c

DOCS = Path(__file__).parents[2] / "docs" / "formats.md"


def reader() -> dict:
    names: dict = {}
    [code] = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    exec(compile(code, str(DOCS), "exec"), names)
    assert len([line for line in code.splitlines() if line.strip()]) <= 40
    return names


def test_the_reader_of_the_docs_reads_a_store(tmp_path: Path) -> None:
    with filled_store(tmp_path / "s") as store:
        store.free([1])
        store.commit(b"two")
        slots = read_slots(store)
        blocks = np.flatnonzero(store.table["count"]).tolist()
    read = list(reader()["read_store"](tmp_path / "s", crc32c))
    assert [block for block, _ in read] == blocks
    for (_, base), slot in zip(read, slots, strict=True):
        assert np.array_equal(base, SMALL.view(slot, "base")[:, :50])


def test_the_docs_and_the_code_agree_on_the_row() -> None:
    row = reader()["ROW"]
    assert row.itemsize == TABLE_DTYPE.itemsize == 80
    offsets = {str(TABLE_DTYPE.fields[n][1]) for n in TABLE_DTYPE.names or ()}
    section = DOCS.read_text().split("A row:")[1].split("###")[0]
    assert set(re.findall(r"^\| (\d+) \|", section, re.MULTILINE)) == offsets
