"""The trainer's part of a snapshot. Invariant: with settings and scene, it is all that a resume needs. A store that was
made ahead of a run says in which frame its points are."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidegs.data.scene import WorldTransform
from tidegs.errors import StoreError
from tidegs.store.block_store import BlockStore
from tidegs.train.exposure import Exposures
from tidegs.train.poses import Poses

STATE_VERSION = 1


def write_state(step: int, exposures: Exposures | None = None, poses: Poses | None = None) -> bytes:
    """Steps done, and exposures and poses where they are trained, for a snapshot."""
    trained = {"exposures": exposures, "poses": poses}
    kept = {name: of.dump() for name, of in trained.items() if of is not None}
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
    return int(_read(store)["step"])


def restore(store: BlockStore, exposures: Exposures | None = None, poses: Poses | None = None) -> None:
    """Sets them as they were in the snapshot that is open; a snapshot without any leaves them. Raises StoreError."""
    state = _read(store)
    for name, of in (("exposures", exposures), ("poses", poses)):
        if of is not None and state.get(name) is not None:
            of.load(state[name], str(store.path))


def _read(store: BlockStore) -> dict[str, Any]:
    if not store.meta:
        return {"step": 0}
    try:
        state: dict[str, Any] = json.loads(store.meta)
        version, _ = state["version"], int(state["step"])
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{store.path}: the trainer's state in the snapshot cannot be read: {error!r}") from error
    if version != STATE_VERSION:
        raise StoreError(
            f"{store.path}: the snapshot has trainer state of version {version}, this tidegs reads {STATE_VERSION}; "
            "resume with the version that wrote it"
        )
    return state
