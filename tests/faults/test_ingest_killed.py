"""An ingest that is killed leaves no store, and the same call again makes the one that it would have made."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.store.store_cases import contents
from tidegs.errors import StoreError
from tidegs.gaussians.layout import RecordLayout
from tidegs.store.block_store import BlockStore
from tidegs.store.files import Files
from tidegs.store.ingest import IngestOptions, ingest_points

KILLED = """
import os, signal, sys
from pathlib import Path
from tests.faults.test_ingest_killed import ingest
from tidegs.store.files import Files

class Killing(Files):
    names, left = {}, int(sys.argv[3])
    def open(self, path, flags):
        fd = super().open(path, flags)
        self.names[fd] = path.name
        return fd
    def due(self, fd):
        if self.names[fd] != sys.argv[2]:
            return False
        Killing.left -= 1
        return self.left == 0
    def write_all(self, fd, data, offset):
        due = self.due(fd)
        super().write_all(fd, memoryview(data)[: len(data) // 2] if due else data, offset)
        if due:
            os.kill(os.getpid(), signal.SIGKILL)
    def fsync(self, fd):
        if self.names[fd].startswith("records") and self.due(fd):
            os.kill(os.getpid(), signal.SIGKILL)
        super().fsync(fd)

ingest(Path(sys.argv[1]), Killing())
"""


def ingest(path: Path, files: Files | None = None) -> BlockStore:
    """With so little memory that every phase uses its work files."""
    rng = np.random.default_rng(0)
    xyz = (rng.normal(size=(60_000, 3)) * rng.choice([0.1, 1.0], (60_000, 1))).astype(np.float32)
    rgb = rng.integers(0, 256, (60_000, 3), np.uint8)
    chunks = [(xyz[i : i + 5000], rgb[i : i + 5000]) for i in range(0, len(xyz), 5000)]
    return ingest_points(path, chunks, RecordLayout(256), IngestOptions(memory_budget=1 << 20), b"made", files)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[int, bytes]:
    with ingest(tmp_path_factory.mktemp("whole") / "s") as store:
        return contents(store)


# Reading, two phases of neighbours beside the quick one, writing, committing.
LONG = [
    ("ingest.rows", 3),
    ("ingest.query", 1),
    ("ingest.asked", 1),
    ("records.seeds", 1),
    ("table.0", 1),
    ("root.tmp", 1),
]


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("ingest.parts", 40),
        ("ingest.better", 1),
        *[pytest.param(name, call, marks=pytest.mark.slow) for name, call in LONG],
    ],
)
def test_killed_and_begun_again(
    tmp_path: Path, whole: dict[int, bytes], name: str, call: int, injected: list[int]
) -> None:
    folder, root = tmp_path / "s", Path(__file__).parents[2]
    argv = [sys.executable, "-c", KILLED, str(folder), name, str(call)]
    killed = subprocess.run(argv, check=False, cwd=root, env={**os.environ, "PYTHONPATH": str(root)})
    assert killed.returncode == -signal.SIGKILL
    assert name in os.listdir(folder)
    with pytest.raises(StoreError, match="holds no store"):
        BlockStore.open(folder)
    with ingest(folder) as store:
        assert contents(store) == whole
    assert sorted(os.listdir(folder)) == ["lock", "records.seeds", "root", "table.0"]
    injected.append(1)
