"""The block store against fio: random block reads, writes, both at once, and ingest, each as a share of fio's rate.

fio runs with direct I/O, of the same request size, on the same file system, taking turns with the store; the best of
SETTINGS counts, anew in each round. Ratios are medians over rounds, rates those of the best round. Prints one JSON
line: read_vs_fio, write_vs_fio, mixed_vs_fio (records of 2.8 MiB), the same for records of 0.9 MiB, ingest_vs_fio
(bytes of records written in bulk, from Gaussians in memory, to fio's sequential writes), MiB/s; what an ingest does in
a second of CPU time, which other load on the machine disturbs less; points a second, by neighbours, with little memory;
and what io_uring reaches in fio of the rate of four threads with one request each.

    python benchmarks/store.py [--folder DIR] [--size GIB] [--seconds S] [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from tidegs.gaussians.layout import RECORD_PLANES, RecordLayout
from tidegs.store.block_store import BlockStore
from tidegs.store.ingest import IngestOptions, ingest_gaussians, ingest_points
from tidegs.store.memory import aligned_slots

MIB = 1 << 20
BATCH = 8  # blocks of one call, as the residency layer hands them over
SETTINGS = (("psync", 1, 1), ("psync", 1, 4), ("libaio", 8, 1), ("io_uring", 8, 1))  # engine, depth, jobs
THREADS, RING = SETTINGS[1], SETTINGS[3]
Rates = dict[tuple[str, int, int], float]
LAYOUT = RecordLayout(4096)
KINDS = {"": RECORD_PLANES[:6], "_params": ("base", "rest")}


def fio(folder: Path, pattern: str, nbytes: int, size: int, seconds: float) -> Rates:
    """MiB/s (reads and writes together) of one pattern with requests of `nbytes`, by each of SETTINGS."""
    rates = {}
    for engine, depth, jobs in SETTINGS:
        part = size // (jobs if pattern == "write" else 1) // nbytes * nbytes  # each its own part of what is sequential
        command = [
            *("fio", "--name=x", f"--filename={folder / 'fio.bin'}", f"--size={part}", f"--numjobs={jobs}"),
            *(f"--offset_increment={part if pattern == 'write' else 0}", "--group_reporting"),
            *("--direct=1", f"--rw={pattern}", f"--bs={nbytes}", f"--ioengine={engine}", f"--iodepth={depth}"),
            *("--time_based", f"--runtime={seconds}", "--output-format=json", "--randrepeat=0", "--norandommap"),
        ]
        job = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)["jobs"][0]
        rates[engine, depth, jobs] = (job["read"]["bw_bytes"] + job["write"]["bw_bytes"]) / MIB
    return rates


class Blocks:
    """A store full of records that hold the given planes."""

    def __init__(self, folder: Path, planes: tuple[str, ...], size: int) -> None:
        self.nbytes = sum(LAYOUT.plane_nbytes(p) for p in planes) + 4096
        self.count = size // self.nbytes
        self.rng = np.random.default_rng(0)
        self.slots = [list(aligned_slots(BATCH, LAYOUT.slot_nbytes)) for _ in range(2)]
        for slot in self.slots[0] + self.slots[1]:
            for plane in planes:
                LAYOUT.view(slot, plane)[:] = self.rng.normal(size=LAYOUT.view(slot, plane).shape)
        self.store = BlockStore.create(folder, LAYOUT)
        self.store.allocate(self.count)
        for _ in range(2):  # so that every extent has been written
            for first in range(0, self.count, BATCH):
                ids = np.arange(first, min(first + BATCH, self.count))
                self.store.write(ids, self.slots[0][: len(ids)])
            self.store.commit(b"")

    def rate(self, step: Callable[[int], None], seconds: float) -> float:
        """MiB/s of calls of `step`, for about so long."""
        start, calls = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            step(calls)
            calls += 1
        return calls * BATCH * self.nbytes / MIB / (time.perf_counter() - start)

    def pick(self, first: float, last: float) -> np.ndarray:
        """Random blocks of a part of the store."""
        first, last = int(first * self.count), int(last * self.count)
        return first + self.rng.choice(last - first, BATCH, replace=False)

    def read(self, _: int, until: float = 1.0) -> None:
        self.store.read(self.pick(0, until), self.slots[0])

    def write(self, call: int, since: float = 0.0) -> None:
        self.slots[1][0][:4] = np.frombuffer(call.to_bytes(4, "little"), np.uint8)
        self.store.write(self.pick(since, 1), self.slots[1])

    def mixed(self, seconds: float) -> float:
        """Both at once, from two threads, of a half of the store each."""
        rates = [0.0, 0.0]

        def run(which: int, step: Callable[[int], None]) -> None:
            rates[which] = self.rate(step, seconds)

        steps = ((0, partial(self.read, until=0.5)), (1, partial(self.write, since=0.5)))
        threads = [threading.Thread(target=run, args=a) for a in steps]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return sum(rates)


def measure_blocks(folder: Path, planes: tuple[str, ...], size: int, seconds: float, rounds: int) -> dict[str, float]:
    blocks = Blocks(folder / "store", planes, size)
    ours: dict[str, list[float]] = {"read": [], "write": [], "mixed": []}
    theirs: dict[str, list[Rates]] = {"read": [], "write": [], "mixed": []}
    patterns = {"read": "randread", "write": "randwrite", "mixed": "randrw"}
    steps = {
        "read": lambda s: blocks.rate(blocks.read, s),
        "write": lambda s: blocks.rate(blocks.write, s),
        "mixed": blocks.mixed,
    }
    fio(folder, "write", MIB, size, seconds)  # lays the file out
    for _ in range(rounds):
        for name, pattern in patterns.items():
            theirs[name].append(fio(folder, pattern, blocks.nbytes, size, seconds / 2))
            ours[name].append(steps[name](seconds))
    blocks.store.close()
    shutil.rmtree(folder / "store")
    out = {f"{n}_vs_fio": ratio(ours[n], theirs[n]) for n in ours}
    out |= {f"{n}_mib_s": max(ours[n]) for n in ours} | {f"fio_{n}_mib_s": best(theirs[n]) for n in theirs}
    return out | {f"{n}_io_uring_vs_threads": median([r[RING] / r[THREADS] for r in theirs[n]]) for n in theirs}


def ratio(ours: list[float], theirs: list[Rates]) -> float:
    """The median over rounds, each of which had both sides one after the other."""
    return median([mine / max(rates.values()) for mine, rates in zip(ours, theirs, strict=True)])


def best(theirs: list[Rates]) -> float:
    return max(max(rates.values()) for rates in theirs)


def measure_ingest(folder: Path, size: int, seconds: float, rounds: int) -> dict[str, float]:
    rows = np.random.default_rng(0).normal(size=(size // 236, LAYOUT.param_components)).astype(np.float32)
    rows[:, 7:10] -= 5

    def chunks() -> Iterator[np.ndarray]:
        for first in range(0, len(rows), 1 << 17):
            yield rows[first : first + (1 << 17)]

    ours, theirs, cpu = [], [], []
    for _ in range(rounds):
        theirs.append(fio(folder, "write", MIB, size, seconds / 2))
        start, busy = time.perf_counter(), time.process_time()
        with ingest_gaussians(folder / "store", chunks(), LAYOUT) as store:
            written = store.counters.records_written
        ours.append(written / MIB / (time.perf_counter() - start))
        cpu.append(written / MIB / (time.process_time() - busy))
        shutil.rmtree(folder / "store")
    return {
        "ingest_vs_fio": ratio(ours, theirs),
        "ingest_mib_s": max(ours),
        "ingest_mib_cpu_s": max(cpu),
        "fio_sequential_write_mib_s": best(theirs),
    }


def measure_points(folder: Path, count: int) -> dict[str, float]:
    """Points of a rough surface, in many buckets."""
    rng = np.random.default_rng(0)
    xyz = np.c_[rng.uniform(-100, 100, (count, 2)), rng.normal(0, 0.1, count)].astype(np.float32)
    rgb = rng.integers(0, 256, (count, 3), np.uint8)
    chunks = ((xyz[i : i + (1 << 17)], rgb[i : i + (1 << 17)]) for i in range(0, count, 1 << 17))
    start, busy = time.perf_counter(), time.process_time()
    ingest_points(folder / "store", chunks, LAYOUT, IngestOptions(memory_budget=64 * MIB)).close()
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    shutil.rmtree(folder / "store")
    return {"points_m_s": count / 1e6 / seconds, "points_m_cpu_s": count / 1e6 / busy}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("."), help="where to write; on the disk to be measured")
    parser.add_argument("--size", type=float, default=1.0, help="GiB of each file (default 1; at most 4 are needed)")
    parser.add_argument(
        "--seconds", type=float, default=1.5, help="of each measurement; half of it for a setting of fio"
    )
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if shutil.which("fio") is None:
        print("benchmarks/store.py compares with fio, which is not installed: apt-get install fio", file=sys.stderr)
        return 2
    size, result = int(args.size * (1 << 30)), {}
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="bench-store-") as name:
        folder = Path(name)
        for suffix, planes in KINDS.items():
            measured = measure_blocks(folder, planes, size, args.seconds, args.rounds)
            result |= {re.sub(r"_(vs_fio|mib|io_uring)", rf"{suffix}_\1", k): v for k, v in measured.items()}
        result |= measure_ingest(folder, size // 4, args.seconds, args.rounds)
        result |= measure_points(folder, size // 512)
    print(json.dumps({k: round(v, 3) for k, v in result.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
