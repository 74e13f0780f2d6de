"""Turns failures of file operations into typed errors, and remembers the ones after which nothing can be trusted.

Invariant: once an fsync or the switch to a new snapshot has failed, every later operation of this object is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidegs.errors import StoreError


class Guard:
    """One for each open store."""

    def __init__(self, folder: Path, readonly: bool) -> None:
        self._folder = folder
        self._readonly = readonly
        self._poison: str | None = None

    def check(self, writing: bool = False) -> None:
        """StoreError where the store is closed, poisoned, or open for reading only and `writing`."""
        if self._poison:
            raise StoreError(f"{self._folder} cannot be used: {self._poison}")
        if writing and self._readonly:
            raise StoreError(f"{self._folder} was opened for reading only: open it for writing")

    def closed(self) -> None:
        """Refuses what follows."""
        self._poison = self._poison or "it is closed"

    @contextmanager
    def errors(self, path: Path, doing: str) -> Iterator[None]:
        """OSError becomes StoreError naming the file."""
        try:
            yield
        except OSError as e:
            raise StoreError(f"{path}: {doing} failed: {e.strerror or e}") from e

    @contextmanager
    def vital(self, path: Path, doing: str) -> Iterator[None]:
        """The same for operations after whose failure, or interruption, nobody knows what is on the disk."""
        try:
            with self.errors(path, doing):
                yield
        except BaseException as e:
            self._poison = f"{doing} failed earlier ({path}): open it again to go on from its last snapshot"
            if isinstance(e, StoreError):
                raise StoreError(f"{e}; nothing more is written: open the store again") from e.__cause__
            raise
