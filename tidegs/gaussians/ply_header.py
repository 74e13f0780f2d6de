"""The header of a PLY file (Turk 1994): elements, their properties, comments, and where the data begins.

Invariant: only the header is read; whatever is wrong with it is one FormatError.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tidegs.errors import FormatError

_MAX_HEADER = 1 << 20  # bytes; a header of Gaussians has about 2 KiB
_ORDERS = {"binary_little_endian": "<", "binary_big_endian": ">", "ascii": "="}
_TYPES = {
    **{"char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4"},
    **{"int8": "i1", "uint8": "u1", "int16": "i2", "uint16": "u2", "int32": "i4", "uint32": "u4"},
    **{"float": "f4", "double": "f8", "float32": "f4", "float64": "f8"},
}


@dataclass(frozen=True)
class Element:
    """One element: `dtype` is a row of its scalar properties, in file order; None where a property is a list."""

    name: str
    count: int
    dtype: np.dtype | None


@dataclass(frozen=True)
class PlyHeader:
    """What the header states; `data_offset` is the first byte behind it."""

    ascii: bool
    elements: tuple[Element, ...]
    comments: tuple[str, ...]
    data_offset: int


def read_header(path: Path) -> PlyHeader:
    """Parses the header. Raises FormatError where it is not one, OSError where the file cannot be read."""
    with open(path, "rb") as file:
        start = file.read(_MAX_HEADER)
    lines, offset = _lines(path, start)
    if len(lines) < 2 or not lines[1].startswith("format "):
        raise FormatError(f"{path}: line 2 of the PLY header is not its format: the file is damaged, export it again")
    words = lines[1].split()
    if len(words) != 3 or words[1] not in _ORDERS or words[2] != "1.0":
        raise FormatError(f"{path}: the PLY format is {lines[1][7:]!r}, which is none of {', '.join(_ORDERS)} 1.0")
    order = _ORDERS[words[1]]
    elements: list[tuple[str, int, list[tuple[str, str] | None]]] = []
    comments = []
    for line in lines[2:]:
        keyword, _, rest = line.partition(" ")
        if keyword == "comment":
            comments.append(rest.strip())
        elif keyword == "element":
            elements.append((*_element(path, rest), []))
        elif keyword == "property" and elements:
            elements[-1][2].append(_property(path, rest, order))
        elif keyword not in ("", "obj_info"):
            raise FormatError(f"{path}: the PLY header has the line {line[:60]!r}, which no PLY header has")
    made = tuple(Element(name, count, _row(path, name, properties)) for name, count, properties in elements)
    return PlyHeader(words[1] == "ascii", made, tuple(comments), offset)


def _lines(path: Path, start: bytes) -> tuple[list[str], int]:
    """Lines of the header without `end_header`, and the offset behind it."""
    if not start.startswith((b"ply\n", b"ply\r")):
        raise FormatError(f"{path}: this is no PLY file: it does not begin with 'ply'")
    at = 0
    lines: list[str] = []
    while (end := start.find(b"\n", at)) >= 0:
        line = start[at:end].decode("utf-8", "replace").strip()
        at = end + 1
        if line == "end_header":
            return lines, at
        lines.append(line)
    raise FormatError(f"{path}: the PLY header has no end_header: the file is truncated, export it again")


def _element(path: Path, text: str) -> tuple[str, int]:
    words = text.split()
    if len(words) != 2 or not words[1].isdecimal():
        raise FormatError(f"{path}: the PLY header has the element {text[:60]!r}, which is no name and count")
    return words[0], int(words[1])


def _property(path: Path, text: str, order: str) -> tuple[str, str] | None:
    """(name, numpy type), or None for a list."""
    words = text.split()
    if len(words) == 4 and words[0] == "list":
        return None
    if len(words) != 2 or words[0] not in _TYPES:
        raise FormatError(f"{path}: the PLY header has the property {text[:60]!r}, which is no known type and name")
    return words[1], order + _TYPES[words[0]]


def _row(path: Path, element: str, properties: list[tuple[str, str] | None]) -> np.dtype | None:
    scalars = [p for p in properties if p is not None]
    names = [name for name, _ in scalars]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise FormatError(f"{path}: the PLY header has the property {twice!r} of {element!r} twice")
    return np.dtype(scalars) if len(scalars) == len(properties) else None
