"""Other processes: killed writers, a second writer, signals, and limits that the system sets."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.store.store_cases import SMALL, contents, filled_store, random_slot
from tidegs.errors import StoreError
from tidegs.store.block_store import BlockStore

BLOCKS, ROUND = 12, 5  # blocks of the store, of which each round rewrites some

WRITER = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [sys.argv[2], sys.argv[3]]
import numpy as np
from test_processes import one_round
from tidegs.store.block_store import BlockStore
from tidegs.store.files import Files

class Killing(Files):
    calls, at, name = 0, int(sys.argv[4]), sys.argv[5]
    def fsync(self, fd):
        self.count("fsync")
        super().fsync(fd)
    def pwrite(self, fd, data, offset):
        self.count("pwrite")
        torn = self.name == "pwrite" and self.calls == self.at
        return super().pwrite(fd, data[: len(data) // 2] if torn else data, offset)
    def count(self, name):
        if name == self.name:
            self.calls += 1
            if self.calls == self.at and name == "fsync":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.calls == self.at + 1 and name == "pwrite":
                os.kill(os.getpid(), signal.SIGKILL)

with BlockStore.open(sys.argv[1], files=Killing()) as store:
    print("open", store.snapshot, flush=True)
    while True:
        number = store.snapshot + 1
        blocks, slots = one_round(number)
        store.write(blocks, slots)
        store.commit(str(number).encode())
        print("done", number, flush=True)
"""


def one_round(number: int) -> tuple[list[int], list[np.ndarray]]:
    """What is written before snapshot `number`: blocks and slots."""
    rng = np.random.default_rng(number)
    blocks = rng.permutation(BLOCKS)[:ROUND].tolist()
    planes = [("base",), ("base", "rest"), ("base", "m_base", "v_base", "stats")]
    return blocks, [random_slot(SMALL, planes[rng.integers(3)], rng) for _ in blocks]


def expected(number: int) -> dict[int, bytes]:
    """What snapshot `number` holds."""
    out = {}
    for n in range(1, number + 1):
        blocks, slots = one_round(n) if n > 1 else (list(range(BLOCKS)), first_slots())
        out |= {b: s[: SMALL.record_nbytes].tobytes() for b, s in zip(blocks, slots, strict=True)}
    return out


def first_slots() -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [random_slot(SMALL, ("base",), rng) for _ in range(BLOCKS)]


def start_writer(path: Path, at: int = 0, name: str = "") -> subprocess.Popen:
    here = Path(__file__).parent
    args = [sys.executable, "-c", WRITER, str(path), str(here), str(here.parent / "store"), str(at), name]
    root = here.parents[1]
    return subprocess.Popen(args, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(root)})


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A store whose snapshot 1 is committed."""
    with BlockStore.create(tmp_path / "s", SMALL) as store:
        ids = store.allocate(BLOCKS)
        store.table["count"][:] = 64
        store.write(ids, first_slots())
        store.commit(b"1")
    return tmp_path / "s"


def check_killed(path: Path, said: list[str]) -> None:
    """Exactly the last snapshot that the dead process reported, or the one it was about to report."""
    last = int(said[-1].split()[1])
    with BlockStore.open(path) as store:
        assert store.snapshot in (last, last + 1)
        assert store.meta == str(store.snapshot).encode()
        assert contents(store) == expected(store.snapshot)


@pytest.mark.parametrize("name", ["fsync", "pwrite"])
@pytest.mark.parametrize(
    "at", [4, *[pytest.param(k, marks=pytest.mark.slow) for k in (1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 23, 24)]]
)
def test_killed_at_a_named_call(begun: Path, name: str, at: int, injected: list[int]) -> None:
    process = start_writer(begun, at, name)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    check_killed(begun, ["open 1", *said.split("\n")[:-1]])
    injected.append(1)


@pytest.mark.slow
def test_killed_at_random_times(begun: Path, injected: list[int]) -> None:
    """The same store is killed again and again; the oracle is what the processes said."""
    rng = np.random.default_rng(0)
    for _ in range(40):
        process = start_writer(begun)
        assert process.stdout
        said = [process.stdout.readline()]
        for _ in range(int(rng.integers(1, 6))):
            said.append(process.stdout.readline())
        for _ in range(int(rng.integers(0, 20000))):  # a moment that no clock decides
            pass
        process.kill()
        rest, _ = process.communicate()
        check_killed(begun, [*(s for s in said if s.strip()), *[s for s in rest.split("\n")[:-1] if s]])
        injected.append(1)


def test_sigterm_while_writing_leaves_the_last_snapshot(begun: Path, injected: list[int]) -> None:
    process = start_writer(begun)
    assert process.stdout
    said = [process.stdout.readline() for _ in range(3)]
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate()
    assert process.returncode == -signal.SIGTERM
    check_killed(begun, [*said, *[s for s in rest.split("\n")[:-1] if s]])
    injected.append(1)


def test_a_second_writer_is_refused_until_the_first_ends(begun: Path) -> None:
    process = start_writer(begun)
    assert process.stdout
    process.stdout.readline()
    for readonly in (False, True):
        with pytest.raises(StoreError, match="in use by another process"):
            BlockStore.open(begun, readonly=readonly)
    with pytest.raises(StoreError, match="already holds a store"):
        BlockStore.create(begun, SMALL)
    process.kill()
    process.communicate()
    with BlockStore.open(begun):
        pass


def test_readers_share_and_keep_writers_out(begun: Path) -> None:
    with BlockStore.open(begun, readonly=True) as one, BlockStore.open(begun, readonly=True) as two:
        assert contents(one) == contents(two)
        with pytest.raises(StoreError, match="in use"):
            BlockStore.open(begun)


def test_a_folder_that_cannot_be_written_is_read(begun: Path) -> None:
    if os.geteuid() == 0:
        mount_readonly_or_skip(begun)
    else:
        begun.chmod(0o555)
        for file in begun.iterdir():
            file.chmod(0o444)
    try:
        with BlockStore.open(begun, readonly=True) as store:
            assert contents(store) == expected(1)
        with pytest.raises(StoreError, match="locking failed"):
            BlockStore.open(begun)
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", begun], check=True)
        else:
            begun.chmod(0o755)


def mount_readonly_or_skip(folder: Path) -> None:
    bind = subprocess.run(["mount", "--bind", folder, folder], capture_output=True, check=False)
    if bind.returncode:
        pytest.skip("root, and not allowed to mount: nothing is read-only here")
    subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)


def test_a_full_disk_is_told_and_the_store_goes_on(tmp_path: Path, injected: list[int]) -> None:
    """A real file system of 1 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "x", disk], capture_output=True, check=False
    ).returncode:
        pytest.skip("not allowed to mount a small file system")
    try:
        rng = np.random.default_rng(0)
        with BlockStore.create(disk / "s", SMALL) as store:
            ids = store.allocate(4)
            store.table["count"][:] = 64
            store.write(ids, [random_slot(SMALL, ("base",), rng) for _ in ids])
            store.commit(b"")
            kept, held = contents(store), 0
            with pytest.raises(StoreError, match=r"records\.base.*No space"):  # noqa: PT012
                while True:
                    more = store.allocate(20)
                    store.write(more, [random_slot(SMALL, ("base",), rng) for _ in more])
                    held += 20
            assert held
            store.free(more)
            assert contents(store).items() >= kept.items()
            with pytest.raises(StoreError, match=r"table\.1.*No space"):
                store.commit(b"x" * (1 << 20))
            store.free(np.arange(4, len(store.table)))
            store.commit(b"y")
            injected.append(2)
        with BlockStore.open(disk / "s") as store:
            assert contents(store) == kept
            assert store.meta == b"y"
    finally:
        subprocess.run(["umount", disk], check=True)


def test_too_few_file_descriptors_are_told(begun: Path, injected: list[int]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used, told = len(os.listdir("/proc/self/fd")), []
    try:
        for spare in range(12):
            resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, hard))
            try:
                with BlockStore.open(begun) as store:
                    assert contents(store) == expected(1)
            except StoreError as e:
                told.append(str(e))
                injected.append(1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert told
    assert all("Too many open files" in t for t in told)
    assert len(os.listdir("/proc/self/fd")) == used


def test_closing_leaks_nothing(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    for i in range(3):
        filled_store(tmp_path / str(i)).close()
        with pytest.raises(StoreError):
            BlockStore.create(tmp_path / str(i), SMALL)
        shutil.rmtree(tmp_path / str(i))
    assert (len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))) == before
