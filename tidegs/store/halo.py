"""The first scale of each seed point, from its three nearest neighbours in the whole scene, bucket by bucket.

Invariant: distances are exact. A point whose neighbours may lie across a border of buckets asks those buckets too.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import numpy as np

from tidegs.store.grid import Buckets
from tidegs.store.seeds import log_scales
from tidegs.store.sizes import SizeHistogram
from tidegs.store.spatial import Neighbours, threads
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
_AT_ONCE = 2  # buckets whose points are in memory


def initial_scales(
    points: Spool, buckets: Buckets, init_scale: float, sizes: SizeHistogram, spool: dict[str, Spool]
) -> None:
    """Finds the log scale of each point (rows with "xyz"), for `scales_of`, and counts them in `sizes`.
    `spool`: empty spools of SPOOLS."""
    search = _Search(points, buckets, init_scale, sizes, spool)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for phase in (search.within, search.across):
            list(pool.map(phase, range(buckets.count)))
    for b in range(buckets.count):
        search.join(b)


def scales_of(bucket: int, spool: dict[str, Spool]) -> np.ndarray:
    """The log scales of the points of a bucket, float32 [n]."""
    scale = spool["scale"].get(bucket).copy()
    for better in spool["better"].chunks(bucket):
        scale[better["row"]] = better["scale"]
    return scale


class _Search:
    """The phases of a search, a bucket at a time; `within` and `across` from two threads at once."""

    def __init__(
        self, points: Spool, buckets: Buckets, init_scale: float, sizes: SizeHistogram, spool: dict[str, Spool]
    ) -> None:
        self._points, self._buckets, self._init_scale = points, buckets, init_scale
        self._sizes, self._spool = sizes, spool
        self._lock = Lock()  # of spools and sizes
        self._workers = max(1, threads() // min(_AT_ONCE, buckets.count))

    def within(self, bucket: int) -> None:
        """Distances among the points of a bucket, and what is to be asked of other buckets."""
        xyz = self._xyz(bucket)
        with Neighbours(xyz) as near:
            best = near.of_themselves(self._workers)
        scale = log_scales(best, self._init_scale)
        alone = np.ones(len(xyz), bool)
        for first in range(0, len(xyz), _STEP):
            part = slice(first, first + _STEP)
            row, target = self._buckets.overlapped(xyz[part], best[part], bucket)
            row += first
            queries = np.empty(len(row), QUERY_DTYPE)
            queries["limit"], queries["row"], queries["origin"] = best[row, 2], row, bucket
            queries["xyz"] = xyz[row]
            alone[row] = False
            with self._lock:
                put_grouped(self._spool["query"], target, self._buckets.count, queries)
        rows = np.flatnonzero(~alone)
        asked = np.empty(len(rows), ANSWER_DTYPE)
        asked["row"], asked["best"] = rows, best[rows]
        with self._lock:
            self._spool["scale"].put(bucket, scale)
            self._sizes.add(scale[alone])
            self._spool["asked"].put(bucket, asked)

    def across(self, bucket: int) -> None:
        """Answers what other buckets ask of this one."""
        with self._lock:
            asked = list(self._spool["query"].take(bucket))
        if not asked:
            return
        with Neighbours(self._xyz(bucket)) as near:
            for queries in asked:
                best = np.repeat(queries["limit"], 3).reshape(-1, 3)
                near.improve(queries["xyz"], best, self._workers)
                nearer = np.flatnonzero(best[:, 0] < queries["limit"])
                answers = np.empty(len(nearer), ANSWER_DTYPE)
                answers["best"], answers["row"] = best[nearer], queries["row"][nearer]
                with self._lock:
                    put_grouped(self._spool["answer"], queries["origin"][nearer], self._buckets.count, answers)

    def join(self, bucket: int) -> None:
        """The scales of points of a bucket that asked."""
        asked = self._spool["asked"].get(bucket)
        best = asked["best"].copy()
        for answers in self._spool["answer"].chunks(bucket):
            merge_answers(best, np.searchsorted(asked["row"], answers["row"]), answers["best"])
        better = np.empty(len(asked), SPOOLS["better"])
        better["row"], better["scale"] = asked["row"], log_scales(best, self._init_scale)
        self._sizes.add(better["scale"])
        self._spool["better"].put(bucket, better)
        for name in ("asked", "answer"):
            self._spool[name].drop(bucket)

    def _xyz(self, bucket: int) -> np.ndarray:
        return np.ascontiguousarray(self._points.get(bucket)["xyz"])


def merge_answers(best: np.ndarray, row: np.ndarray, answers: np.ndarray) -> None:
    """Merges distances float64 [m, 3] into rows int64 [m] of float64 [n, 3]; a row may have several answers."""
    while len(row):
        rows, first = np.unique(row, return_index=True)
        best[rows] = np.sort(np.concatenate([best[rows], answers[first]], axis=1), axis=1)[:, :3]
        row, answers = np.delete(row, first), np.delete(answers, first, axis=0)
