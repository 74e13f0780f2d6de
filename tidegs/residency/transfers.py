"""Four first-in-first-out queues that carry out the moves: read, upload, download, write; one thread each.

Invariants: a task depends only on tasks submitted before it, so the queues cannot deadlock; the first error stops all
that follows, and every later call raises it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tidegs.residency.counters import LINKS, Counters


@dataclass
class Task:
    """One batch on one link, or straight over two."""

    links: tuple[str, ...]
    run: Callable[[], int]  # returns the bytes moved
    after: list[Task]
    blocks: int
    done: threading.Event = field(default_factory=threading.Event)


class Transfers:
    """The queues. `submit` and `wait` come from threads that hold the pipeline's lock or the pipeline itself."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._live: dict[int, Task] = {}
        self._last = 0
        self._queues: dict[str, queue.SimpleQueue[tuple[int, Task] | None]] = {
            link: queue.SimpleQueue() for link in LINKS
        }
        self._threads = [
            threading.Thread(target=self._work, args=(self._queues[link],), name=f"tidegs-{link}", daemon=True)
            for link in LINKS
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, links: tuple[str, ...], run: Callable[[], int], after: Iterable[int], blocks: int) -> int:
        """Queues `run` on the first link, to start when tasks `after` have ended; returns its number, from 1."""
        self.check()
        with self._lock:
            self._last += 1
            number = self._last
            task = Task(links, run, [self._live[t] for t in after if t in self._live], blocks)
            self._live[number] = task
        self._queues[links[0]].put((number, task))
        return number

    def pending(self, numbers: Iterable[int]) -> list[Task]:
        """Those tasks that have not ended."""
        with self._lock:
            return [self._live[t] for t in numbers if t in self._live]

    def wait(self, tasks: Iterable[Task]) -> None:
        """Returns when all have ended; raises the first error of any task."""
        for task in tasks:
            task.done.wait()
        self.check()

    def drain(self) -> None:
        """Waits for everything submitted so far."""
        with self._lock:
            live = list(self._live.values())
        self.wait(live)

    def check(self) -> None:
        """Raises the first error of any task."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Ends the threads after what is queued; raises nothing."""
        for q in self._queues.values():
            q.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self, q: queue.SimpleQueue[tuple[int, Task] | None]) -> None:
        while (item := q.get()) is not None:
            number, task = item
            for earlier in task.after:
                earlier.done.wait()
            task.after = []
            if self._error is None:
                start, nbytes = self._counters.begin(), 0
                try:
                    nbytes = task.run()
                except BaseException as error:  # carried to the thread that waits
                    with self._lock:
                        self._error = self._error or error
                self._counters.end(task.links, start, task.blocks, nbytes)
            with self._lock:
                del self._live[number]
            task.done.set()
