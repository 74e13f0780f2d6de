"""The trainer's part of a snapshot. Invariant: with settings and scene, it is all that a resume needs. A store that was
made ahead of a run says in which frame its points are."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

from tidegs.data.scene import WorldTransform
from tidegs.errors import StoreError
from tidegs.store.block_store import BlockStore
from tidegs.train.exposure import Exposures

STATE_VERSION = 1


def write_state(step: int, exposures: Exposures | None = None) -> bytes:
    """Steps done, and exposures where they are trained, for a snapshot."""
    kept = {} if exposures is None else {"exposures": exposures.dump()}
    return json.dumps({"version": STATE_VERSION, "step": step, **kept}).encode()


@dataclass(frozen=True)
class MadeAhead:
    """What a store that was made ahead of a run says of what it holds."""

    frame: WorldTransform  # to the frame of its points
    trained_degree: int | None = None  # SH degree of the Gaussians that it was made of; None: of points

    def dump(self) -> bytes:
        """As `meta` of the store: no step is done."""
        frame = [*map(float, self.frame.center), float(self.frame.scale)]
        state = {"version": STATE_VERSION, "step": 0, "frame": frame, "trained_degree": self.trained_degree}
        return json.dumps(state).encode()


def made_ahead(store: BlockStore) -> MadeAhead | None:
    """None where the store was not made ahead of a run, or was trained since."""
    if steps_done(store) or not store.meta:
        return None
    state = json.loads(store.meta)
    frame = state.get("frame")
    return MadeAhead(WorldTransform(np.array(frame[:3]), frame[3]), state.get("trained_degree")) if frame else None


def steps_done(store: BlockStore) -> int:
    """Steps done in the snapshot that is open; 0 for a store that was only ingested. Raises StoreError."""
    return _read(store)[0]


def restore_exposures(store: BlockStore, exposures: Exposures) -> None:
    """Sets them as they were in the snapshot that is open; a snapshot without any leaves them. Raises StoreError."""
    text = _read(store)[1]
    if text is not None:
        exposures.load(text, str(store.path))


def _read(store: BlockStore) -> tuple[int, str | None]:
    if not store.meta:
        return 0, None
    try:
        state = json.loads(store.meta)
        version, step, exposures = state["version"], int(state["step"]), state.get("exposures")
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{store.path}: the trainer's state in the snapshot cannot be read: {error!r}") from error
    if version != STATE_VERSION:
        raise StoreError(
            f"{store.path}: the snapshot has trainer state of version {version}, this tidegs reads {STATE_VERSION}; "
            "resume with the version that wrote it"
        )
    return step, exposures
