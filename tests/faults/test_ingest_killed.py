"""An ingest that is killed leaves no store, and the same call again makes the one that it would have made: anew,
or, where its input has a name, from where it was."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.store.store_cases import contents
from tidegs.errors import StoreError, TidegsError
from tidegs.gaussians.layout import RecordLayout
from tidegs.store import unfinished
from tidegs.store.block_store import BlockStore
from tidegs.store.files import Files
from tidegs.store.ingest import IngestOptions, ingest_gaussians, ingest_points

KILLED = """
import os, signal, sys
from pathlib import Path
from tests.faults.test_ingest_killed import KEEP_NBYTES, ingest
from tidegs.store import unfinished
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

unfinished.KEEP_NBYTES = KEEP_NBYTES
ingest(Path(sys.argv[1]), Killing(), sys.argv[4])
"""
KEEP_NBYTES = 1 << 18  # of 1.1 MB


def ingest(path: Path, files: Files | None = None, source: str = "", memory: int = 1 << 20) -> BlockStore:
    """With so little memory that every phase uses its work files."""
    rng = np.random.default_rng(0)
    xyz = (rng.normal(size=(60_000, 3)) * rng.choice([0.1, 1.0], (60_000, 1))).astype(np.float32)
    rgb = rng.integers(0, 256, (60_000, 3), np.uint8)
    chunks = [(xyz[i : i + 5000], rgb[i : i + 5000]) for i in range(0, len(xyz), 5000)]
    options = IngestOptions(memory_budget=memory, source=source)
    return ingest_points(path, chunks, RecordLayout(256), options, b"made", files)


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
    folder = tmp_path / "s"
    kill(folder, name, call)
    with ingest(folder) as store:
        assert contents(store) == whole
    assert sorted(os.listdir(folder)) == ["lock", "records.seeds", "root", "table.0"]
    injected.append(1)


def kill(folder: Path, name: str, call: int, source: str = "") -> None:
    """An ingest that dies in the n-th write to a file, or sync of records."""
    root = Path(__file__).parents[2]
    argv = [sys.executable, "-c", KILLED, str(folder), name, str(call), source]
    killed = subprocess.run(argv, check=False, cwd=root, env={**os.environ, "PYTHONPATH": str(root)})
    assert killed.returncode == -signal.SIGKILL
    assert name in os.listdir(folder)
    with pytest.raises(StoreError, match="holds no store"):
        BlockStore.open(folder)


class Opened(Files):
    """Which files were opened: an ingest that goes on does not need "ingest.rows", where the input is put first."""

    def __init__(self) -> None:
        self.opened: list[str] = []

    def open(self, path: Path, flags: int) -> int:
        self.opened.append(path.name)
        return super().open(path, flags)


@pytest.mark.parametrize(
    ("name", "call", "goes_on"),
    [
        ("ingest.tmp", 1, False),  # nothing was noted yet
        ("ingest.tmp", 2, True),
        ("records.seeds", 3, True),
        pytest.param("ingest.tmp", 3, True, marks=pytest.mark.slow),
        pytest.param("records.seeds", 2, True, marks=pytest.mark.slow),
        pytest.param("table.0", 1, True, marks=pytest.mark.slow),
        pytest.param("root.tmp", 1, True, marks=pytest.mark.slow),
    ],
)
def test_killed_and_gone_on(
    tmp_path: Path, whole: dict[int, bytes], name: str, call: int, goes_on: bool, injected: list[int]
) -> None:
    folder = tmp_path / "s"
    kill(folder, name, call, "cloud")
    files = Opened()
    with ingest(folder, files, "cloud", memory=2 << 20) as store:
        assert contents(store) == whole
        written = store.bytes_written
    assert ("ingest.rows" not in files.opened) == goes_on
    assert sorted(os.listdir(folder)) == ["lock", "records.seeds", "root", "table.0"]
    with ingest(tmp_path / "plain", source="cloud") as store:
        assert written >= store.bytes_written
    injected.append(1)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("begun") / "s"
    kill(folder, "ingest.tmp", 3, "cloud")
    return folder


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "source", "memory"),
    [
        (None, "another cloud", 1 << 20),
        (None, "", 1 << 20),
        (None, "cloud", 1 << 18),  # the buckets would not fit
        (cut, "cloud", 1 << 20),
        (flip, "cloud", 1 << 20),
        (Path.unlink, "cloud", 1 << 20),
    ],
)
def test_begun_anew_where_it_cannot_go_on(tmp_path: Path, begun: Path, whole, damage, source, memory) -> None:
    folder, files = tmp_path / "s", Opened()
    shutil.copytree(begun, folder)
    if damage:
        damage(folder / "ingest.state")
    with ingest(folder, files, source, memory) as store:
        assert contents(store) == whole
    assert "ingest.rows" in files.opened
    assert sorted(os.listdir(folder)) == ["lock", "records.seeds", "root", "table.0"]


@pytest.mark.parametrize("name", ["ingest.parts", "ingest.scale", "records.seeds"])
def test_a_missing_file_is_named_and_the_next_call_begins_anew(tmp_path: Path, begun: Path, whole, name) -> None:
    folder = tmp_path / "s"
    shutil.copytree(begun, folder)
    (folder / name).unlink()
    with pytest.raises(TidegsError, match=name):
        ingest(folder, source="cloud")
    with ingest(folder, source="cloud") as store:
        assert contents(store) == whole


def test_interrupted_and_gone_on(tmp_path: Path, whole: dict[int, bytes], monkeypatch) -> None:
    """Ctrl-C leaves what the next call goes on with; a failure leaves nothing."""
    monkeypatch.setattr(unfinished, "KEEP_NBYTES", KEEP_NBYTES)
    folder, save, calls = tmp_path / "s", unfinished.Unfinished.save, iter(range(1 << 30))
    trouble: list[BaseException] = [KeyboardInterrupt(), StoreError("no")]

    def failing(self, state) -> None:
        save(self, state)
        if next(calls) == 1:
            raise trouble.pop(0)

    with monkeypatch.context() as patch:
        patch.setattr(unfinished.Unfinished, "save", failing)
        with pytest.raises(KeyboardInterrupt):
            ingest(folder, source="cloud")
        assert "ingest.state" in os.listdir(folder)
        calls = iter(range(1, 1 << 30))
        with pytest.raises(StoreError):
            ingest(tmp_path / "t", source="cloud")
        assert os.listdir(tmp_path / "t") == []
    files = Opened()
    with ingest(folder, files, "cloud") as store:
        assert contents(store) == whole
    assert "ingest.rows" not in files.opened


def test_gaussians_interrupted_and_gone_on(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(unfinished, "KEEP_NBYTES", KEEP_NBYTES)
    layout = RecordLayout(256, sh_degree=1)
    rows = np.random.default_rng(0).normal(size=(20_000, layout.param_components)).astype(np.float32)
    save, calls = unfinished.Unfinished.save, iter(range(1 << 30))

    def interrupted(self, state) -> None:
        save(self, state)
        if next(calls) == 2:
            raise KeyboardInterrupt

    def gaussians(folder: Path, chunks) -> BlockStore:
        return ingest_gaussians(folder, chunks, layout, IngestOptions(memory_budget=1 << 20, source="rows"))

    with gaussians(tmp_path / "plain", iter([rows])) as store:
        expected = contents(store)
    with monkeypatch.context() as patch:
        patch.setattr(unfinished.Unfinished, "save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            gaussians(tmp_path / "s", iter([rows]))
    with gaussians(tmp_path / "s", iter(())) as store:  # without its input
        assert contents(store) == expected
