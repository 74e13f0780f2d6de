"""What a disk may hold after power was cut: a replay of recorded changes in which those not yet synced are lost, kept,
reordered or torn."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.faults.fault_files import Event


@dataclass
class DiskFile:
    """`synced`: the bytes that are safe; `pending`: later writes and truncations."""

    synced: bytearray = field(default_factory=bytearray)
    pending: list[Event] = field(default_factory=list)


@dataclass(frozen=True)
class Cut:
    """How the changes that were not synced fare. `keep`: the probability of each to reach the disk; `torn`: bytes of
    the pieces in which a write may be torn (0: it is not); `shuffled`: out of order."""

    keep: float
    torn: int = 0
    shuffled: bool = False


CUTS = (
    Cut(0.0),
    Cut(1.0),
    Cut(0.5),
    Cut(0.5, shuffled=True),
    Cut(0.8, torn=512),
    Cut(0.5, torn=512),
    Cut(0.8, torn=4096, shuffled=True),
)


class Disk:
    """Follows the events of a RecordingFiles."""

    def __init__(self) -> None:
        self._names: dict[str, DiskFile] = {}  # as programs see them
        self._safe_names: dict[str, DiskFile] = {}
        self._pending_names: list[tuple[Event, DiskFile]] = []

    def follow(self, event: Event) -> None:
        """Takes the next event."""
        if event.what in ("write", "truncate"):
            self._names[event.name].pending.append(event)
        elif event.what in ("create", "rename", "unlink"):
            file = DiskFile() if event.what == "create" else self._names[event.name]
            _change_name(self._names, event, file)
            self._pending_names.append((event, file))
        elif event.what == "sync":
            file = self._names[event.name]
            for change in file.pending:
                _apply(file.synced, change)
            file.pending.clear()
        elif event.what == "sync_folder":
            for change, file in self._pending_names:
                if str(Path(change.name).parent) == event.name:
                    _change_name(self._safe_names, change, file)
            self._pending_names = [c for c in self._pending_names if str(Path(c[0].name).parent) != event.name]

    def is_settled(self) -> bool:
        """Everything is synced: all cuts look alike."""
        return not self._pending_names and not any(f.pending for f in self._names.values())

    def write_image(self, folder: Path, cut: Cut, rng: np.random.Generator) -> None:
        """Writes what is on the disk after the cut into the folder. Changes of names reach it in their order."""
        names = dict(self._safe_names)
        for change, file in self._pending_names:
            if rng.random() >= cut.keep:
                break
            _change_name(names, change, file)
        for name, file in names.items():
            data = bytearray(file.synced)
            for change in _surviving(file.pending, cut, rng):
                _apply(data, change)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)


def _surviving(pending: list[Event], cut: Cut, rng: np.random.Generator) -> list[Event]:
    """The changes, or pieces of writes, that reach the disk."""
    out: list[Event] = []
    for change in pending:
        if cut.torn and change.what == "write":
            for at in range(0, len(change.data), cut.torn):
                if rng.random() < cut.keep:
                    piece = change.data[at : at + cut.torn]
                    out.append(Event("write", change.name, change.offset + at, piece))
        elif rng.random() < cut.keep:
            out.append(change)
    if cut.shuffled:
        out = [out[i] for i in rng.permutation(len(out))]
    return out


def _change_name(names: dict[str, DiskFile], event: Event, file: DiskFile) -> None:
    if event.what == "create":
        names[event.name] = file
    elif event.what == "rename":
        names.pop(event.name, None)
        names[event.other] = file
    else:
        names.pop(event.name, None)


def _apply(data: bytearray, change: Event) -> None:
    if change.what == "truncate":
        del data[change.offset :]
        data.extend(bytes(change.offset - len(data)))
        return
    end = change.offset + len(change.data)
    data.extend(bytes(max(0, end - len(data))))
    data[change.offset : end] = change.data
