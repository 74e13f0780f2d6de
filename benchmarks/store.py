"""The block store against fio: random block reads, writes, both at once, and ingest, each as a share of fio's rate.

fio runs with direct I/O, of the same request size, on the same file system, taking turns with the store; its better
result of one request in flight and of eight counts. Ratios are medians over rounds, rates those of the best round.
Prints one JSON line: read_vs_fio, write_vs_fio, mixed_vs_fio (records of 2.8 MiB), the same for records of 0.9 MiB,
ingest_vs_fio (bytes of records written in bulk, from Gaussians in memory, to fio's sequential writes), MiB/s.

    python benchmarks/store.py [--folder DIR] [--size GIB] [--seconds S] [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from tidegs.gaussians.layout import RECORD_PLANES, RecordLayout
from tidegs.store.block_store import BlockStore
from tidegs.store.ingest import ingest_gaussians
from tidegs.store.memory import aligned_slots

MIB = 1 << 20
BATCH = 8  # blocks of one call, as the residency layer hands them over
DEPTHS = (("psync", 1), ("libaio", 8))
LAYOUT = RecordLayout(4096)
KINDS = {"": RECORD_PLANES[:6], "_params": ("base", "rest")}


def fio(folder: Path, pattern: str, nbytes: int, size: int, seconds: float) -> float:
    """MiB/s (reads and writes together) of one pattern with requests of `nbytes`; the better of DEPTHS."""
    rates = []
    for engine, depth in DEPTHS:
        command = [
            *("fio", "--name=x", f"--filename={folder / 'fio.bin'}", f"--size={size // nbytes * nbytes}"),
            *("--direct=1", f"--rw={pattern}", f"--bs={nbytes}", f"--ioengine={engine}", f"--iodepth={depth}"),
            *("--time_based", f"--runtime={seconds}", "--output-format=json", "--randrepeat=0", "--norandommap"),
        ]
        job = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)["jobs"][0]
        rates.append((job["read"]["bw_bytes"] + job["write"]["bw_bytes"]) / MIB)
    return max(rates)


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

    def pick(self, which: int) -> np.ndarray:
        """Random blocks; the two halves of the store for readers (0) and writers (1) at once."""
        half = self.count // 2
        return self.rng.permutation(half)[:BATCH] + which * half

    def read(self, _: int) -> None:
        self.store.read(self.pick(0), self.slots[0])

    def write(self, call: int) -> None:
        self.slots[1][0][:4] = np.frombuffer(call.to_bytes(4, "little"), np.uint8)
        self.store.write(self.pick(1), self.slots[1])

    def mixed(self, seconds: float) -> float:
        """Both at once, from two threads."""
        rates = [0.0, 0.0]

        def run(which: int, step: Callable[[int], None]) -> None:
            rates[which] = self.rate(step, seconds)

        threads = [threading.Thread(target=run, args=a) for a in ((0, self.read), (1, self.write))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return sum(rates)


def measure_blocks(folder: Path, planes: tuple[str, ...], size: int, seconds: float, rounds: int) -> dict[str, float]:
    blocks = Blocks(folder / "store", planes, size)
    ours: dict[str, list[float]] = {"read": [], "write": [], "mixed": []}
    theirs: dict[str, list[float]] = {"read": [], "write": [], "mixed": []}
    patterns = {"read": "randread", "write": "randwrite", "mixed": "randrw"}
    steps = {
        "read": lambda s: blocks.rate(blocks.read, s),
        "write": lambda s: blocks.rate(blocks.write, s),
        "mixed": blocks.mixed,
    }
    fio(folder, "write", MIB, size, seconds)  # lays the file out
    for _ in range(rounds):
        for name, pattern in patterns.items():
            theirs[name].append(fio(folder, pattern, blocks.nbytes, size, seconds))
            ours[name].append(steps[name](seconds))
    blocks.store.close()
    shutil.rmtree(folder / "store")
    out = {f"{n}_vs_fio": ratio(ours[n], theirs[n]) for n in ours}
    return out | {f"{n}_mib_s": max(ours[n]) for n in ours} | {f"fio_{n}_mib_s": max(theirs[n]) for n in theirs}


def ratio(ours: list[float], theirs: list[float]) -> float:
    """The median over rounds, each of which had both sides one after the other."""
    return float(np.median(np.array(ours) / np.array(theirs)))


def measure_ingest(folder: Path, size: int, seconds: float, rounds: int) -> dict[str, float]:
    rows = np.random.default_rng(0).normal(size=(size // 236, LAYOUT.param_components)).astype(np.float32)
    rows[:, 7:10] -= 5

    def chunks() -> Iterator[np.ndarray]:
        for first in range(0, len(rows), 1 << 17):
            yield rows[first : first + (1 << 17)]

    ours, theirs = [], []
    for _ in range(rounds):
        theirs.append(fio(folder, "write", MIB, size, seconds))
        start = time.perf_counter()
        with ingest_gaussians(folder / "store", chunks(), LAYOUT) as store:
            written = store.counters.records_written
        ours.append(written / MIB / (time.perf_counter() - start))
        shutil.rmtree(folder / "store")
    return {
        "ingest_vs_fio": ratio(ours, theirs),
        "ingest_mib_s": max(ours),
        "fio_sequential_write_mib_s": max(theirs),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("."), help="where to write; on the disk to be measured")
    parser.add_argument("--size", type=float, default=1.0, help="GiB of each file (default 1; at most 4 are needed)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
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
            result |= {
                k.replace("_vs", f"{suffix}_vs").replace("_mib", f"{suffix}_mib"): v for k, v in measured.items()
            }
        result |= measure_ingest(folder, size // 4, args.seconds, args.rounds)
    print(json.dumps({k: round(v, 3) for k, v in result.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
