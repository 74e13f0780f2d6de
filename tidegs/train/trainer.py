"""The training loop: steps, passes, snapshots, evaluation and exports at their steps.

Invariant: what a step computes depends on settings, scene and step number alone. So a run that stops at a snapshot and
goes on gives the same bits as one that never stopped.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tidegs.device.base import View
from tidegs.files import write_json
from tidegs.train.exposure import Exposures
from tidegs.train.growth import Growth
from tidegs.train.log import TrainLog
from tidegs.train.passes import PassRunner, StepSettings
from tidegs.train.poses import Poses
from tidegs.train.rates import adam_settings, render_settings
from tidegs.train.session import Session
from tidegs.train.sparse_depths import SparseDepths
from tidegs.train.state import restore, steps_done, write_state


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    step: int
    finished: bool
    seconds: float


class Trainer:
    """Trains a session from a step (counted from 0) to `config.max_steps`."""

    def __init__(
        self,
        session: Session,
        log: TrainLog,
        at_step: Callable[[int], None] | None = None,
        between_steps: Sequence[Callable[[], None]] = (),
    ) -> None:
        """`at_step(n)` is called after n steps where an evaluation or an export is due, with all blocks committed;
        `between_steps` after every step; they may render."""
        self.session, self.log, self._at_step, self._between_steps = session, log, at_step, between_steps
        self.step = steps_done(session.store)
        self._interrupted = False
        self._begun = time.monotonic()
        self._last_snapshot = self._begun
        self.order = session.order()
        self.planning_seconds = time.monotonic() - self._begun
        scene, config, views = session.scene, session.config, session.views
        self._exposures = Exposures(len(views), config.exposure_lr, config.max_steps) if config.exposure else None
        self._poses = Poses(scene, views, config) if config.pose_opt else None
        restore(session.store, self._exposures, self._poses)
        self._views: Sequence[View] = views if self._poses is None else self._poses
        depths = SparseDepths(scene, config.depth_lambda) if config.depth_loss else None
        self._runner = PassRunner(
            session.device, self._views.__getitem__, session.target, self._exposures, depths, self._poses
        )
        self._growth = Growth(session, log.say)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    def run(self) -> Outcome:
        """Trains until the last step or Ctrl-C; commits a snapshot either way."""
        config = self.session.config
        with self._catching_signals():
            while self.step < config.max_steps and not self._interrupted:
                self._train_until(self._next_stop())
                stop = self.step in {*config.eval_steps, *config.ply_steps, config.max_steps}
                if stop:
                    self._growth.settle_all(self.step)
                if stop or self._interrupted or self._snapshot_due():
                    self.snapshot()
                if stop and self._at_step:
                    self._at_step(self.step)
        return Outcome(self.step, self.step >= config.max_steps, self.seconds)

    def _next_stop(self) -> int:
        config = self.session.config
        stops = {config.max_steps, *config.eval_steps, *config.save_steps, *config.ply_steps}
        return min(s for s in stops if s > self.step)

    def _snapshot_due(self) -> bool:
        config = self.session.config
        late = config.snapshot_minutes and time.monotonic() - self._last_snapshot >= 60 * config.snapshot_minutes
        return bool(late) or self.step in config.save_steps

    def _train_until(self, stop: int) -> None:
        """Runs steps up to `stop`; returns early, between two steps, when a snapshot is due."""
        session = self.session
        losses = 0.0
        session.images.announce(c for step in self.order.steps(self.step, stop) for c in step.cameras)
        for one in session.residency.run(self.order.steps(self.step, stop), self._views, self._growth.owed):
            if one.phase == "settle":
                self._growth.settle(one, one.step)
                continue
            settings = self._settings(one.step)
            log_now = self.log.due(one.step + 1)
            updates = self._runner.run(one, settings, with_mse=log_now)
            self._growth.updated(one, updates)
            session.residency.done(one, updates)
            if one.phase == "whole" and self._runner.loss is not None:
                losses += self._runner.loss.total / session.config.batch_size
            if one.last_of_step:
                self.step = one.step + 1
                self._growth.step_done(one.step)
                self.log.step(losses)
                losses = 0.0
                if log_now:
                    self.log.line(self.step, self._runner.mse, session.tiers())
                for call in self._between_steps:
                    call()
                if self._interrupted or self._snapshot_due():
                    break

    def _settings(self, step: int) -> StepSettings:
        config = self.session.config
        return StepSettings(
            render_settings(config, step),
            adam_settings(config, step, self.session.scene.extent, self._growth.gaussians()),
            config.ssim_lambda,
            config.batch_size,
            step,
        )

    def snapshot(self) -> None:
        """Writes every changed block and commits; afterwards a crash loses nothing up to here."""
        session = self.session
        session.residency.flush()
        generation = session.store.commit(write_state(self.step, self._exposures, self._poses))
        self._last_snapshot = time.monotonic()
        self.log.flush()
        if self._poses is not None:
            write_json(session.result.poses, self._poses.as_json())
        write_json(session.result.ckpts / "latest.json", {"step": self.step, "snapshot": generation})

    @contextmanager
    def _catching_signals(self) -> Iterator[None]:
        """The first Ctrl-C (or SIGTERM) stops after the step at hand; the second one at once."""

        def stop(number: int, frame: Any) -> None:
            if self._interrupted:
                raise KeyboardInterrupt
            self._interrupted = True
            self.log.say("stopping after this step, with a snapshot (again: at once, back to the last snapshot)")

        try:
            before = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not the main thread: whoever runs us handles signals
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
