"""Every use of a slot or buffer waits for the one before it; and the checker that says so notices when one does not."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cuda.harness import ADAM, BOTH, cuda_on_cpu, hold, layout_for, target_of
from tests.cuda.ordering import OrderingError, RecordedEvent, RecordedStreams
from tests.device.harness import look, random_scene
from tidegs.device.base import RenderSettings

VIEW = look(32, 16)
TARGET = target_of(VIEW)


def in_thread(work: Callable[[], None]) -> None:
    """Runs it in a thread of its own, as residency does with copies: the checker knows of no order between threads."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


class Ride:
    """A device whose slots are moved about and trained on, by the threads that residency has."""

    def __init__(self, streams: RecordedStreams) -> None:
        self.streams = streams
        self.held = hold(cuda_on_cpu(streams), random_scene(192, 1), layout_for())
        self.device = self.held.device
        self.frame = self.device.new_frame(VIEW)
        self.host = [np.zeros(self.held.layout.slot_nbytes, np.uint8) for _ in range(4)]

    def train(self, chosen: list[int], read: bool = True) -> None:
        """One step; reading the loss and the updates makes the host wait for them."""
        self.look_at(chosen)
        loss = self.device.loss(self.frame, TARGET, 0.2)
        self.device.differentiate(self.frame)
        updates = self.device.update(0, self.held.blocks(BOTH, chosen), ADAM)
        if read:
            assert loss.total > 0
            assert updates.visible.shape == (len(chosen),)

    def look_at(self, chosen: list[int]) -> None:
        self.device.begin(VIEW, RenderSettings(), self.frame)
        self.device.add(self.held.blocks(0, chosen))
        self.device.finish(self.frame)

    def download(self, block: int, host: int) -> None:
        in_thread(lambda: self._download(block, host))

    def upload(self, block: int, host: int) -> None:
        in_thread(lambda: self._upload(block, host))

    def _download(self, block: int, host: int) -> None:
        self.device.download([self.held.slots[block]], [self.host[host]])

    def _upload(self, block: int, host: int) -> None:
        self.device.upload([self.host[host]], [self.held.slots[block]])


def ride_along(ride: Ride) -> None:
    """Each kind of use behind each other kind."""
    ride.train([0, 1, 2])
    ride.download(0, 0)
    ride.upload(0, 0)
    ride.train([0, 1])
    ride.look_at([2])
    ride.upload(2, 0)
    ride.download(2, 1)
    ride.train([2])
    for _ in range(3):  # images go through two buffers
        ride.train([0, 1], read=False)
    ride.train([0, 1, 2])


def test_all_uses_are_ordered():
    ride = Ride(RecordedStreams())
    ride_along(ride)
    assert ride.streams.checked > 20


class Forgetful(RecordedStreams):
    """Forgets to let one stream wait for another."""

    def __init__(self, stream: str, source: str) -> None:
        super().__init__()
        self.fault = (stream, source)

    def wait(self, stream: str, event: RecordedEvent) -> None:
        if (stream, event.source) != self.fault:
            super().wait(stream, event)


@pytest.mark.parametrize(
    ("stream", "source"),
    [
        ("upload", "compute"),  # a block is overwritten while a pass reads it
        ("download", "compute"),  # a block leaves before its update is written
        ("compute", "upload"),  # a pass reads a block that has not arrived
        ("upload", "download"),  # a slot is filled anew before its block has left
        ("compute", "image"),  # a loss reads an image that has not arrived
        ("image", "compute"),  # an image is overwritten while a loss reads it
    ],
)
def test_a_forgotten_wait_is_noticed(stream, source):
    with pytest.raises(OrderingError, match="without waiting"):
        ride_along(Ride(Forgetful(stream, source)))


@pytest.mark.parametrize("source", ["upload", "download", "compute", "image"])
def test_a_host_that_does_not_wait_is_noticed(source):
    """Host slots handed back too early, results read too early, a pinned image overwritten too early."""

    class Hasty(RecordedStreams):
        def finish(self, event: RecordedEvent) -> None:
            if event.source != source:
                super().finish(event)

    with pytest.raises(OrderingError, match="without waiting"):
        ride_along(Ride(Hasty()))


def test_the_checker_knows_order_from_chance():
    """Order that only comes from how things happened to run is no order; order through two events is."""
    streams = RecordedStreams()
    streams.writes("upload", ["x"])
    first = streams.record("upload")
    with pytest.raises(OrderingError):
        streams.reads("compute", ["x"])
    streams.wait("download", first)
    second = streams.record("download")
    streams.wait("compute", second)
    streams.reads("compute", ["x"])
    with pytest.raises(OrderingError):
        streams.writes("upload", ["x"])


USES = st.tuples(st.sampled_from(["train", "look_at", "upload", "download"]), st.integers(0, 2), st.integers(0, 3))


@settings(max_examples=8, deadline=None)
@given(st.lists(USES, min_size=1, max_size=8))
def test_any_order_of_uses(uses):
    ride = Ride(RecordedStreams())
    for kind, block, host in uses:
        if kind == "train":
            ride.train(sorted({block, host % 3}))
        elif kind == "look_at":
            ride.look_at([block])
        else:
            getattr(ride, kind)(block, host)
