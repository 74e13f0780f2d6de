"""MCMC's noise on means, and what its global draws go by: after the last pass of a step that needs a block.

Invariant: a block that was not needed for k steps gets their noise at once, with the variance of all of them; its
covariances and opacities did not change meanwhile, so that is what k single draws would amount to.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tidegs.device.base import BlockFlags, BlockUpdates
from tidegs.gaussians.layout import RecordLayout
from tidegs.residency.passes import Pass
from tidegs.train.strategies.chance import stream
from tidegs.train.strategies.relocate import add_noise, opacity_mass
from tidegs.train.strategies.settings import MCMCStrategy

# Of a slot, its rows in use, and the step to come: fills least and greatest mean, returns the greatest scale.
RowBounds = Callable[[np.ndarray, int, int, np.ndarray, np.ndarray], float]
_NOISE = 1_000_003  # its random numbers are others than those of events


class Noise:
    """Of one run. `rates`: the means' learning rate of each step, in scene units."""

    def __init__(self, strategy: MCMCStrategy, layout: RecordLayout, seed: int, rates: Callable[[int], float]) -> None:
        self._strategy, self._layout, self._seed, self._rates = strategy, layout, seed, rates
        self._sums = np.zeros(1)  # sums of squared rates of the steps before

    def _sum(self, steps: int) -> float:
        if steps >= len(self._sums):
            more = [self._rates(s) ** 2 for s in range(len(self._sums) - 1, steps + 1023)]
            self._sums = np.concatenate([self._sums, self._sums[-1] + np.cumsum(more)])
        return float(self._sums[steps])

    def apply(
        self, p: Pass, updates: BlockUpdates, slots: list[np.ndarray], table: np.ndarray, bounds: RowBounds
    ) -> None:
        """Moves the means of the blocks whose step ends with this pass; corrects their `updates`, and their rows of
        the table. `slots`: host memory of the pass's blocks, uint8; at least what `bounds` reads, and `base`."""
        floor = np.float32(self._strategy.min_opacity)
        for i in np.flatnonzero(p.flags & BlockFlags.LAST_OF_STEP).tolist():
            block, count = int(p.ids[i]), int(p.blocks.counts[i])
            base = self._layout.view(slots[i], "base")
            variance = self._sum(p.step + 1) - self._sum(int(table["event"][block]))
            scaler = np.float32(self._strategy.noise_lr * max(variance, 0.0) ** 0.5)
            key = stream(self._seed + _NOISE, p.step, block)
            add_noise(base, count, scaler, key)
            updates.extent[i] = bounds(slots[i], count, p.step + 1, updates.lo[i], updates.hi[i])
            updates.touched[i] = True
            updates.visible[i] = max(int(updates.visible[i]), 1)  # rows moved, so bounds count
            table["event"][block] = p.step + 1
            table["opacity_mass"][block], table["dead"][block] = opacity_mass(base, count, floor)


def draw_relocation(strategy: MCMCStrategy, table: np.ndarray, seed: int, step: int) -> None:
    """The event "relocate": gives every dead row, and the rows by which the scene grows, to blocks by their opacity
    mass. Rows are drawn when the block settles. Changes the table."""
    rows = int(table["count"].sum() - table["doomed"].sum() + table["relocated"].sum() + table["added"].sum())
    dead = int(table["dead"].sum())
    mass = table["opacity_mass"].astype(np.float64) * (table["count"] > 0)
    if mass.sum() <= 0:
        return
    chance = np.random.Generator(np.random.Philox(key=[seed, step]))
    shares = mass / mass.sum()
    table["doomed"] += table["dead"]
    table["dead"] = 0
    table["relocated"] += chance.multinomial(dead, shares).astype(np.int32)
    growth = max(0, min(strategy.cap_max, int(1.05 * rows)) - rows)
    table["added"] += chance.multinomial(growth, shares).astype(np.int32)
