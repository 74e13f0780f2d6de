"""Finds the image files that a model's names mean. Invariant: a file is found by its name, never by its order, and a
name that two files could mean finds none."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable
from pathlib import Path

_EXTENSIONS = frozenset(
    (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".tif", ".tiff", ".bmp", ".avif", ".ppm", ".pgm", ".pnm",
     ".gif", ".jp2", ".tga")
)  # fmt: skip


class ImageFolder:
    """The files below a folder, listed once (links followed, hidden folders and files left out)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._names = frozenset(_walk(root))
        self._indexes: list[dict[str, str | None]] = []

    def find(self, name: str) -> Path | None:
        """The file of an image name: exactly, else with / for \\, else as the same text in another Unicode form or
        case, else with another extension. Names that lead out of the folder are taken as they are."""
        if name in self._names:
            return self.root / name
        if name.startswith(("/", "../")):
            return path if (path := self.root / name).is_file() else None
        for level, key in enumerate(_KEYS):
            if level == len(self._indexes):
                self._indexes.append(_index(self._names, key))
            found = self._indexes[level].get(key(name))
            if found is not None:
                return self.root / found
        return None


def _walk(root: Path) -> list[str]:
    out, seen, stack = [], set(), [""]
    while stack:
        folder = stack.pop()
        try:
            with os.scandir(root / folder) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    relative = f"{folder}{entry.name}"
                    if not entry.is_dir():
                        out.append(relative)
                    elif (real := os.path.realpath(entry.path)) not in seen:
                        seen.add(real)
                        stack.append(relative + "/")
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
    return out


def _slashes(name: str) -> str:
    return os.path.normpath(name.replace("\\", "/"))


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", _slashes(name)).casefold()


def _stem(name: str) -> str:
    stem, extension = os.path.splitext(_folded(name))
    return stem if extension in _EXTENSIONS else stem + extension


_KEYS: tuple[Callable[[str], str], ...] = (_slashes, _folded, _stem)


def _index(names: frozenset[str], key: Callable[[str], str]) -> dict[str, str | None]:
    out: dict[str, str | None] = {}
    for name in names:
        if key is _stem and os.path.splitext(name)[1].lower() not in _EXTENSIONS:
            continue
        k = key(name)
        out[k] = None if k in out else name
    return out
