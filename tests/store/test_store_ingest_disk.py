"""The external sort: what it holds on disk, its kernels, and points whose distances are known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.store_cases import contents, coordinates
from tidegs.gaussians.layout import RecordLayout
from tidegs.store import records, unfinished
from tidegs.store.files import Files
from tidegs.store.grid import Grid, partition
from tidegs.store.ingest import IngestOptions, ingest_points
from tidegs.store.spatial import Box, Neighbours, group_rows, hilbert, order_of
from tidegs.store.spool import Spool


class Watched(Files):
    """Notes the greatest space that the files of a folder took, looking after each operation that may take some."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.most = folder, 0

    def _look(self) -> None:
        if self.folder.exists():
            self.most = max(self.most, sum(f.stat().st_blocks * 512 for f in self.folder.iterdir()))

    def write_all(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        super().write_all(fd, data, offset)
        self._look()

    def allocate(self, fd: int, size: int) -> None:
        super().allocate(fd, size)
        self._look()


def scan(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of a rough surface in random order."""
    rng = np.random.default_rng(1)
    xy = rng.uniform(-10, 10, (n, 2))
    xyz = np.concatenate([xy, np.sin(xy[:, :1]) + rng.normal(0, 0.01, (n, 1))], axis=1)
    return xyz.astype(np.float32), rng.integers(0, 256, (n, 3), np.uint8)


@pytest.mark.parametrize(("spacing", "source"), [(None, ""), (0.02, ""), (None, "a scan, to be gone on with")])
def test_the_disk_holds_little_more_than_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spacing: float | None, source: str
) -> None:
    monkeypatch.setattr(records, "_GROW_LEAST", 1 << 18)  # in proportion, as for a large store
    monkeypatch.setattr(unfinished, "KEEP_NBYTES", 1 << 20)
    xyz, rgb = scan(800_000)
    files = Watched(tmp_path / "s")
    chunks = [(xyz[i : i + 50_000], rgb[i : i + 50_000]) for i in range(0, len(xyz), 50_000)]
    options = IngestOptions(memory_budget=16 << 20, spacing=spacing, source=source)
    ingest_points(tmp_path / "s", chunks, RecordLayout(4096), options, files=files).close()
    result = sum(f.stat().st_blocks * 512 for f in (tmp_path / "s").iterdir())
    assert result > 19 * len(xyz)
    assert files.most <= 1.25 * result


def test_a_known_distance_is_the_first_scale_of_all_points(tmp_path: Path) -> None:
    xyz, rgb = scan(3000)
    options = IngestOptions(spacing=0.5, init_scale=2.0)
    with ingest_points(tmp_path / "a", [(xyz, rgb)], RecordLayout(256), options) as store:
        assert np.allclose(store.table["extent"], 1.0)
        expected = contents(store)
    back = [(xyz[::-1][i : i + 500], rgb[::-1][i : i + 500]) for i in range(0, 3000, 500)]
    tight = IngestOptions(memory_budget=1 << 20, spacing=0.5, init_scale=2.0)
    with ingest_points(tmp_path / "b", back, RecordLayout(256), tight) as store:
        assert contents(store) == expected


def test_what_was_taken_from_a_spool_leaves_the_disk(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "f", np.dtype(np.int64), 0, Files())
    for bucket in (0, 1):
        spool.put(bucket, np.full(1 << 17, bucket))
    before = (tmp_path / "f").stat().st_blocks
    assert all((part == 0).all() for part in spool.take(0))
    assert (tmp_path / "f").stat().st_blocks <= before // 2 + 16
    assert [spool.count(b) for b in (0, 1)] == [0, 1 << 17]
    assert (spool.get(1) == 1).all()
    spool.close()


KEYS: list[Callable[[np.random.Generator, int], np.ndarray]] = [
    lambda rng, n: rng.integers(0, 2**63, n, np.uint64),
    lambda rng, n: rng.integers(0, 5, n, np.uint64),
    lambda rng, n: rng.integers(0, 3, n, np.uint64) << np.uint64(58) | rng.integers(0, 9, n, np.uint64),
    lambda rng, n: np.full(n, 7, np.uint64),
]


@settings(max_examples=40, deadline=None)
@given(n=st.integers(0, 3000), kind=st.integers(0, 3), seed=st.integers(0, 99))
def test_orders_and_groups_are_stable(n: int, kind: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    keys = KEYS[kind](rng, n)
    assert np.array_equal(order_of(keys), np.argsort(keys, kind="stable"))
    group = (keys % np.uint64(7)).astype(np.int32)
    rows, start = group_rows(np.arange(n), group, 7)
    assert np.array_equal(rows, np.argsort(group, kind="stable"))
    assert np.array_equal(np.diff(start), np.bincount(group, minlength=7))


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 999), levels=st.integers(1, 5))
def test_the_buckets_that_a_ball_reaches(seed: int, levels: int) -> None:
    """All that hold a point inside it, and none that lies outside the box around it."""
    rng = np.random.default_rng(seed)
    xyz = (rng.normal(size=(200, 3)) * rng.choice([0.5, 3], (200, 1))).astype(np.float32)
    best = np.sort(rng.exponential(0.01, (200, 3)), axis=1)
    best[rng.permutation(200)[:5], 2] = np.inf
    grid = Grid(Box(np.zeros(3), 1.5), levels)
    buckets = partition(np.bincount(grid.cell_of(xyz), minlength=grid.cells), grid, 20)
    own = buckets.of(xyz)
    for b in range(buckets.count):
        mine = np.flatnonzero(own == b)
        row, bucket = buckets.overlapped(xyz[mine], best[mine], b)
        pairs = set(zip(mine[row].tolist(), bucket.tolist(), strict=True))
        for i in mine:
            radius = np.sqrt(best[i, 2])
            near = ((xyz.astype(np.float64) - xyz[i]) ** 2).sum(axis=1) <= best[i, 2]
            reached = {b for j, b in pairs if j == i}
            assert set(own[near]) - {b} <= reached
            box = np.stack([xyz[i] - radius * 1.001, xyz[i] + radius * 1.001]).astype(np.float64)
            low, high = coordinates(grid, box)
            cells = np.stack(np.meshgrid(*map(np.arange, low, high + 1), indexing="ij"), axis=-1).reshape(-1, 3)
            assert reached <= set(buckets.of_cell[grid.number(cells)]) - {b}


def test_keys_of_fewer_bits_are_the_first_bits() -> None:
    xyz = np.random.default_rng(0).normal(size=(1000, 3)).astype(np.float32)
    box = Box(np.zeros(3), 1.0)
    assert np.array_equal(hilbert(xyz, box, 7), hilbert(xyz, box) >> np.uint64(39))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999), powers=st.lists(st.integers(-12, 12), min_size=1, max_size=4))
def test_neighbours_are_exact_at_any_mixture_of_scales(seed: int, powers: list[int]) -> None:
    rng = np.random.default_rng(seed)
    parts = [rng.normal(size=(150, 3)) * 10.0**p + rng.normal(size=3) * 10.0 ** max(powers) for p in powers]
    xyz = np.concatenate(parts).astype(np.float32)
    with Neighbours(xyz) as near:
        found = near.of_themselves()
    d = xyz.astype(np.float64)[:, None] - xyz.astype(np.float64)[None]
    square = d[..., 0] ** 2 + d[..., 1] ** 2 + d[..., 2] ** 2
    np.fill_diagonal(square, np.inf)
    assert np.array_equal(found, np.sort(square, axis=1)[:, :3])
