"""What moved, how long it took, and how much of that compute did not have to wait for.

Invariant: counters only observe; nothing in residency decides by them.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from tidegs import timeline

LINKS = ("read", "upload", "download", "write")


class Counters:
    """Sums since the start; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._origin = time.perf_counter()
        self.bytes = dict.fromkeys(LINKS, 0)
        self.blocks = dict.fromkeys(LINKS, 0)
        self.seconds = dict.fromkeys(LINKS, 0.0)
        self.passes = 0
        self.steps = 0
        self.hits = 0  # blocks of passes that were in the arena, or on their way, when the pass was due
        self.misses = 0  # blocks that no prediction had foreseen
        self.rows_needed = 0  # of the blocks that steps needed
        self.rows_visible = 0  # of those, rows that a camera of the step saw
        self.stalls = 0  # passes that had to wait
        self.stall_seconds = 0.0
        self.plan_seconds = 0.0
        self.dropped_blocks = 0
        self.slots = {"arena": 0, "host": 0}  # that held blocks when the last pass was handed out
        self.peak_slots = {"arena": 0, "host": 0}
        self._pass_seconds = 0.0  # of late
        self._busy_since = 0.0
        self._busy_links = 0
        self._busy_seconds = 0.0

    def now(self) -> float:
        return time.perf_counter() - self._origin

    def begin(self) -> float:
        """A transfer starts."""
        with self._lock:
            now = self.now()
            if self._busy_links == 0:
                self._busy_since = now
            self._busy_links += 1
            return now

    def end(self, links: tuple[str, ...], start: float, blocks: int, nbytes: int) -> None:
        """The transfer that began at `start` ended; it went over all of `links`."""
        with self._lock:
            now = self.now()
            self._busy_links -= 1
            if self._busy_links == 0:
                self._busy_seconds += now - self._busy_since
            for link in links:
                self.seconds[link] += now - start
                self.bytes[link] += nbytes
                self.blocks[link] += blocks
        self.event(links[0], start, now)

    def event(self, name: str, start: float, end: float) -> None:
        """Adds to the timeline, if one is kept."""
        timeline.add(name, self._origin + start, self._origin + end)

    def stall(self, start: float, end: float) -> None:
        """Compute waited for transfers."""
        self.stalls += 1
        self.stall_seconds += end - start
        self.event("stall", start, end)

    def computed(self, start: float) -> None:
        """A pass that was handed out at `start` is done."""
        took = self.now() - start
        self.event("compute", start, start + took)
        self._pass_seconds += (took - self._pass_seconds) * (0.1 if self._pass_seconds else 1.0)

    def hideable_blocks(self) -> float:
        """How many blocks the slowest link could move in the time of a pass."""
        with self._lock:
            seconds = max(self.seconds.values())
            return self._pass_seconds * self.blocks["upload"] / seconds if seconds > 0 else 0.0

    def peak(self, arena: int, host: int) -> None:
        """Slots that hold blocks now."""
        self.slots = {"arena": arena, "host": host}
        self.peak_slots["arena"] = max(self.peak_slots["arena"], arena)
        self.peak_slots["host"] = max(self.peak_slots["host"], host)

    def snapshot(self) -> dict[str, Any]:
        """All figures as plain values. `overlap`: the share of the time in which something was moving that compute did
        not spend waiting; 1 where nothing moved. `amplification`: rows of needed blocks for each visible row."""
        with self._lock:
            busy = self._busy_seconds + (self.now() - self._busy_since if self._busy_links else 0.0)
            overlap = 1.0 if busy <= 0 else min(1.0, max(0.0, 1 - self.stall_seconds / busy))
            loads = self.blocks["upload"]
            return {
                "moved_bytes": dict(self.bytes),
                "moved_blocks": dict(self.blocks),
                "moved_seconds": dict(self.seconds),
                "busy_seconds": busy,
                "overlap": overlap,
                "steps": self.steps,
                "passes": self.passes,
                "hits": self.hits,
                "misses": self.misses,
                "loads_per_pass": loads / self.passes if self.passes else 0.0,
                "amplification": self.rows_needed / self.rows_visible if self.rows_visible else None,
                "stalls": self.stalls,
                "stall_seconds": self.stall_seconds,
                "plan_seconds": self.plan_seconds,
                "dropped_blocks": self.dropped_blocks,
                "slots": dict(self.slots),
                "peak_slots": dict(self.peak_slots),
            }
