"""The first scale of each seed point, from its three nearest neighbours in the whole scene, bucket by bucket.

Invariant: distances are exact. A point whose neighbours may lie across a border of buckets asks those buckets too.
"""

from __future__ import annotations

import numpy as np

from tidegs.store.grid import Buckets
from tidegs.store.seeds import log_scales
from tidegs.store.sizes import SizeHistogram
from tidegs.store.spatial import Neighbours
from tidegs.store.spool import Spool, put_grouped

QUERY_DTYPE = np.dtype([("limit", np.float64), ("row", np.int64), ("origin", np.int32), ("xyz", np.float32, 3)])
ANSWER_DTYPE = np.dtype([("best", np.float64, 3), ("row", np.int64)])
BEST_DTYPE = np.dtype([("best", np.float64, 3)])
SCALE_DTYPE = np.dtype(np.float32)
_STEP = 1 << 15  # points whose balls are looked at together


def initial_scales(
    points: Spool, buckets: Buckets, init_scale: float, sizes: SizeHistogram, spool: dict[str, Spool]
) -> None:
    """Puts the log scale of each point (rows with "xyz") into spool["scale"], and counts them in `sizes`.
    `spool`: empty spools "best", "query", "answer" and "scale" of the dtypes above."""
    for b in range(buckets.count):
        _within(points.get(b)["xyz"], buckets, b, spool)
    for b in range(buckets.count):
        _across(points, b, spool)
    for b in range(buckets.count):
        best = spool["best"].get(b)["best"].copy()
        for answers in spool["answer"].chunks(b):
            merge_answers(best, answers)
        scale = log_scales(best, init_scale)
        sizes.add(scale)
        spool["scale"].put(b, scale)
        for name in ("best", "answer"):
            spool[name].drop(b)


def _within(xyz: np.ndarray, buckets: Buckets, bucket: int, spool: dict[str, Spool]) -> None:
    """Distances among the points of a bucket, and what is to be asked of other buckets."""
    with Neighbours(xyz) as tree:
        best = tree.of_themselves()
    spool["best"].put(bucket, best.view(BEST_DTYPE)[:, 0])
    for first in range(0, len(xyz), _STEP):
        part = slice(first, first + _STEP)
        row, target = buckets.overlapped(xyz[part], np.sqrt(best[part, 2]), bucket)
        order = np.argsort(target, kind="stable")
        row = row[order] + first
        queries = np.empty(len(row), QUERY_DTYPE)
        queries["limit"], queries["row"], queries["origin"] = best[row, 2], row, bucket
        queries["xyz"] = xyz[row]
        put_grouped(spool["query"], target[order], queries)


def _across(points: Spool, bucket: int, spool: dict[str, Spool]) -> None:
    """Answers what other buckets ask of this one."""
    tree = None
    for queries in spool["query"].chunks(bucket):
        tree = tree or Neighbours(points.get(bucket)["xyz"])
        best = np.repeat(queries["limit"], 3).reshape(-1, 3)
        tree.improve(queries["xyz"], best)
        nearer = np.flatnonzero(best[:, 0] < queries["limit"])
        nearer = nearer[np.argsort(queries["origin"][nearer], kind="stable")]
        answers = np.empty(len(nearer), ANSWER_DTYPE)
        answers["best"], answers["row"] = best[nearer], queries["row"][nearer]
        put_grouped(spool["answer"], queries["origin"][nearer], answers)
    if tree:
        tree.close()
    spool["query"].drop(bucket)


def merge_answers(best: np.ndarray, answers: np.ndarray) -> None:
    """Merges ANSWER_DTYPE rows into float64 [n, 3]; a row may have several answers."""
    while len(answers):
        row, first = np.unique(answers["row"], return_index=True)
        best[row] = np.sort(np.concatenate([best[row], answers["best"][first]], axis=1), axis=1)[:, :3]
        answers = np.delete(answers, first)
