"""Spatial order and neighbours of points (csrc/store/spatial.cpp, curve.cpp, neighbours.cpp).

Invariant: what is computed of a point depends on the whole set alone, never on its order, its chunks or the threads.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass

import numpy as np

from tidegs.store.native import library

SAMPLE = 1 << 16
_ASIDE = np.array(
    [0.17, 0.23, 0.31]
)  # the middle of a scene is often a plane: it must not be a face of the largest cells
_NONE_NEAR = np.inf
_PTR, _I64 = ctypes.c_void_p, ctypes.c_int64


def threads() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Box:
    """A cube where most points lie: the frame of spatial keys."""

    center: np.ndarray  # float64 [3]
    half: float  # half of its side


class Sample:
    """Up to SAMPLE points of a stream, the same ones whatever their order: those with the least hash of their bits."""

    def __init__(self) -> None:
        self.xyz = np.empty((0, 3), np.float32)
        self._hash = np.empty(0, np.uint64)
        self._most = np.uint64(2**64 - 1)  # hash beyond which no point is taken

    def add(self, xyz: np.ndarray, hashes: np.ndarray) -> None:
        """Takes float32 [n, 3] and their hashes (`survey`), uint64 [n]."""
        near = np.flatnonzero(hashes <= self._most)
        hashes = np.concatenate([self._hash, hashes[near]])
        points = np.concatenate([self.xyz, xyz[near]])
        if len(hashes) > SAMPLE:
            keep = np.argpartition(hashes, SAMPLE - 1)[:SAMPLE]
            hashes, points = hashes[keep], points[keep]
            self._most = hashes.max()
        self._hash, self.xyz = hashes, points

    def box(self) -> Box:
        """Holds the middle 98 % of the sample along each axis. A cube, so that cells are as wide in all directions."""
        low, high = np.quantile(self.xyz.astype(np.float64), [0.01, 0.99], axis=0, method="nearest")
        half = max(float((high - low).max()) / 2, float(np.finfo(np.float32).tiny))
        return Box((low + high) / 2 + half * _ASIDE, half * (1 + _ASIDE.max()))


def xyz_of(rows: np.ndarray) -> np.ndarray:
    """float32 [n, 3], a view of C-contiguous rows [n] that begin with x, y, z."""
    return np.ndarray((len(rows), 3), np.float32, rows.view(np.uint8), strides=(rows.strides[0], 4))


def survey(rows: np.ndarray, floats: int) -> tuple[np.ndarray, np.ndarray]:
    """Of C-contiguous rows [n] that begin with x, y, z: a hash of these, uint64 [n], and whether the first `floats`
    float32 of each are finite, bool [n]."""
    hashes, finite = np.empty(len(rows), np.uint64), np.empty(len(rows), np.bool_)
    call = library().tidegs_store_survey
    call.argtypes = (_PTR, _I64, _I64, _I64, _PTR, _PTR, ctypes.c_int)
    call.restype = None
    call(_p(rows), len(rows), rows.strides[0], floats, _p(hashes), _p(finite), threads())
    return hashes, finite


def greatest(rows: np.ndarray, at: int) -> np.ndarray:
    """float32 [n]: the greatest of three float32 from byte `at` on of C-contiguous rows [n]."""
    out = np.empty(len(rows), np.float32)
    call = library().tidegs_store_greatest
    call.argtypes = (_PTR, _I64, _I64, _I64, _PTR, ctypes.c_int)
    call.restype = None
    call(_p(rows), len(rows), rows.strides[0], at, _p(out), threads())
    return out


def hilbert(xyz: np.ndarray, box: Box, bits: int = 20) -> np.ndarray:
    """uint64 [n] keys of 3 * bits bits along the Hilbert curve for float32 [n, 3], or for rows [n] of a dtype that
    begins with them; outliers keep their place along each axis, at lower resolution."""
    rows = xyz if xyz.flags.c_contiguous else np.ascontiguousarray(xyz)
    out = np.empty(len(rows), np.uint64)
    call = library().tidegs_store_hilbert
    call.argtypes = (_PTR, _I64, _I64, _PTR, ctypes.c_double, ctypes.c_int, _PTR, ctypes.c_int)
    call.restype = None
    call(_p(rows), len(rows), rows.strides[0], _p(box.center), box.half, bits, _p(out), threads())
    return out


def order_of(keys: np.ndarray) -> np.ndarray:
    """int64 [n]: the stable order of uint64 keys."""
    keys = np.ascontiguousarray(keys, np.uint64)
    out = np.empty(len(keys), np.int64)
    call = library().tidegs_store_order
    call.argtypes = (_PTR, _I64, _PTR)
    call.restype = None
    call(_p(keys), len(keys), _p(out))
    return out


def group_rows(rows: np.ndarray, group: np.ndarray, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows [n] sorted by group (int32 [n], 0 to groups - 1), stably; and where each group begins, int64
    [groups + 1]."""
    rows, group = np.ascontiguousarray(rows), np.ascontiguousarray(group, np.int32)
    out, start = np.empty_like(rows), np.empty(groups + 1, np.int64)
    call = library().tidegs_store_group
    call.argtypes = (_PTR, _I64, _I64, _PTR, _I64, _PTR, _PTR)
    call.restype = None
    call(_p(rows), len(rows), rows.itemsize, _p(group), groups, _p(out), _p(start))
    return out, start


def overlapped(
    xyz: np.ndarray, best: np.ndarray, box: Box, levels: int, buckets: np.ndarray, own: int
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (row int64, bucket int32) of all buckets but `own` that the ball around a point (float32 [n, 3]) with the
    root of best[:, 2] (float64 [n, 3]) as radius may reach. `buckets`: int32 [2^levels] * 3, by a cell's
    coordinates."""
    xyz, best = np.ascontiguousarray(xyz), np.ascontiguousarray(best)
    call = library().tidegs_store_overlapped
    call.argtypes = (_PTR, _PTR, _I64, _PTR, ctypes.c_double, ctypes.c_int, _PTR, ctypes.c_int32, ctypes.c_int32)
    call.argtypes += (_PTR, _PTR, _I64)
    call.restype = _I64
    count, most = int(buckets.max()) + 1, 0
    found = len(xyz)
    while found > most:  # again, with room for all of them
        most = found
        row, bucket = np.empty(most, np.int64), np.empty(most, np.int32)
        found = call(
            *(_p(xyz), _p(best), len(xyz), _p(box.center), box.half, levels, _p(buckets), count, own),
            *(_p(row), _p(bucket), most),
        )
    return row[:found], bucket[:found]


def hilbert_of_cells(at: np.ndarray, bits: int) -> np.ndarray:
    """int64 [n] keys of 3 * bits bits for cell coordinates int64 [n, 3]: the first bits of their points' keys."""
    at = np.ascontiguousarray(at, np.int64)
    out = np.empty(len(at), np.int64)
    call = library().tidegs_store_hilbert_cells
    call.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_void_p)
    call.restype = None
    call(_p(at), len(at), bits, _p(out))
    return out


class Neighbours:
    """Exact nearest distances among points, by a hierarchy of boxes."""

    def __init__(self, xyz: np.ndarray) -> None:
        """`xyz`: finite float32 [n, 3]."""
        self._lib = library()
        self._lib.tidegs_store_knn_new.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        self._lib.tidegs_store_knn_new.restype = ctypes.c_void_p
        self._lib.tidegs_store_knn_free.argtypes = [ctypes.c_void_p]
        self._lib.tidegs_store_knn_self.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
        self._lib.tidegs_store_knn_others.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_void_p,
            ctypes.c_int,
        ]
        xyz = np.ascontiguousarray(xyz, np.float32)
        self.n = len(xyz)
        self._tree = self._lib.tidegs_store_knn_new(_p(xyz), self.n)

    def of_themselves(self, workers: int | None = None) -> np.ndarray:
        """float64 [n, 3]: squared distances to the three nearest others, ascending; inf where there are fewer."""
        best = np.full((self.n, 3), _NONE_NEAR)
        self._lib.tidegs_store_knn_self(self._tree, _p(best), workers or threads())
        return best

    def improve(self, xyz: np.ndarray, best: np.ndarray, workers: int | None = None) -> None:
        """Lowers `best` (float64 [m, 3], C-contiguous) of other points float32 [m, 3] by the distances to these."""
        xyz = np.ascontiguousarray(xyz, np.float32)
        self._lib.tidegs_store_knn_others(self._tree, _p(xyz), len(xyz), _p(best), workers or threads())

    def close(self) -> None:
        self._lib.tidegs_store_knn_free(self._tree)

    def __enter__(self) -> Neighbours:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _p(array: np.ndarray) -> int:
    return array.ctypes.data
