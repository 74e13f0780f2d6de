"""How much memory each tier gets: from the settings, or from the machine when they say "auto".

Invariant: the choice never changes what is computed, only how fast.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tidegs.config import TrainConfig, parse_memory
from tidegs.errors import CapacityError
from tidegs.gaussians.layout import RecordLayout
from tidegs.machine import available_memory, human
from tidegs.train.strategies.choose import strategy_of

STAGING_SLOTS = 16  # host slots that only pass blocks through between the store and the arena
GROWTH = 4  # times the blocks of its seeds, which a scene that grows is expected to have at the end
IN_CORE_SHARE = 0.5  # of the free memory: a scene up to this is kept whole
ARENA_SHARE, HOST_SHARE = 0.3, 0.25  # of the free memory, otherwise


@dataclass(frozen=True)
class Budgets:
    """Slots of each tier and why."""

    layout: RecordLayout
    blocks: int  # of the scene
    arena_slots: int
    host_slots: int
    reason: str
    host_keeps: bool = True  # else there is no host cache (host_memory 0), and its slots only pass blocks through

    @property
    def in_core(self) -> bool:
        """The arena holds every block."""
        return self.arena_slots >= self.blocks

    @property
    def arena_bytes(self) -> int:
        return self.arena_slots * self.layout.slot_nbytes

    @property
    def host_bytes(self) -> int:
        return self.host_slots * self.layout.slot_nbytes

    @property
    def scene_bytes(self) -> int:
        """What the whole scene would take in slots."""
        return self.blocks * self.layout.slot_nbytes

    def sentence(self) -> str:
        """What was chosen, for the user."""
        where = "in core" if self.in_core else "out of core"
        host = "host cache" if self.host_keeps else "no host cache but for passing through"
        return (
            f"training {where}: {self.blocks} blocks of {self.layout.capacity} ({human(self.scene_bytes)}), "
            f"arena {self.arena_slots} blocks ({human(self.arena_bytes)}), "
            f"{host} {self.host_slots} blocks ({human(self.host_bytes)}); {self.reason}"
        )


def slot_layout(config: TrainConfig, record: RecordLayout) -> RecordLayout:
    """The layout of a run's slots: the store's record, and gradients where a step has several cameras."""
    return replace(record, with_grads=config.batch_size > 1)


def choose_budgets(
    config: TrainConfig,
    record: RecordLayout,
    blocks: int,
    free: int | None = None,
    device_slots: Callable[[RecordLayout], int] | None = None,
) -> Budgets:
    """Slots of the arena and the host cache for a store of `blocks` blocks with records like `record`.

    `free` is the memory to divide where a setting is "auto" (default: what the machine has). `device_slots`: how many
    slots a device with memory of its own has room for, where device_memory is "auto". Percentages are of the scene.
    Raises CapacityError when a tier would have no slot.
    """
    free = available_memory() if free is None else free
    layout = slot_layout(config, record)
    room = blocks if strategy_of(config) is None else max(blocks, _blocks_of(config, record, free, layout))
    if config.device_memory == "auto" and device_slots is not None:
        reason = "the arena is what the GPU has free, less what rendering needs"
        arena = device_slots(layout)
    elif config.device_memory == "auto":
        fits = blocks * (1 if room == blocks else GROWTH) * layout.slot_nbytes <= free * IN_CORE_SHARE
        reason = f"{human(free)} of memory are free"
        arena = int(free * (IN_CORE_SHARE if fits else ARENA_SHARE)) // layout.slot_nbytes
    else:
        reason = "as asked"
        arena = _slots(config.device_memory, blocks, layout, "device_memory")
    arena = min(arena, room)
    keeps = config.host_memory == "auto" or parse_memory(config.host_memory, 1 << 40, "host_memory") > 0
    if not keeps:
        host = STAGING_SLOTS
    elif config.host_memory != "auto":
        host = _slots(config.host_memory, blocks, layout, "host_memory")
    elif arena >= room:
        host = STAGING_SLOTS
    else:
        host = min(room, int(free * HOST_SHARE) // layout.slot_nbytes)
    return Budgets(layout, blocks, arena, max(host, 1), reason, keeps)


def _blocks_of(config: TrainConfig, record: RecordLayout, free: int, layout: RecordLayout) -> int:
    """The most blocks that a scene that grows is given room for in memory; blocks are at least about half full."""
    most = config.cap_max if config.strategy == "mcmc" else config.max_gaussians
    room = free // layout.slot_nbytes
    return min(room, -(-2 * most // record.capacity)) if most else room


def _slots(text: str, blocks: int, layout: RecordLayout, name: str) -> int:
    slots = parse_memory(text, blocks * layout.slot_nbytes, name) // layout.slot_nbytes
    if slots < 1:
        raise CapacityError(
            f"{name} {text} holds no block of {human(layout.slot_nbytes)}; give more, or ingest with a smaller "
            "block_capacity"
        )
    return slots
