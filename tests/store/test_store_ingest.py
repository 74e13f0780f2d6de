"""Ingest: every row arrives once, with the first values of gaussians.init, the same blocks for any order and budget."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.store_cases import coordinates, read_slots
from tidegs.errors import FormatError, StoreError
from tidegs.gaussians.init import from_points
from tidegs.gaussians.layout import BASE_COMPONENTS, RecordLayout
from tidegs.store.block_store import BlockStore
from tidegs.store.files import Files
from tidegs.store.grid import Grid, partition
from tidegs.store.ingest import IngestOptions, ingest_gaussians, ingest_points
from tidegs.store.sizes import CLASSES, SizeHistogram
from tidegs.store.spatial import Box, Neighbours, Sample, hilbert_of_cells, survey
from tidegs.store.spool import Spool

TIGHT = IngestOptions(memory_budget=2 << 20)  # forces the external path from about 6,000 points on


def cloud(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Clusters of different density, duplicates and outliers."""
    rng = np.random.default_rng(seed)
    xyz = rng.normal(size=(n, 3)) * rng.choice([0.01, 1.0, 3.0], (n, 1)) + rng.integers(0, 3, (n, 3)) * 4
    xyz[: n // 50] = xyz[n // 50 : 2 * (n // 50)]
    xyz[-(n // 100) :] *= 100
    return xyz.astype(np.float32), rng.integers(0, 256, (n, 3), np.uint8)


def chunked(*arrays: np.ndarray, size: int = 1777) -> list:
    parts = [tuple(a[i : i + size] for a in arrays) for i in range(0, len(arrays[0]), size)]
    return parts if len(arrays) > 1 else [p[0] for p in parts]


def rows_of(store: BlockStore) -> np.ndarray:
    """float32 [n, param_components] of all rows in use, block by block."""
    layout, out = store.layout, []
    for block, slot in enumerate(read_slots(store)):
        planes = np.concatenate([layout.view(slot, "base"), layout.view(slot, "rest")])
        out.append(planes[:, : store.table["count"][block]].T)
    return np.concatenate(out)


def sorted_rows(rows: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(rows).view(np.uint32)
    return bits[np.lexsort(bits.T)]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 63, 5000])
def test_points_become_the_gaussians_of_init(tmp_path: Path, n: int) -> None:
    xyz, rgb = cloud(n)
    with ingest_points(tmp_path / "s", chunked(xyz, rgb), RecordLayout(256), IngestOptions(init_scale=0.7)) as store:
        rows = rows_of(store)
        assert not rows[:, BASE_COMPONENTS:].any()
        assert np.array_equal(sorted_rows(rows[:, :BASE_COMPONENTS]), sorted_rows(from_points(xyz, rgb, 0.7)))


def test_external_ingest_equals_ingest_in_memory(tmp_path: Path) -> None:
    xyz, rgb = cloud(30_000)
    order = np.random.default_rng(7).permutation(len(xyz))
    layout = RecordLayout(256)
    with (
        ingest_points(tmp_path / "a", [(xyz, rgb)], layout, meta=b"m") as a,
        ingest_points(tmp_path / "b", chunked(xyz[order], rgb[order]), layout, TIGHT, meta=b"m") as b,
    ):
        assert np.array_equal(read_slots(a), read_slots(b))
        for name in ("lo", "hi", "extent", "count", "opacity_mass", "planes", "kind", "crc"):
            assert np.array_equal(a.table[name], b.table[name]), name
        assert sorted(p.name for p in (tmp_path / "b").iterdir()) == ["lock", "records.seeds", "root", "table.0"]


def test_gaussians_arrive_and_external_equals_memory(tmp_path: Path) -> None:
    rng, layout = np.random.default_rng(3), RecordLayout(128, sh_degree=2)
    rows = rng.normal(size=(9000, layout.param_components)).astype(np.float32)
    rows[rng.permutation(9000)[:300], 7:10] += 6
    order = rng.permutation(len(rows))
    with (
        ingest_gaussians(tmp_path / "a", [rows], layout) as a,
        ingest_gaussians(tmp_path / "b", chunked(rows[order]), layout, TIGHT) as b,
    ):
        assert np.array_equal(sorted_rows(rows_of(a)), sorted_rows(rows))
        assert np.array_equal(read_slots(a), read_slots(b))


def test_table_bounds_are_those_of_the_rows(tmp_path: Path) -> None:
    xyz, rgb = cloud(4000)
    with ingest_points(tmp_path / "s", [(xyz, rgb)], RecordLayout(256)) as store:
        for row, slot in zip(store.table, read_slots(store), strict=True):
            n = row["count"]
            means = store.layout.field(slot, "means")[:, :n]
            assert np.array_equal(row["lo"], means.min(axis=1))
            assert np.array_equal(row["hi"], means.max(axis=1))
            scales = store.layout.field(slot, "scales")[:, :n].astype(np.float64)
            np.testing.assert_allclose(row["extent"], np.exp(scales.max()), rtol=1e-6)
            np.testing.assert_allclose(row["opacity_mass"], 0.1 * n, rtol=1e-6)


@pytest.mark.parametrize("fill", [1.0, 0.5])
def test_blocks_are_filled_evenly_up_to_the_fill_factor(tmp_path: Path, fill: float) -> None:
    xyz = np.random.default_rng(1).uniform(size=(10_000, 3)).astype(np.float32)
    rgb = np.zeros((len(xyz), 3), np.uint8)
    with ingest_points(tmp_path / "s", [(xyz, rgb)], RecordLayout(512), IngestOptions(fill=fill)) as store:
        count = store.table["count"]
        assert len(count) == -(-10_000 // round(512 * fill))
        assert count.max() - count.min() <= 1


def test_huge_splats_get_blocks_of_their_own(tmp_path: Path) -> None:
    rng, layout = np.random.default_rng(5), RecordLayout(256, sh_degree=0)
    rows = rng.uniform(size=(5000, 14)).astype(np.float32)
    rows[:, 7:10] = np.log(0.01)
    rows[::50, 7:10] = np.log(5.0)
    with ingest_gaussians(tmp_path / "s", [rows], layout) as store:
        np.testing.assert_allclose(np.sort(store.table["extent"])[:-1], 0.01, rtol=1e-6)
        assert store.table["count"][np.argmax(store.table["extent"])] == 100


@pytest.mark.parametrize(
    ("xyz", "message"),
    [(np.zeros((0, 3)), "no points"), ([[0, 0, 0], [1, np.nan, 0]], "row 1"), ([[0, np.inf, 0]], "row 0")],
)
def test_bad_input_leaves_nothing_behind(tmp_path: Path, xyz: list, message: str) -> None:
    points = np.array(xyz, np.float32)
    with pytest.raises(FormatError, match=message):
        ingest_points(tmp_path / "s", [(points, np.zeros(points.shape, np.uint8))], RecordLayout(64))
    assert list((tmp_path / "s").iterdir()) == []


def test_an_ingest_that_was_cut_off_can_be_begun_again(tmp_path: Path) -> None:
    xyz, rgb = cloud(9000)
    folder = tmp_path / "s"
    folder.mkdir()
    for name in ("records.seeds", "ingest.rows", "table.0", "lock"):
        (folder / name).write_bytes(b"left by a process that was killed")
    with pytest.raises(StoreError, match="holds no store"):
        BlockStore.open(folder)
    with ingest_points(folder, chunked(xyz, rgb), RecordLayout(64), TIGHT) as store:
        assert len(rows_of(store)) == 9000


def test_ingest_does_not_overwrite(tmp_path: Path) -> None:
    xyz, rgb = cloud(100)
    ingest_points(tmp_path / "s", [(xyz, rgb)], RecordLayout(64)).close()
    with pytest.raises(StoreError, match="already holds a store"):
        ingest_points(tmp_path / "s", [(xyz, rgb)], RecordLayout(64))
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "holiday.jpg").touch()
    with pytest.raises(StoreError, match=r"holiday\.jpg"):
        ingest_points(tmp_path / "t", [(xyz, rgb)], RecordLayout(64))


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 300), grid=st.integers(1, 8), seed=st.integers(0, 1000))
def test_neighbours_are_exact(n: int, grid: int, seed: int) -> None:
    """Points on a coarse grid: many ties and duplicates."""
    rng = np.random.default_rng(seed)
    xyz, other = (rng.integers(0, grid, (m, 3)).astype(np.float32) for m in (n, 50))
    with Neighbours(xyz) as tree:
        mine = tree.of_themselves()
        best = np.full((50, 3), 2.0)
        tree.improve(other, best)
    square = ((xyz[:, None] - xyz[None]).astype(np.float64) ** 2).sum(-1)
    np.fill_diagonal(square, np.inf)
    square = np.sort(np.concatenate([square, np.full((n, 3), np.inf)], axis=1), axis=1)
    assert np.array_equal(mine, square[:, :3])
    square = ((other[:, None] - xyz[None]).astype(np.float64) ** 2).sum(-1)
    square = np.sort(np.concatenate([square, np.full((50, 3), 2.0)], axis=1), axis=1)
    assert np.array_equal(best, square[:, :3])


def test_the_curve_visits_every_cell_and_steps_to_a_neighbour() -> None:
    for bits in (1, 3, 4):
        at = np.stack(np.meshgrid(*[np.arange(1 << bits)] * 3, indexing="ij"), -1).reshape(-1, 3)
        order = np.argsort(keys := hilbert_of_cells(at, bits))
        assert np.array_equal(keys[order], np.arange(1 << 3 * bits))
        assert np.all(np.abs(np.diff(at[order], axis=0)).sum(axis=1) == 1)


def test_blocks_of_a_flat_scene_are_compact(tmp_path: Path) -> None:
    """A plane: the mean side of a block is within twice that of a perfect tiling by squares."""
    rng = np.random.default_rng(0)
    xyz = np.c_[rng.uniform(-1, 1, (50_000, 2)), 0.01 * rng.normal(size=50_000)].astype(np.float32)
    with ingest_points(tmp_path / "s", [(xyz, np.zeros((50_000, 3), np.uint8))], RecordLayout(512)) as store:
        sides = (store.table["hi"] - store.table["lo"])[:, :2]
        assert sides.mean() < 2 * np.sqrt(4 / len(store.table))


def test_far_outliers_keep_their_place() -> None:
    grid = Grid(Box(np.zeros(3), 1.0), 7)
    far = np.array([[-1e30] * 3, [1e30] * 3], np.float32)
    assert coordinates(grid, far.astype(np.float64)).tolist() == [[0] * 3, [127] * 3]
    assert np.array_equal(grid.cell_of(far), grid.number(coordinates(grid, far.astype(np.float64))))


def test_the_sample_does_not_depend_on_order() -> None:
    xyz = np.random.default_rng(0).normal(size=(150_000, 3)).astype(np.float32)
    one, two = Sample(), Sample()
    one.add(xyz, survey(xyz, 3)[0])
    for part in np.array_split(xyz[::-1], 7):
        two.add(part, survey(np.ascontiguousarray(part), 3)[0])
    assert np.array_equal(one.box().center, two.box().center)
    assert one.box().half == two.box().half
    assert len(one.xyz) < len(xyz)


def test_buckets_cover_all_cells_and_respect_the_limit() -> None:
    grid = Grid(Box(np.zeros(3), 1.0), 5)
    counts = np.zeros(grid.cells, np.int64)
    rng = np.random.default_rng(0)
    counts[rng.integers(0, grid.cells, 5000)] = rng.integers(1, 50, 5000)
    counts[17] = 10_000  # one cell above the limit
    buckets = partition(counts, grid, 1000)
    assert np.all(np.diff(buckets.of_cell) >= 0)
    held = np.bincount(buckets.of_cell, counts, buckets.count)
    assert held.sum() == counts.sum()
    assert np.all(np.delete(held, buckets.of_cell[17]) <= 1000)
    assert buckets.of_cell[-1] == buckets.count - 1


@pytest.mark.parametrize("levels", [1, 4, 7])
def test_cells_are_prefixes_of_keys(levels: int) -> None:
    xyz = (np.random.default_rng(0).normal(size=(5000, 3)) * 3).astype(np.float32)
    grid = Grid(Box(np.array([0.1, -0.3, 0.0]), 1.3), levels)
    assert np.array_equal(grid.cell_of(xyz), grid.number(coordinates(grid, xyz.astype(np.float64))))


def test_size_classes_join_when_they_are_small() -> None:
    sizes = SizeHistogram()
    logs = np.log(np.repeat([1.0, 10.0, 100.0, 1e9], [1000, 3, 200, 2])).astype(np.float32)
    sizes.add(logs)
    counts, joined = sizes.class_counts(50)
    assert counts.tolist() == [1003, 0, 202, 0]
    assert joined.tolist() == [0, 0, 2, 2]
    assert np.bincount(sizes.classify(logs), minlength=CLASSES).tolist() == [1000, 3, 200, 2]


def test_spool_returns_rows_in_order_beyond_its_budget(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    spool = Spool(tmp_path / "w", np.dtype(np.float64), 10_000, Files())
    expected: dict[int, list[np.ndarray]] = {0: [], 1: [], 5: []}
    for i in range(40):
        rows = rng.normal(size=100 + i)
        spool.put([0, 1, 5][i % 3], rows)
        expected[[0, 1, 5][i % 3]].append(rows)
    for bucket, parts in expected.items():
        assert np.array_equal(spool.get(bucket), np.concatenate(parts))
        assert np.array_equal(np.concatenate(list(spool.chunks(bucket))), np.concatenate(parts))
    assert spool.bytes_moved > 0
    spool.close()
    assert not (tmp_path / "w").exists()
