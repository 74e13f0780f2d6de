"""Rows of an ingest wherever they lie in memory, by address, so that sorting them moves no row.

Invariant: `held` keeps alive what `address` points to.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tidegs.store.memory import address
from tidegs.store.native import library
from tidegs.store.spatial import order_of


@dataclass(frozen=True)
class Rows:
    """An ordered set of rows of one dtype."""

    held: tuple[np.ndarray, ...]
    address: np.ndarray  # uint64 [n]
    dtype: np.dtype

    @staticmethod
    def of(parts: Iterable[np.ndarray], dtype: np.dtype) -> Rows:
        """All rows of C-contiguous arrays [n], in order."""
        held = tuple(parts)
        step = np.uint64(dtype.itemsize)
        at = [np.uint64(address(p)) + np.arange(len(p), dtype=np.uint64) * step for p in held]
        return Rows(held, np.concatenate(at) if at else np.empty(0, np.uint64), dtype)

    def __len__(self) -> int:
        return len(self.address)

    def __getitem__(self, index: np.ndarray | slice) -> Rows:
        return Rows(self.held, np.ascontiguousarray(self.address[index]), self.dtype)

    def __add__(self, other: Rows) -> Rows:
        return Rows(self.held + other.held, np.concatenate([self.address, other.address]), self.dtype)

    def copy(self) -> np.ndarray:
        """The rows in one array [n]."""
        out = np.empty(len(self), self.dtype)
        call = library().tidegs_store_gather
        call.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
        call.restype = None
        call(self.address.ctypes.data, len(self), self.dtype.itemsize, out.ctypes.data)
        return out

    def fill_columns(self, columns: np.ndarray, at: int = 0) -> None:
        """Value k of row i, counted from its byte `at`, goes to columns[k][i]: an array [components, >= n] of float32
        or of uint8, its rows C-contiguous."""
        column = address(columns) + np.arange(len(columns), dtype=np.uint64) * np.uint64(columns.strides[0])
        call = library().tidegs_store_columns
        call.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
        call.restype = None
        floats = columns.dtype == np.float32
        call(self.address.ctypes.data, len(self), at, floats, column.ctypes.data, len(columns))


def spatial_order(keys: np.ndarray, rows: Rows) -> np.ndarray:
    """The permutation that sorts rows by key (uint64 [n]), and rows of equal keys by their bytes."""
    order = order_of(keys)
    keys = keys[order]
    same = keys[1:] == keys[:-1]
    if not same.any():
        return order
    tied = np.flatnonzero(np.concatenate([same, [False]]) | np.concatenate([[False], same]))
    bits = rows[order[tied]].copy().view(np.uint8).reshape(len(tied), -1)
    order[tied] = order[tied][np.lexsort([*bits.T, keys[tied]])]
    return order
