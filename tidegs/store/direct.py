"""Records straight between the record files and the arena in device memory, past host memory: by kvikio.

Invariant: as in csrc/store/engine.cpp: a record whose status is 0 was moved whole, and on reads its header (on the
host) and the CRC32C of its payload (where it lies, in device memory) were right.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tidegs import crc
from tidegs.gaussians.layout import ALIGN, RecordLayout
from tidegs.store import format as fmt
from tidegs.store.base import ArenaLink, Piece
from tidegs.store.files import Files
from tidegs.store.native import BAD_PAYLOAD, END_OF_FILE, HEADER, Engine


class DirectEngine:
    """Like native.Engine, for requests whose `slot` is the number of an arena slot. No seeds: those are expanded on the
    host. `said` has the words of kvikio's last error, which has no errno."""

    def __init__(
        self, engine: Engine, layout: RecordLayout, files: Files, path: Callable[[int], Path], link: ArenaLink
    ) -> None:
        self.said = ""
        self._engine, self._layout, self._files, self._path, self._link = engine, layout, files, path, link
        self._open: dict[int, Any] = {}
        self._mutex = threading.Lock()

    def scan(self, requests: np.ndarray) -> None:
        """Sets `planes` to the planes that are not all zero, and the `crc` of those."""
        bits = [self._planes(r["scratch"]) for r in requests]
        pieces = [self._piece(r, bit) for r, mine in zip(requests, bits, strict=True) for bit in mine]
        with self._link.leaving(_slots(requests)):
            remainders, filled = self._link.fold(pieces, leaving=True)
        owner = np.repeat(np.arange(len(requests)), [len(mine) for mine in bits])
        planes = np.array([1 << bit for mine in bits for bit in mine], np.uint16)
        requests["planes"] = 0
        np.bitwise_or.at(requests["planes"], owner[filled], planes[filled])
        pages = np.array([n // ALIGN for _, _, n in pieces], np.int64)
        _set_crcs(requests, remainders[filled], pages[filled], owner[filled])

    def read(self, requests: np.ndarray) -> int:
        """Reads REQUEST_DTYPE [n] into arena slots; sets `status`; returns how many failed."""
        requests["part"] = HEADER
        if self._engine.read(requests):
            return int(np.count_nonzero(requests["status"]))
        with self._link.filling(_slots(requests)):
            spans = self._transfer("pread", requests)
            missing = [[bit for bit in self._planes(r["scratch"]) if not r["planes"] >> bit & 1] for r in requests]
            self._link.zero([self._piece(r, bit) for r, mine in zip(requests, missing, strict=True) for bit in mine])
            remainders, _ = self._link.fold([piece for mine in spans for piece in mine], leaving=False)
        found = requests.copy()
        owner = np.repeat(np.arange(len(requests)), [len(mine) for mine in spans])
        _set_crcs(found, remainders, np.array([n // ALIGN for mine in spans for _, _, n in mine], np.int64), owner)
        requests["status"][(requests["status"] == 0) & (found["crc"] != requests["crc"])] = BAD_PAYLOAD
        return int(np.count_nonzero(requests["status"]))

    def write(self, requests: np.ndarray) -> int:
        """Writes what `scan` found of arena slots; sets `status`; returns how many failed."""
        requests["part"] = HEADER
        if self._engine.write(requests):
            return int(np.count_nonzero(requests["status"]))
        with self._link.leaving(_slots(requests)):
            self._transfer("pwrite", requests)
        return int(np.count_nonzero(requests["status"]))

    def clear(self, requests: np.ndarray) -> None:
        """Zeroes the arena slots of blocks without a record."""
        with self._link.filling(_slots(requests)):
            self._link.zero([self._piece(r, bit) for r in requests for bit in self._planes(r["scratch"])])

    def close(self) -> None:
        """Closes the files."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def _planes(self, scratch: bool) -> list[int]:
        planes = fmt.PLANES if scratch else fmt.RECORD_PLANES
        return [bit for bit, plane in enumerate(planes) if self._layout.plane_nbytes(plane)]

    def _piece(self, request: np.void, bit: int) -> Piece:
        plane = fmt.PLANES[bit]
        return int(request["slot"]), self._layout.offsets[plane], self._layout.plane_nbytes(plane)

    def _spans(self, request: np.void) -> list[Piece]:
        """The stored planes in their order, neighbours joined."""
        out: list[Piece] = []
        for bit in self._planes(True):
            if request["planes"] >> bit & 1:
                slot, first, nbytes = self._piece(request, bit)
                if out and sum(out[-1][1:]) == first:
                    nbytes, first = nbytes + out[-1][2], out.pop()[1]
                out.append((slot, first, nbytes))
        return out

    def _transfer(self, call: str, requests: np.ndarray) -> list[list[Piece]]:
        """Moves all payloads, several at once; sets `status`; returns the pieces of each. It leaves nothing in flight,
        whatever fails."""
        self.said = ""
        spans = [self._spans(r) for r in requests]
        flying: list[tuple[int, Any, Piece, int, Any]] = []
        for i, request in enumerate(requests):
            at = int(request["offset"]) + ALIGN
            for piece in spans[i]:
                try:
                    file = self._file(int(request["kind"]))
                    flying.append((i, file, piece, at, getattr(file, call)(self._link.window(piece), piece[2], at)))
                except (OSError, RuntimeError, ValueError) as error:
                    requests["status"][i] = self._errno(error)
                at += piece[2]
        for i, file, piece, at, future in flying:
            try:
                self._complete(getattr(file, call), piece, at, future.get())
            except EOFError:
                requests["status"][i] = END_OF_FILE if call == "pread" else errno.EIO
            except (OSError, RuntimeError, ValueError) as error:
                requests["status"][i] = self._errno(error)
        return spans

    def _complete(self, call: Callable[..., Any], piece: Piece, at: int, done: int) -> None:
        """Moves what a transfer of `done` bytes left over. EOFError where it does not get on."""
        slot, first, left = piece
        while done < left:
            if done <= 0:
                raise EOFError
            first, at, left = first + done, at + done, left - done
            done = call(self._link.window((slot, first, left)), left, at).get()

    def _errno(self, error: Exception) -> int:
        """kvikio's errors are mostly RuntimeErrors with words alone."""
        if isinstance(error, OSError) and error.errno:
            return error.errno
        self.said = (str(error).splitlines() or [type(error).__name__])[0]
        return errno.EIO

    def _file(self, kind: int) -> Any:
        with self._mutex:
            if kind not in self._open:
                self._open[kind] = self._files.open_for_device(self._path(kind))
            return self._open[kind]


def _slots(requests: np.ndarray) -> list[int]:
    return requests["slot"].tolist()


def _set_crcs(requests: np.ndarray, remainders: np.ndarray, pages: np.ndarray, owner: np.ndarray) -> None:
    """CRC32C of each request's pieces, one after the other."""
    joined = crc.join(remainders, pages, owner, len(requests))
    total = np.bincount(owner, pages, len(requests)).astype(np.int64)
    requests["crc"] = [crc.finish(*both) for both in zip(joined.tolist(), total.tolist(), strict=True)]
