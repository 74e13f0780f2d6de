"""A result as its strategy means it: what it owes blocks that rest is settled before it is shown.

Invariant: the result stays as it is. Settled blocks go to free extents of the store, and no snapshot is committed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tidegs.config import TrainConfig
from tidegs.data.scene import Scene
from tidegs.device.base import View
from tidegs.errors import SceneError
from tidegs.store.block_store import BlockStore
from tidegs.train.growth import Growth, owes
from tidegs.train.log import say
from tidegs.train.result import ResultFolder
from tidegs.train.session import Session, open_scene
from tidegs.train.state import steps_done


@contextmanager
def settled_session(
    scene: Scene, result: ResultFolder, config: TrainConfig, quiet: bool, views: list[View] | None = None
) -> Iterator[Session]:
    """A session over the last snapshot for looking at it. Where it is owed anything and the store can be written, that
    is settled; where it cannot, the user is told."""
    path = result.store_path()
    with BlockStore.open(path, readonly=True) as peek:
        step, count = steps_done(peek), owes(config, peek.table, steps_done(peek))
    if count and not os.access(path, os.W_OK):
        say(_left_out(count, f"{path} cannot be written"), quiet)
        count = 0
    with Session(scene, path, config, result, readonly=not count, views=views) as session:
        if count:
            Growth(session, lambda text: say(text, quiet)).settle_all(step)
            session.residency.flush()
        yield session


@contextmanager
def settled_store(result: ResultFolder, quiet: bool) -> Iterator[BlockStore]:
    """The store of a result, likewise; its scene is looked at only where something is owed."""
    path, config = result.store_path(), result.config()
    with BlockStore.open(path, readonly=True) as store:
        count = owes(config, store.table, steps_done(store))
        if not count:
            yield store
            return
    try:
        scene = open_scene(Path(result.read_run().scene), config, quiet=True)
    except SceneError as error:
        say(_left_out(count, f"the scene is needed for it ({error})"), quiet)
        with BlockStore.open(path, readonly=True) as store:
            yield store
        return
    with settled_session(scene, result, replace(config, device="cpu"), quiet) as session:
        yield session.store


def _left_out(count: int, why: str) -> str:
    return f"warning: {count:,} blocks are shown without what the strategy owes them: {why}"
