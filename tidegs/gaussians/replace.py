"""Files that appear under their name only when they are whole, and work space on disk that nobody else sees.

Invariant: after an error, a kill or a power cut there is the old file or the new one, and nothing else.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np

from tidegs import files
from tidegs.errors import FormatError

_COPY = 1 << 20


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write and seek in; at the end it is synced and takes the place of `path`. Raises FormatError where the
    disk does not take it."""
    try:
        with files.replacing(path) as file:
            yield file
    except OSError as error:
        raise FormatError(f"{path}: the file cannot be written: {error.strerror}") from error


class Sections:
    """Streams of bytes, each in a nameless file beside `path`, for formats that store attribute after attribute."""

    def __init__(self, path: Path, names: tuple[str, ...]) -> None:
        self._path = path
        self._files: dict[str, BinaryIO] = {}
        with ExitStack() as stack:
            try:
                for name in names:
                    file = tempfile.TemporaryFile(dir=path.parent)  # noqa: SIM115  (closed by the stack)
                    self._files[name] = stack.enter_context(file)  # type: ignore[assignment]
            except OSError as error:
                raise FormatError(f"{path}: the file cannot be written: {error.strerror}") from error
            self._stack = stack.pop_all()

    def add(self, name: str, values: np.ndarray) -> None:
        """Appends the bytes of an array. Raises FormatError where the disk does not take it."""
        try:
            self._files[name].write(np.ascontiguousarray(values).data)
        except OSError as error:
            raise FormatError(f"{self._path}: the file cannot be written: {error.strerror}") from error

    def parts(self, name: str, nbytes: int = _COPY) -> Iterator[bytes]:
        """What was added, from the start, at most `nbytes` at a time."""
        file = self._files[name]
        file.flush()
        file.seek(0)
        while part := file.read(nbytes):
            yield part

    def array(self, name: str, dtype: str, columns: int) -> np.ndarray:
        """What was added, mapped: [rows, columns]."""
        file = self._files[name]
        file.flush()
        if file.seek(0, os.SEEK_END) == 0:
            return np.empty((0, columns), dtype)
        return np.memmap(file, dtype, "r").reshape(-1, columns)

    def __enter__(self) -> Sections:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
