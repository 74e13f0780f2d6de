"""Spatial order and neighbours of points (csrc/store/spatial.cpp).

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

    def add(self, xyz: np.ndarray) -> None:
        """Takes float32 [n, 3]."""
        bits = np.ascontiguousarray(xyz).view(np.uint32).astype(np.uint64)
        mixed = _mix(bits[:, 0] | bits[:, 1] << np.uint64(32)) ^ bits[:, 2]
        hashes = np.concatenate([self._hash, _mix(mixed)])
        points = np.concatenate([self.xyz, xyz])
        if len(hashes) > SAMPLE:
            keep = np.argpartition(hashes, SAMPLE - 1)[:SAMPLE]
            hashes, points = hashes[keep], points[keep]
        self._hash, self.xyz = hashes, points

    def box(self) -> Box:
        """Holds the middle 98 % of the sample along each axis. A cube, so that cells are as wide in all directions."""
        low, high = np.quantile(self.xyz.astype(np.float64), [0.01, 0.99], axis=0, method="nearest")
        half = max(float((high - low).max()) / 2, float(np.finfo(np.float32).tiny))
        return Box((low + high) / 2 + half * _ASIDE, half * (1 + _ASIDE.max()))


def _mix(v: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64 (Steele et al. 2014)."""
    v = (v ^ v >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    v = (v ^ v >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return v ^ v >> np.uint64(31)


def hilbert(xyz: np.ndarray, box: Box) -> np.ndarray:
    """uint64 [n] keys of 60 bits along the Hilbert curve for float32 [n, 3]; outliers keep their place along each axis,
    at lower resolution."""
    xyz = np.ascontiguousarray(xyz, np.float32)
    out = np.empty(len(xyz), np.uint64)
    call = library().tidegs_store_hilbert
    call.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_double, ctypes.c_void_p)
    call.restype = None
    call(_p(xyz), len(xyz), _p(box.center), box.half, _p(out))
    return out


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
    """Exact nearest distances among points, by a kd-tree (Friedman, Bentley & Finkel 1977)."""

    def __init__(self, xyz: np.ndarray) -> None:
        """`xyz`: finite float32 [n, 3]."""
        self._lib = library()
        self._lib.tidegs_store_knn_new.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int]
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
        self._tree = self._lib.tidegs_store_knn_new(_p(xyz), self.n, threads())

    def of_themselves(self) -> np.ndarray:
        """float64 [n, 3]: squared distances to the three nearest others, ascending; inf where there are fewer."""
        best = np.full((self.n, 3), _NONE_NEAR)
        self._lib.tidegs_store_knn_self(self._tree, _p(best), threads())
        return best

    def improve(self, xyz: np.ndarray, best: np.ndarray) -> None:
        """Lowers `best` (float64 [m, 3], C-contiguous) of other points float32 [m, 3] by the distances to these."""
        xyz = np.ascontiguousarray(xyz, np.float32)
        self._lib.tidegs_store_knn_others(self._tree, _p(xyz), len(xyz), _p(best), threads())

    def close(self) -> None:
        self._lib.tidegs_store_knn_free(self._tree)

    def __enter__(self) -> Neighbours:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _p(array: np.ndarray) -> int:
    return array.ctypes.data
