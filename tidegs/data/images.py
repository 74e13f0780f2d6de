"""Images of a scene, decoded ahead of their use. Invariant: bytes held never exceed the budget (but for what the caller
itself holds and one image that is larger than it), and what `get` returns depends on the files alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from threading import Condition, Thread
from time import perf_counter

import numpy as np

from tidegs import timeline
from tidegs.data.distortion_map import MAP_CACHE_BYTES, MapCache
from tidegs.data.image_source import ImageSource
from tidegs.data.scene import Camera

_LOOKAHEAD = 1 << 16  # announced uses that are known at a time
_SKIP = 64  # announced uses that may be left out at a time
_NEVER = 1 << 62


Loaded = tuple[np.ndarray, np.ndarray | None]


@dataclass
class ImageStats:
    """What an ImageCache did so far."""

    decoded: int = 0  # images decoded, again included
    ready: int = 0  # requests that found their image
    waited_s: float = 0.0  # time that requests waited or decoded themselves


class ImageCache:
    """Decoded images of `cameras`, within `budget_bytes`, decoded ahead by `threads` threads in an announced order.

    A scene whose images all fit is decoded once. One that does not is decoded as the order asks; what is thrown out is
    the image whose next announced use is farthest (Belady's rule). Each thread holds, besides, one image at its stored
    size while it decodes. Ask from one thread; close it, or use `with`.
    """

    def __init__(self, cameras: Sequence[Camera], budget_bytes: int, threads: int = 2) -> None:
        self.stats = ImageStats()
        self._cameras = cameras
        self._budget, self._used = budget_bytes, 0
        self._entries: dict[int, Loaded] = {}
        self._pending: set[int] = set()
        self._errors: dict[int, BaseException] = {}
        self._maps = MapCache(min(MAP_CACHE_BYTES, budget_bytes))  # small images, as ever many, have small maps
        self._changed = Condition()
        self._closed = False
        self.announce(())
        self._threads = [Thread(target=self._work, name=f"tidegs-images-{n}", daemon=True) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    def announce(self, order: Iterable[int]) -> None:
        """Replaces the announced order: indices in the order in which they will be asked for. It is read lazily, may be
        endless, and need not be kept exactly."""
        with self._changed:
            self._order = iter(order)
            self._ahead: deque[int] = deque()  # uses to come; the first has the number `_position`
            self._uses: dict[int, deque[int]] = {}  # the numbers of an image's uses
            self._position = self._next = 0  # `_next`: all uses before this number are loaded or on their way
            self._extend()

    def get(self, index: int) -> np.ndarray:
        """The pinhole image of a camera, uint8 [height, width, 3], read-only. Raises ImageError."""
        return self.get_masked(index)[0]

    def get_masked(self, index: int) -> Loaded:
        """The image and its mask, uint8 [height, width], 255 where a pixel counts and 0 where not; None where all
        count. Both are read-only. Raises ImageError."""
        start = perf_counter()
        with self._changed:
            self.stats.ready += index in self._entries
            try:
                loaded = self._find_or_load(index)
            finally:
                self._consume(index)
        end = perf_counter()
        self.stats.waited_s += end - start
        timeline.add("wait for image", start, end)
        return loaded

    @property
    def held_bytes(self) -> int:
        """Bytes of the images that are kept or for which room is reserved; at most the budget."""
        with self._changed:
            return self._used

    def close(self) -> None:
        """Stops the threads and lets go of all images."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._entries.clear()

    def __enter__(self) -> ImageCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _find_or_load(self, index: int) -> Loaded:
        while index in self._pending:
            self._changed.wait()
        if index in self._errors:
            raise self._errors.pop(index)
        if index in self._entries:
            return self._entries[index]
        return self._load(index, keep=self._make_room(index, use=-1))

    def _load(self, index: int, keep: bool) -> Loaded:
        """Decodes with the lock released; the caller holds it and has made room where `keep` is set."""
        reserved = self._size(index) if keep else 0
        self._used += reserved
        self._pending.add(index)
        self._changed.release()
        loaded: Loaded | None = None
        try:
            loaded = self._decode(index)
        finally:
            self._changed.acquire()
            self._pending.discard(index)
            self._used -= reserved
            if keep and loaded is not None:
                self._entries[index] = loaded
                self._used += _nbytes(loaded)
            self._changed.notify_all()
        self.stats.decoded += 1
        return loaded

    def _decode(self, index: int) -> Loaded:
        source = self._cameras[index].source
        if not isinstance(source, ImageSource):
            raise TypeError(f"camera {index} has no image source")
        with timeline.span("decode"):
            loaded = source.load(self._maps)
        for plane in loaded:
            if plane is not None:
                plane.flags.writeable = False
        return loaded

    def _work(self) -> None:
        with self._changed:
            while not self._closed:
                index = self._pick()
                if index is None:
                    self._changed.wait()
                    continue
                try:
                    self._load(index, keep=True)
                except BaseException as error:  # handed to whoever asks for the image
                    self._errors[index] = error

    def _pick(self) -> int | None:
        """The next announced image that is neither here nor on its way, if there is room for it."""
        while self._next - self._position < len(self._ahead):
            index = self._ahead[self._next - self._position]
            if index not in self._entries and index not in self._pending and index not in self._errors:
                return index if self._make_room(index, use=self._next) else None
            self._next += 1
        return None

    def _make_room(self, index: int, use: int) -> bool:
        """Throws out images needed later than `use` until this one fits; False where that does not suffice."""
        while self._used + self._size(index) > self._budget:
            victim = max(self._entries, key=self._next_use, default=None)
            if victim is None or self._next_use(victim) <= use:
                return False
            self._next = min(self._next, self._next_use(victim))
            self._used -= _nbytes(self._entries.pop(victim))
        return True

    def _next_use(self, index: int) -> int:
        uses = self._uses.get(index)
        return uses[0] if uses else _NEVER

    def _size(self, index: int) -> int:
        return self._cameras[index].width * self._cameras[index].height * 4  # rgb and a mask

    def _consume(self, index: int) -> None:
        """Moves past the announced use that was asked for, and past those that were skipped before it."""
        if index in islice(self._ahead, _SKIP):
            while True:
                passed = self._ahead.popleft()
                self._uses[passed].popleft()
                self._position += 1
                if passed == index:
                    break
            self._next = max(self._next, self._position)
        self._extend()

    def _extend(self) -> None:
        lookahead = min(_LOOKAHEAD, max(256, 2 * len(self._cameras)))
        for index in islice(self._order, lookahead - len(self._ahead)):
            self._uses.setdefault(index, deque()).append(self._position + len(self._ahead))
            self._ahead.append(index)
        self._changed.notify_all()


def _nbytes(loaded: Loaded) -> int:
    return sum(plane.nbytes for plane in loaded if plane is not None)
