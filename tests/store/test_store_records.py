"""Records: what is written comes back bit for bit, whatever planes are left out."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from tests.store.store_cases import (
    SMALL,
    SMALL_SCRATCH,
    filled_store,
    plane_subsets,
    random_seeds,
    random_slot,
    read_slots,
)
from tidegs.errors import StoreError
from tidegs.gaussians.layout import RECORD_PLANES, RecordLayout
from tidegs.store import format as fmt
from tidegs.store.block_store import BlockStore
from tidegs.store.files import Files
from tidegs.store.memory import aligned_slots
from tidegs.store.native import TransferFn, crc32c, crc32c_name, library
from tidegs.store.seeds import INIT_OPACITY_LOGIT, SH_Y00


@pytest.mark.parametrize(
    ("data", "crc"),
    [  # RFC 3720, appendix B.4, and the check value of the CRC catalogue
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_crc32c_equals_published_values(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc


def test_crc32c_in_hardware_equals_software_and_can_be_continued() -> None:
    rng = np.random.default_rng(1)
    lib = library()
    for n in (0, 1, 7, 8, 255, 767, 768, 769, 12287, 12288, 12289, 100_003):
        data = rng.integers(0, 256, n, np.uint8)
        whole = crc32c(data)
        assert whole == lib.tidegs_store_crc32c_software(0, data.ctypes.data, n), crc32c_name()
        cut = n // 3
        assert crc32c(data[cut:], crc32c(data[:cut])) == whole


def test_every_combination_of_planes_comes_back(tmp_path: Path) -> None:
    layout, rng = SMALL_SCRATCH, np.random.default_rng(2)
    subsets = plane_subsets()
    slots = [random_slot(layout, planes, rng) for planes in subsets]
    with BlockStore.create(tmp_path / "s", layout) as store:
        ids = store.allocate(len(subsets))
        store.write(ids, slots, scratch=True)
        out = aligned_slots(len(ids), layout.slot_nbytes)
        out[:] = 0x5A
        store.read(ids, list(out))
        assert np.array_equal(out, np.stack(slots))
        bits = np.array([sum(1 << fmt.PLANES.index(p) for p in planes) for planes in subsets])
        assert np.array_equal(store.table["planes"], bits)


def test_planes_left_out_take_no_bytes(tmp_path: Path) -> None:
    layout, rng = SMALL, np.random.default_rng(3)
    with BlockStore.create(tmp_path / "s", layout) as store:
        [block] = store.allocate(1)
        for planes in plane_subsets(RECORD_PLANES):
            before = store.counters.records_written
            store.write([block], [random_slot(layout, planes, rng)])
            size = sum(layout.plane_nbytes(p) for p in planes)
            assert store.counters.records_written - before == (size + 4096 if planes else 0)


def test_negative_zero_is_not_taken_for_zero(tmp_path: Path) -> None:
    with BlockStore.create(tmp_path / "s", SMALL) as store:
        ids = store.allocate(1)
        slot = aligned_slots(1, SMALL.slot_nbytes)
        SMALL.view(slot[0], "stats")[1, -1] = -0.0
        store.write(ids, list(slot))
        assert np.array_equal(read_slots(store, [0]), slot)


def test_scratch_does_not_survive_a_commit(tmp_path: Path) -> None:
    layout, rng = SMALL_SCRATCH, np.random.default_rng(4)
    slots = [random_slot(layout, planes, rng) for planes in (("base", "grads"), ("base",), ("grads",))]
    with BlockStore.create(tmp_path / "s", layout) as store:
        ids = store.allocate(3)
        store.write(ids, slots, scratch=True)
        store.commit(b"")
        assert not np.any(store.table["planes"] & fmt.SCRATCH_BITS)
        assert np.array_equal(read_slots(store), np.stack(slots)[:, : layout.record_nbytes])
    with BlockStore.open(tmp_path / "s") as store:
        assert store.layout == RecordLayout(64, 1, 2)
        assert np.array_equal(read_slots(store), np.stack(slots)[:, : layout.record_nbytes])


@pytest.mark.parametrize("capacity", [64, 448, 4096])
def test_seeds_expand_by_their_rule(tmp_path: Path, capacity: int) -> None:
    layout, rng, n = RecordLayout(capacity, 2), np.random.default_rng(5), capacity - 7
    seeds = random_seeds(layout, n, rng)
    with BlockStore.create(tmp_path / "s", layout) as store:
        [block] = store.allocate(1)
        store.table["count"][block] = n
        store.write_seeds([block], [seeds])
        out = aligned_slots(1, layout.slot_nbytes)[0]
        out[:] = 0x77
        store.read([block], [out])
    floats = seeds[: 16 * capacity].view(np.float32).reshape(4, capacity)
    rgb = seeds[16 * capacity : 19 * capacity].reshape(3, capacity)
    assert np.array_equal(layout.field(out, "means"), floats[:3])
    assert np.array_equal(layout.field(out, "scales")[:, :n], np.repeat(floats[3:, :n], 3, 0))
    assert np.all(layout.field(out, "quats")[:, :n] == np.array([1, 0, 0, 0])[:, None])
    assert np.all(layout.field(out, "opacities")[:, :n] == np.float32(INIT_OPACITY_LOGIT))
    np.testing.assert_allclose(layout.field(out, "sh0")[:, :n] * SH_Y00 + 0.5, rgb[:, :n] / 255, atol=1e-7)
    assert not layout.view(out, "base")[:, n:].any()
    assert not out[layout.offsets["rest"] :].any()


def test_blocks_that_touch_travel_in_one_request(tmp_path: Path) -> None:
    files, calls = Files(), []

    def preadv(fd: int, iov: int, count: int, offset: int) -> int:
        calls.append(offset)
        return libc.preadv(fd, iov, count, offset)

    libc = ctypes.CDLL(None, use_errno=True)
    libc.preadv.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64]
    libc.preadv.restype = ctypes.c_ssize_t
    files.read_call = TransferFn(preadv)
    with filled_store(tmp_path / "s", files) as store:
        read_slots(store, [2, 0, 1])
        assert calls == [0]
        calls.clear()
        read_slots(store, [2, 0])
        assert sorted(calls) == [0, 2 * (4096 + store.seed_nbytes)]


def test_misuse_is_refused(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "s")
    slot = aligned_slots(1, SMALL.slot_nbytes + 4096)[0]
    with pytest.raises(ValueError, match="4 KiB"):
        store.read([0], [slot[64:]])
    with pytest.raises(ValueError, match="blocks 9 to 9"):
        store.read([9], [slot])
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.read([0], [slot])
    with BlockStore.open(tmp_path / "s", readonly=True) as store, pytest.raises(StoreError, match="reading only"):
        store.write([0], [slot])
