"""The strategy of a run, as the trainer sees it: what is owed before a step, what follows an update, what a step ends.

Invariant: without a strategy and dense Adam every call is free and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tidegs.config import TrainConfig
from tidegs.device.base import BlockFlags, BlockUpdates
from tidegs.residency.passes import Pass
from tidegs.residency.pipeline import Owed
from tidegs.train.momentum import Momentum
from tidegs.train.noise import Noise, draw_relocation
from tidegs.train.rates import adam_settings
from tidegs.train.settle import Settler, events_of, is_owed
from tidegs.train.strategies.choose import strategy_of
from tidegs.train.strategies.settings import MCMCStrategy

if TYPE_CHECKING:
    from tidegs.train.session import Session


class Growth:
    """Of one session. `say` tells the user a sentence."""

    def __init__(self, session: Session, say: Callable[[str], None]) -> None:
        config = session.config
        self._session, self._strategy = session, strategy_of(config)
        self._settler: Settler | None = None
        self._noise: Noise | None = None
        layout, extent = session.budgets.layout, session.scene.extent
        self._dense = config.adam == "dense"
        if self._strategy is None and not self._dense:
            return
        momentum = Momentum(lambda s: adam_settings(config, s, extent), config.max_steps) if self._dense else None
        self._settler = Settler(
            self._strategy,
            momentum,
            session.store,
            session.device,
            layout,
            config.seed,
            extent,
            config.max_steps,
            config.max_gaussians,
            say,
        )
        if isinstance(self._strategy, MCMCStrategy):
            self._noise = Noise(self._strategy, config.seed, lambda s: adam_settings(config, s, extent))

    def gaussians(self) -> int:
        """Rows in use, where the step's settings depend on them."""
        return self._session.num_gaussians if self._noise else 0

    @property
    def owed(self) -> Owed | None:
        """Tells which blocks must be settled before a step; None where none ever are."""
        return self._settler.owed if self._settler else None

    def settle(self, p: Pass, step: int) -> None:
        """Settles the blocks of a pass of phase "settle" before `step`."""
        assert self._settler is not None
        self._session.residency.settled(p, self._settler.settle(p, step))

    def settle_all(self, step: int) -> None:
        """Settles every block that is owed an event, between two steps: for evaluation, export and the end."""
        if self._settler is not None and len(ids := self._settler.owed_blocks(step)):
            for p in self._session.residency.settle(ids):
                self.settle(p, step)

    def updated(self, p: Pass, updates: BlockUpdates | None) -> None:
        """A pass has updated its blocks."""
        if updates is None or self._settler is None:
            return
        table = self._session.store.table
        if self._dense:
            _count_steps(p, updates, table)
        if self._noise is not None:
            self._noise.apply(p, updates, self._session.device, table)

    def step_done(self, step: int) -> None:
        """A step has ended: a global draw may follow."""
        if isinstance(self._strategy, MCMCStrategy) and self._strategy.at(step):
            draw_relocation(self._strategy, self._session.store.table, self._session.config.seed, step)


def owes(config: TrainConfig, table: np.ndarray, step: int) -> int:
    """How many blocks of a run's store are owed something after `step` steps."""
    strategy = strategy_of(config)
    steps = [e.step for e in events_of(strategy, step)]
    return int(np.count_nonzero(is_owed(strategy, config.adam == "dense", steps, table, step)))


def _count_steps(p: Pass, updates: BlockUpdates, table: np.ndarray) -> None:
    """Notes in the table that blocks have taken a step of dense Adam. One without moments, of which no row was seen,
    has not: it is as it was."""
    last = (p.flags & BlockFlags.LAST_OF_STEP) != 0
    took = last & ((updates.visible > 0) | (table["adam"][p.ids] > 0))
    updates.touched &= took | ~last
    table["adam"][p.ids[took]] = p.step + 1
