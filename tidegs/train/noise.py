"""MCMC's noise on means, and what its global draws go by: after the last pass of a step that needs a block.

Invariant: a block that was not needed for k steps gets their noise at once, with the variance of all of them; its
covariances and opacities did not change meanwhile, so that is what k single draws would amount to.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tidegs.device.base import AdamSettings, BlockFlags, BlockUpdates, Device, MeanNoise, PassBlocks
from tidegs.residency.passes import Pass
from tidegs.train.strategies.chance import stream
from tidegs.train.strategies.settings import MCMCStrategy

_NOISE = 1_000_003  # its random numbers are others than those of events


class Noise:
    """Of one run. `adam`: the optimizer of each step."""

    def __init__(self, strategy: MCMCStrategy, seed: int, adam: Callable[[int], AdamSettings]) -> None:
        self._strategy, self._seed, self._adam = strategy, seed, adam
        self._sums = np.zeros(1)  # sums of squared rates of the steps before

    def _sum(self, steps: int) -> float:
        if steps >= len(self._sums):
            more = [self._adam(s).lrs[0] ** 2 for s in range(len(self._sums) - 1, steps + 1023)]
            self._sums = np.concatenate([self._sums, self._sums[-1] + np.cumsum(more)])
        return float(self._sums[steps])

    def apply(self, p: Pass, updates: BlockUpdates, device: Device, table: np.ndarray) -> None:
        """Moves the means of the blocks whose step ends with this pass; corrects their `updates`, and their rows of
        the table."""
        last = np.flatnonzero(p.flags & BlockFlags.LAST_OF_STEP)
        if not len(last):
            return
        ids, blocks = p.ids[last], p.blocks
        chosen = PassBlocks(blocks.slots[last], blocks.counts[last], p.flags[last])
        variance = [self._sum(p.step + 1) - self._sum(e) for e in table["event"][ids].tolist()]
        scales = self._strategy.noise_lr * np.sqrt(np.maximum(variance, 0.0))
        keys = np.array([stream(self._seed + _NOISE, p.step, b) for b in ids.tolist()], np.uint64)
        noise = MeanNoise(keys, scales.astype(np.float32), self._strategy.min_opacity)
        found = device.add_noise(chosen, noise, self._adam(p.step))
        updates.lo[last], updates.hi[last], updates.extent[last] = found.lo, found.hi, found.extent
        updates.touched[last] = True
        updates.visible[last] = np.maximum(updates.visible[last], 1)  # rows moved, so bounds count
        table["event"][ids] = p.step + 1
        table["opacity_mass"][ids], table["dead"][ids] = found.mass, found.dead


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
