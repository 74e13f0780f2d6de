"""Writing files so that a crash leaves the old file or the new one, never half of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write and seek in, under a temporary name; at the end it is synced and takes the place of `path`, and
    the folder is synced. After an error nothing is left of it."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a whole file with `replacing`; makes its folder where that is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(data)


def write_json(path: Path, value: Any) -> None:
    """JSON with sorted layout as given, two spaces of indent and a newline at the end."""
    write_bytes(path, (json.dumps(value, indent=2) + "\n").encode())
