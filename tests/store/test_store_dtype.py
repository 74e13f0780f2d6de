"""Narrowed planes: stated errors hold, what is not zero stays so, and such a store is as safe as another."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.store_cases import SMALL, contents, filled_store, read_slots
from tests.store.test_store_formats import reader
from tidegs.cli.main import main
from tidegs.errors import CorruptError
from tidegs.gaussians.layout import NARROWED, RECORD_PLANES, RecordLayout
from tidegs.store.block_store import BlockStore
from tidegs.store.info import describe
from tidegs.store.maintain import check_store, copy_store
from tidegs.store.memory import aligned_slots
from tidegs.store.native import crc32c

DTYPES = ("bfloat16", "float16")
LEAST = 2.0**-38  # of the greatest value of a component: what float16 resolves


def round_trip(values: np.ndarray, dtype: str, folder: Path) -> np.ndarray:
    """Values float32 [components, 64] of a plane, written and read."""
    layout = RecordLayout(64, sh_degree=1, store_dtype=dtype)
    slot = aligned_slots(1, layout.slot_nbytes)[0]
    layout.view(slot, "v_rest")[: len(values)] = values
    with BlockStore.create(folder, layout, io_threads=1) as store:
        store.write(store.allocate(1), [slot])
        return layout.view(read_slots(store)[0], "v_rest")[: len(values)].copy()


def spread(seed: int, octaves: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(3, 64)) * 2.0 ** rng.uniform(-octaves, octaves, (3, 64))
    values[rng.random(values.shape) < 0.1] = 0
    return values.astype(np.float32)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 9999), octaves=st.integers(0, 60))
def test_errors_are_as_stated(tmp_path_factory: pytest.TempPathFactory, seed: int, octaves: int) -> None:
    values = spread(seed, octaves).astype(np.float64)
    for dtype, share in (("bfloat16", 2.0**-8), ("float16", 2.0**-11)):
        out = round_trip(values.astype(np.float32), dtype, tmp_path_factory.mktemp("s") / "s").astype(np.float64)
        allowed = share * np.abs(values) * (1 + 1e-6)
        if dtype == "float16":
            allowed = np.maximum(allowed, LEAST * np.abs(values).max(axis=1, keepdims=True))
        assert (np.abs(out - values) <= allowed).all()
        assert ((out == 0) == (values == 0)).all()
        assert (np.signbit(out) == np.signbit(values)).all()


def test_bfloat16_is_that_of_others(tmp_path: Path) -> None:
    values = spread(0, 30)
    expected = torch.from_numpy(values).to(torch.bfloat16).float().numpy()
    assert np.array_equal(round_trip(values, "bfloat16", tmp_path / "s"), expected)


def test_float16_is_that_of_others_but_for_its_scale(tmp_path: Path) -> None:
    values = spread(0, 2) * np.float32(1e-9)
    scale = 2.0 ** (np.floor(np.log2(np.abs(values).max(axis=1, keepdims=True))) - 14)
    expected = (values / scale).astype(np.float16).astype(np.float64) * scale
    assert np.array_equal(round_trip(values, "float16", tmp_path / "s"), expected.astype(np.float32))


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_stays_so(tmp_path: Path, dtype: str) -> None:
    values = np.zeros((1, 64), np.float32)
    values[0, :5] = np.inf, -np.inf, np.nan, 1.5, np.float32(1e-45)
    out = round_trip(values, dtype, tmp_path / "s")
    np.testing.assert_array_equal(out[0, :4], values[0, :4])
    assert out[0, 4] > 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_narrowed_store_is_a_store(tmp_path: Path, dtype: str) -> None:
    layout = replace(SMALL, store_dtype=dtype)
    filled_store(tmp_path / "exact").close()
    filled_store(tmp_path / "s", layout=layout).close()
    assert check_store(tmp_path / "s").problems == []
    with BlockStore.open(tmp_path / "s") as store, BlockStore.open(tmp_path / "exact") as exact:
        assert store.layout == layout
        for ours, theirs in zip(read_slots(store), read_slots(exact), strict=True):
            for plane in RECORD_PLANES:
                a, b = SMALL.view(ours, plane), SMALL.view(theirs, plane)
                same = np.array_equal(a, b)
                assert same if plane not in NARROWED or not b.any() else not same
        kept = contents(store)
        blocks = np.flatnonzero(store.table["count"]).tolist()
        bases = [SMALL.view(slot, "base")[:, :50].copy() for slot in read_slots(store)]
        space, before = describe(store)["bytes_by_plane"], describe(exact)["bytes_by_plane"]
    assert space["base"] == before["base"]
    copy_store(tmp_path / "s", tmp_path / "copy")  # narrowed again: to the same bits
    with BlockStore.open(tmp_path / "copy") as store:
        assert contents(store) == kept
    read = list(reader()["read_store"](tmp_path / "s", crc32c))
    assert [block for block, _ in read] == blocks
    assert all(np.array_equal(base, expected) for (_, base), expected in zip(read, bases, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_flipped_bit_is_found(tmp_path: Path, dtype: str) -> None:
    with filled_store(tmp_path / "s", layout=replace(SMALL, store_dtype=dtype)) as store:
        row, path = store.table[7], store.records.path(int(store.table[7]["kind"]))
        at = int(row["offset"]) + 4096 + SMALL.plane_nbytes("base") + 5  # in the narrowed m_base or rest
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with BlockStore.open(tmp_path / "s") as store, pytest.raises(CorruptError, match="block 7"):
        read_slots(store, [7])


def test_records_are_as_small_as_the_docs_say() -> None:
    sizes = [RecordLayout(4096, store_dtype=dtype).stored_record_nbytes / 4096 for dtype in ("float32", *DTYPES)]
    assert [round(s) for s in sizes] == [708, 382, 387]


def test_info_and_a_run_know_the_dtype(city: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    argv = ["train", str(city), "--out", str(tmp_path / "a"), "--max-steps", "3", "--no-eval", "--quiet"]
    assert main([*argv, "--store-dtype", "bfloat16", "--block-capacity", "64"]) == 0
    assert main(["info", str(tmp_path / "a")]) == 0
    assert re.search(r"store dtype +bfloat16\n", capsys.readouterr().out)
    assert main(["info", str(tmp_path / "a"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert sum(facts["space_by_plane"].values()) == pytest.approx((1 - facts["fragmentation"]) * facts["file_bytes"])
    argv = ["train", "--resume", str(tmp_path / "a"), "--max-steps", "5", "--no-eval", "--quiet"]
    assert main(argv) == 0
