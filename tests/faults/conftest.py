"""The fault tests share the helpers of the store's tests, and say at the end how many faults they injected."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")

_COUNT = pytest.StashKey[dict[str, int]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_COUNT] = {}


@pytest.fixture
def quick_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: these tests cut no real power, and write much."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)


@pytest.fixture
def injected(request: pytest.FixtureRequest, record_property: object) -> Iterator[list[int]]:
    """Append the number of faults that a test injected; printed in the summary (not under xdist)."""
    counts: list[int] = []
    yield counts
    request.config.stash[_COUNT][request.node.name] = sum(counts)
    record_property("faults", sum(counts))  # type: ignore[operator]


def pytest_terminal_summary(terminalreporter: object, config: pytest.Config) -> None:
    counts = config.stash.get(_COUNT, {})
    if counts:
        each = ", ".join(f"{name} {count}" for name, count in counts.items())
        line = f"faults injected into the store: {sum(counts.values())} ({each})"
        terminalreporter.write_line(line)  # type: ignore[attr-defined]
