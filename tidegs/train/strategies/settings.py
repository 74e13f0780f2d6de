"""Densification strategies: names and defaults as in gsplat 1.5.3 (gsplat/strategy/default.py, mcmc.py).

Invariant: which event falls on which step follows from these settings alone, so a resume needs no list of events.
An event at step s comes after the optimizer update of step s, steps counted from 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

EventKind = Literal["refine", "reset", "relocate"]


class Event(NamedTuple):
    """One global action."""

    step: int
    kind: EventKind


@dataclass(frozen=True)
class DefaultStrategy:
    """Clone, split, prune and reset by image-space gradients (Kerbl et al. 2023).

    `absgrad` sums absolute gradients (AbsGS, arXiv 2404.10484; use a higher grow_grad2d, about 0.0008).
    `revised_opacity` gives the halves of a split less opacity (arXiv 2404.06109). Scales are compared with
    multiples of the scene's extent. gsplat's own class never resets opacities, because `0 & step > 0` in its condition
    is always false; here they are reset every `reset_every` steps, as its documentation says.
    """

    prune_opa: float = 0.005
    grow_grad2d: float = 0.0002
    grow_scale3d: float = 0.01
    grow_scale2d: float = 0.05
    prune_scale3d: float = 0.1
    prune_scale2d: float = 0.15
    refine_scale2d_stop_iter: int = 0
    refine_start_iter: int = 500
    refine_stop_iter: int = 15_000
    reset_every: int = 3000
    refine_every: int = 100
    pause_refine_after_reset: int = 0
    absgrad: bool = False
    revised_opacity: bool = False

    def scaled(self, k: float) -> DefaultStrategy:
        """The same with every step count times `k`, as gsplat's steps_scaler."""
        return replace(
            self,
            refine_scale2d_stop_iter=round(self.refine_scale2d_stop_iter * k),
            refine_start_iter=round(self.refine_start_iter * k),
            refine_stop_iter=round(self.refine_stop_iter * k),
            reset_every=max(1, round(self.reset_every * k)),
            refine_every=max(1, round(self.refine_every * k)),
            pause_refine_after_reset=round(self.pause_refine_after_reset * k),
        )

    @property
    def stat_components(self) -> int:
        """Planes of running statistics: sum of gradient norms, count, and the greatest radius where it is used."""
        return 3 if self.refine_scale2d_stop_iter > 0 else 2

    def collects(self, step: int) -> bool:
        """Whether a step adds to the statistics."""
        return step < self.refine_stop_iter

    def at(self, step: int) -> list[Event]:
        """The events of a step, in order."""
        out: list[Event] = []
        if step >= self.refine_stop_iter:
            return out
        late = step % self.reset_every >= self.pause_refine_after_reset
        if step > self.refine_start_iter and step % self.refine_every == 0 and late:
            out.append(Event(step, "refine"))
        if step > 0 and step % self.reset_every == 0:
            out.append(Event(step, "reset"))
        return out


@dataclass(frozen=True)
class MCMCStrategy:
    """Relocation of dead Gaussians, growth to a cap, and noise (Kheradmand et al. 2024, arXiv 2404.09591).

    `opacity_reg` and `scale_reg` weigh the mean opacity and the mean scale in the loss, as in gsplat's mcmc preset.
    """

    cap_max: int = 1_000_000
    noise_lr: float = 5e5
    refine_start_iter: int = 500
    refine_stop_iter: int = 25_000
    refine_every: int = 100
    min_opacity: float = 0.005
    opacity_reg: float = 0.01
    scale_reg: float = 0.01

    def scaled(self, k: float) -> MCMCStrategy:
        """The same with every step count times `k`, as gsplat's steps_scaler."""
        return replace(
            self,
            refine_start_iter=round(self.refine_start_iter * k),
            refine_stop_iter=round(self.refine_stop_iter * k),
            refine_every=max(1, round(self.refine_every * k)),
        )

    @property
    def stat_components(self) -> int:
        return 0

    def collects(self, step: int) -> bool:
        return False

    def at(self, step: int) -> list[Event]:
        """The events of a step."""
        due = self.refine_start_iter < step < self.refine_stop_iter and step % self.refine_every == 0
        return [Event(step, "relocate")] if due else []


Strategy = DefaultStrategy | MCMCStrategy


def events_between(strategy: Strategy, after: int, before: int) -> list[Event]:
    """Events of the steps after < step < before, in order."""
    return [e for step in range(after + 1, before) for e in strategy.at(step)]


def latest_event(strategy: Strategy, before: int) -> int:
    """The last step < `before` that has an event; 0 where there is none (step 0 has none)."""
    for step in range(before - 1, 0, -1):
        if strategy.at(step):
            return step
    return 0
