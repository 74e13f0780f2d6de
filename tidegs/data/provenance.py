"""What identifies the input of a run. Invariant: nothing is read but the small files of the model, so it is cheap."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from tidegs.data.colmap import find_models
from tidegs.data.transforms import find_transforms

HASHED = ("cameras", "images", "transforms")  # stems; points can be many gigabytes
PARTS = ("cameras", "images", "points3D")


def describe_inputs(root: Path) -> dict[str, dict[str, Any]]:
    """For each file of the scene's models, by its path below `root`: bytes, mtime (seconds), and the SHA-256 of all but
    points. Files that vanish meanwhile are left out."""
    found = list(find_transforms(root))
    for folder in find_models(root):
        found += [p for stem in PARTS for end in (".bin", ".txt") if (p := folder / f"{stem}{end}").is_file()]
    return {str(path.relative_to(root)): fact for path in sorted(found) if (fact := describe_file(path)) is not None}


def describe_file(path: Path, hashed: bool | None = None) -> dict[str, Any] | None:
    """Bytes and mtime of a file, and its SHA-256 where `hashed` (None: where its name is in HASHED); None where it
    cannot be read."""
    try:
        status = path.stat()
        fact: dict[str, Any] = {"bytes": status.st_size, "mtime": round(status.st_mtime, 3)}
        if path.name.startswith(HASHED) if hashed is None else hashed:
            fact["sha256"] = _sha256(path)
        return fact
    except OSError:
        return None


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()
