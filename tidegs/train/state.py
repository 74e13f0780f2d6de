"""The trainer's part of a snapshot. Invariant: with settings and scene, it is all that a resume needs."""

from __future__ import annotations

import json

from tidegs.errors import StoreError
from tidegs.store.block_store import BlockStore

STATE_VERSION = 1


def write_state(step: int) -> bytes:
    """Steps done, for a snapshot."""
    return json.dumps({"version": STATE_VERSION, "step": step}).encode()


def steps_done(store: BlockStore) -> int:
    """Steps done in the snapshot that is open; 0 for a store that was only ingested. Raises StoreError."""
    if not store.meta:
        return 0
    try:
        state = json.loads(store.meta)
        version, step = state["version"], int(state["step"])
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{store.path}: the trainer's state in the snapshot cannot be read: {error!r}") from error
    if version != STATE_VERSION:
        raise StoreError(
            f"{store.path}: the snapshot has trainer state of version {version}, this tidegs reads {STATE_VERSION}; "
            "resume with the version that wrote it"
        )
    return step
