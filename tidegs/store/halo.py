"""The first scale of each seed point, from its three nearest neighbours in the whole scene, bucket by bucket.

Invariant: distances are exact. A point whose neighbours may lie across a border of buckets asks those buckets too.
"""

from __future__ import annotations

import numpy as np

from tidegs.store.grid import Buckets
from tidegs.store.seeds import log_scales
from tidegs.store.sizes import SizeHistogram
from tidegs.store.spatial import Neighbours, leaves_cell
from tidegs.store.spool import Spool, put_grouped

_BEST = ("best", np.float64, 3)
QUERY_DTYPE = np.dtype([("limit", np.float64), ("row", np.int64), ("origin", np.int32), ("xyz", np.float32, 3)])
ANSWER_DTYPE = np.dtype([_BEST, ("row", np.int64)])
# "asked": rows that ask, with their distances in their own bucket; "scale": log scales by these; "better": rows that
# asked, with their log scales.
SPOOLS = {  # format.WORK_FILES has their names too
    "query": QUERY_DTYPE,
    "answer": ANSWER_DTYPE,
    "asked": ANSWER_DTYPE,
    "scale": np.dtype(np.float32),
    "better": np.dtype([("scale", np.float32), ("row", np.int64)]),
}
_STEP = 1 << 15  # points whose balls are looked at together


def initial_scales(
    points: Spool, buckets: Buckets, init_scale: float, sizes: SizeHistogram, spool: dict[str, Spool]
) -> None:
    """Finds the log scale of each point (rows with "xyz"), for `scales_of`, and counts them in `sizes`.
    `spool`: empty spools of SPOOLS."""
    for b in range(buckets.count):
        _within(points.get(b)["xyz"], buckets, b, init_scale, sizes, spool)
    for b in range(buckets.count):
        _across(points, buckets, b, spool)
    for b in range(buckets.count):
        asked = spool["asked"].get(b)
        best = asked["best"].copy()
        for answers in spool["answer"].chunks(b):
            merge_answers(best, np.searchsorted(asked["row"], answers["row"]), answers["best"])
        better = np.empty(len(asked), SPOOLS["better"])
        better["row"], better["scale"] = asked["row"], log_scales(best, init_scale)
        sizes.add(better["scale"])
        spool["better"].put(b, better)
        for name in ("asked", "answer"):
            spool[name].drop(b)


def scales_of(bucket: int, spool: dict[str, Spool]) -> np.ndarray:
    """The log scales of the points of a bucket, float32 [n]; forgets them."""
    scale = spool["scale"].get(bucket).copy()
    for better in spool["better"].chunks(bucket):
        scale[better["row"]] = better["scale"]
    for name in ("scale", "better"):
        spool[name].drop(bucket)
    return scale


def _within(
    xyz: np.ndarray, buckets: Buckets, bucket: int, init_scale: float, sizes: SizeHistogram, spool: dict[str, Spool]
) -> None:
    """Distances among the points of a bucket, and what is to be asked of other buckets."""
    xyz = np.ascontiguousarray(xyz)
    with Neighbours(xyz) as near:
        best = near.of_themselves()
        _answer(near, buckets, bucket, spool)
    scale = log_scales(best, init_scale)
    spool["scale"].put(bucket, scale)
    alone = np.ones(len(xyz), bool)
    border = np.empty(0, np.int64)
    if buckets.count > 1:
        border = np.flatnonzero(leaves_cell(xyz, best, buckets.grid.box, buckets.grid.levels))
    for first in range(0, len(border), _STEP):
        part = border[first : first + _STEP]
        row, target = buckets.overlapped(xyz[part], np.sqrt(best[part, 2]), bucket)
        row = part[row]
        queries = np.empty(len(row), QUERY_DTYPE)
        queries["limit"], queries["row"], queries["origin"] = best[row, 2], row, bucket
        queries["xyz"] = xyz[row]
        put_grouped(spool["query"], target, buckets.count, queries)
        alone[row] = False
    sizes.add(scale[alone])
    rows = np.flatnonzero(~alone)
    asked = np.empty(len(rows), ANSWER_DTYPE)
    asked["row"], asked["best"] = rows, best[rows]
    spool["asked"].put(bucket, asked)


def _across(points: Spool, buckets: Buckets, bucket: int, spool: dict[str, Spool]) -> None:
    """Answers what later buckets ask of this one."""
    if spool["query"].count(bucket):
        with Neighbours(points.get(bucket)["xyz"]) as near:
            _answer(near, buckets, bucket, spool)


def _answer(near: Neighbours, buckets: Buckets, bucket: int, spool: dict[str, Spool]) -> None:
    """Answers what other buckets have asked of this one so far."""
    for queries in spool["query"].chunks(bucket):
        best = np.repeat(queries["limit"], 3).reshape(-1, 3)
        near.improve(queries["xyz"], best)
        nearer = np.flatnonzero(best[:, 0] < queries["limit"])
        answers = np.empty(len(nearer), ANSWER_DTYPE)
        answers["best"], answers["row"] = best[nearer], queries["row"][nearer]
        put_grouped(spool["answer"], queries["origin"][nearer], buckets.count, answers)
    spool["query"].drop(bucket)


def merge_answers(best: np.ndarray, row: np.ndarray, answers: np.ndarray) -> None:
    """Merges distances float64 [m, 3] into rows int64 [m] of float64 [n, 3]; a row may have several answers."""
    while len(row):
        rows, first = np.unique(row, return_index=True)
        best[rows] = np.sort(np.concatenate([best[rows], answers[first]], axis=1), axis=1)[:, :3]
        row, answers = np.delete(row, first), np.delete(answers, first, axis=0)
