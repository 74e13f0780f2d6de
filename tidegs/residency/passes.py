"""From a step to its passes: what is rendered when, and which blocks each pass needs.

Invariant: the sequence of passes depends on the cameras, the bounds and the most blocks a pass may have, and on nothing
else; each needed block is in exactly one part of its camera.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from tidegs.device.base import BlockFlags, PassBlocks, RenderSettings, View
from tidegs.residency.schedule import Step
from tidegs.residency.visibility import Bounds, needed_blocks, view_planes

Phase = Literal["forward", "whole", "backward", "render", "settle"]
BACKWARD_PHASES = ("whole", "backward")


@dataclass(frozen=True)
class PassPlan:
    """One pass of one camera of a step: one part of the blocks that the camera needs.

    phase "whole": projection of the last part, then the image, the loss and its gradient in image space, then the
    update of that part. Each camera has exactly one, and a camera that fits has nothing else. Before it come "forward"
    passes, the projection of the other parts in ascending order, and after it "backward" passes, their update in
    descending order; so a block comes to the arena at most twice for a camera.
    phase "render": projection only, parts in ascending order; the image follows the last.
    phase "settle": of no camera: blocks to which events are owed, before the step that needs them.
    """

    step: int
    camera: int
    position: int  # of the camera in its batch
    phase: Phase
    part: int  # of the camera's blocks, counted in ascending order
    ids: np.ndarray  # int32 [n], blocks, ascending
    flags: np.ndarray  # uint8 [n], BlockFlags; zero in passes without a backward
    first_of_camera: bool
    last_of_camera: bool
    last_of_step: bool

    @property
    def has_backward(self) -> bool:
        return self.phase in BACKWARD_PHASES


@dataclass(frozen=True)
class Pass(PassPlan):
    """A pass whose blocks are resident, from when it is handed out until `Residency.done`."""

    blocks: PassBlocks


class PassPlanner:
    """Plans the passes of steps from bounds and views."""

    def __init__(
        self,
        bounds: Bounds,
        views: Callable[[int], View],
        settings: RenderSettings,
        capacity: int,
        inflate: float = 0.0,
    ) -> None:
        """`capacity`: most blocks a pass may have. `inflate`: 0 for exact sets, more for predictions."""
        self.bounds, self.views, self.settings = bounds, views, settings
        self.capacity, self.inflate = capacity, inflate
        self._planes: dict[int, tuple[View, np.ndarray]] = {}

    def planes(self, camera: int) -> np.ndarray:
        """Half-spaces of a whole view, kept while the view is the same object: 192 bytes a camera."""
        view, found = self.views(camera), self._planes.get(camera)
        if found is None or found[0] is not view:
            found = self._planes[camera] = (view, view_planes(view, self.settings, self.inflate))
        return found[1]

    def needed(self, camera: int) -> np.ndarray:
        """Blocks of a camera by the bounds as they are now, int32, ascending."""
        return needed_blocks(self.bounds, self.planes(camera))

    def step(self, step: Step, render: bool = False) -> list[PassPlan]:
        """The passes of a step, by the bounds as they are now."""
        parts = [
            _Part(position, camera, *part)
            for position, camera in enumerate(step.cameras)
            for part in self._camera(camera, render)
        ]
        return [
            PassPlan(
                step=step.index,
                camera=part.camera,
                position=part.position,
                phase=part.phase,
                part=part.part,
                ids=part.ids,
                flags=flags,
                first_of_camera=i == 0 or parts[i - 1].position != part.position,
                last_of_camera=i == len(parts) - 1 or parts[i + 1].position != part.position,
                last_of_step=i == len(parts) - 1,
            )
            for i, (part, flags) in enumerate(zip(parts, _all_flags(parts), strict=True))
        ]

    def _camera(self, camera: int, render: bool) -> list[tuple[Phase, int, np.ndarray]]:
        ids = self.needed(camera)
        if len(ids) <= self.capacity:
            return [("render" if render else "whole", 0, ids)]
        # Half the capacity, so that the next part can be loaded while one is in use.
        limit = max(1, self.capacity // 2)
        parts = list(enumerate(np.array_split(ids, -(-len(ids) // limit))))
        if render:
            return [("render", i, part) for i, part in parts]
        return [
            *[("forward", i, part) for i, part in parts[:-1]],
            ("whole", *parts[-1]),
            *[("backward", i, part) for i, part in parts[-2::-1]],
        ]


def settle_plans(step: int, ids: np.ndarray, capacity: int) -> list[PassPlan]:
    """Passes that bring the blocks `ids` (int32, ascending) to the arena once, before a step."""
    parts = np.array_split(ids, -(-len(ids) // (capacity if len(ids) <= capacity else max(1, capacity // 2))))
    return [
        PassPlan(step, -1, 0, "settle", i, part, np.zeros(len(part), np.uint8), False, False, False)
        for i, part in enumerate(parts)
    ]


class _Part(NamedTuple):
    position: int
    camera: int
    phase: Phase
    part: int
    ids: np.ndarray


_ALL_SET = np.full(1 << 14, BlockFlags.ALL, np.uint8)
_ALL_SET.flags.writeable = False


def _all_flags(parts: list[_Part]) -> list[np.ndarray]:
    """BlockFlags of each pass of a step."""
    if len(parts) == 1 and parts[0].phase == "whole" and len(parts[0].ids) <= len(_ALL_SET):
        return [_ALL_SET[: len(parts[0].ids)]]
    flags = [np.zeros(len(part.ids), np.uint8) for part in parts]
    backward = [i for i, part in enumerate(parts) if part.phase in BACKWARD_PHASES]
    _mark_ends(parts, flags, backward, BlockFlags.FIRST_OF_STEP, BlockFlags.LAST_OF_STEP)
    return flags


def _mark_ends(parts: list[_Part], flags: list[np.ndarray], which: list[int], first: int, last: int) -> None:
    """Marks the first and the last pass of each block among the passes `which`."""
    if not which:
        return
    ids = np.concatenate([parts[i].ids for i in which])
    marks = np.zeros(len(ids), np.uint8)
    marks[np.unique(ids, return_index=True)[1]] |= np.uint8(first)
    marks[len(ids) - 1 - np.unique(ids[::-1], return_index=True)[1]] |= np.uint8(last)
    at = 0
    for i in which:
        flags[i] |= marks[at : at + len(flags[i])]
        at += len(flags[i])
