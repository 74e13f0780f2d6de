"""Which blocks move for each image: our eviction and camera order against LRU and Belady's bound.

A city of 5.9 x 7.9 km in 272,000 blocks, seen by 51,920 aerial cameras: every 67 m a nadir view of 430 m and four
oblique ones, 60 to 640 m ahead; about 0.5 % of the blocks a view. The host cache holds 32 GiB; every block loaded is
changed, as training does. Nothing is rendered or moved: real visibility, real planner, lookahead and all.

Orders: trajectory (row sweep), windowed (the sweep shuffled in windows of 32), shuffled, and cache (our tour, shuffled
in the windows that training would choose). "pcie" counts uploads to the arena, "ssd" reads from the store.

"ours" is the planner where transfers set the pace: a block is not evicted for one that is needed later, even if that
one is pinned by the running pass. "ours_hidden" is the same planner with a GPU of 10 images a second behind 25 GB/s:
it loads ahead what can be hidden behind the running pass, at the price of some more loads.

Prints one JSON line: ours_vs_belady and ours_vs_lru for each order (the worst of both arenas and links),
cache_order_vs_trajectory for each arena (uploads under our eviction), dropped_blocks, CPU seconds for one epoch of
index and passes alone and of the whole planner (each load and eviction too), and under "cases" the blocks an image of
every policy.

    python benchmarks/policy.py [--scale S] [--shuffled-visits N] [--arenas 2048 5000]
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from dataclasses import dataclass

import numba
import numpy as np

from tidegs.device.base import RenderSettings, View
from tidegs.gaussians.layout import RecordLayout
from tidegs.residency.horizon import Horizon
from tidegs.residency.index import build_index
from tidegs.residency.moves import KIND, READ
from tidegs.residency.passes import PassPlanner
from tidegs.residency.planner import Planner
from tidegs.residency.schedule import Schedule, Step
from tidegs.residency.state import farthest
from tidegs.residency.tours import cache_tour
from tidegs.residency.visibility import Bounds, view_planes, working_sets
from tidegs.train.imagined import city_table, city_views
from tidegs.train.order import window_for

WIDTH, HEIGHT = 5900.0, 7900.0  # metres
SETTINGS = RenderSettings()
NBYTES = RecordLayout(4096).record_nbytes
HOST_NBYTES = 32 << 30
HIDEABLE = 0.1 * 25e9 / NBYTES  # blocks that PCIe 4 x16 moves while a GPU renders one of 10 images a second


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# -- policies ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sets:
    """Exact working sets of all views (CSR)."""

    offsets: np.ndarray
    ids: np.ndarray
    blocks: int


@numba.njit(cache=True)
def lru_loads(offsets: np.ndarray, ids: np.ndarray, order: np.ndarray, blocks: int, capacity: int) -> int:
    """Loads with least-recently-used eviction; the set of the next image is loaded ahead, and not evicted."""
    used = np.full(blocks, -1, np.int64)  # last visit; -1: not resident
    queue = np.empty(offsets[-1] // 4 + 4 * capacity + 1_000_000, np.int32)
    stamps = np.empty(len(queue), np.int32)
    head, tail, resident, loads = 0, 0, 0, 0
    for t in range(len(order)):
        for i in range(offsets[order[t]], offsets[order[t] + 1]):
            b = ids[i]
            loads += used[b] < 0
            resident += used[b] < 0
            used[b] = t
            queue[tail % len(queue)], stamps[tail % len(queue)] = b, t
            tail += 1
        while resident > capacity:
            b, stamp = queue[head % len(queue)], stamps[head % len(queue)]
            head += 1
            if used[b] == stamp:
                used[b] = -1
                resident -= 1
        if tail - head > len(queue) // 2:
            kept = 0
            for i in range(head, tail):
                b, stamp = queue[i % len(queue)], stamps[i % len(queue)]
                if used[b] == stamp:
                    queue[(head + kept) % len(queue)], stamps[(head + kept) % len(queue)] = b, stamp
                    kept += 1
            tail = head + kept
    return loads


@numba.njit(cache=True)
def belady_loads(offsets: np.ndarray, ids: np.ndarray, order: np.ndarray, blocks: int, capacity: int) -> int:
    """Least loads of any policy: what leaves is what is needed last (Belady 1966)."""
    starts = np.zeros(len(order) + 1, np.int64)
    for t in range(len(order)):
        starts[t + 1] = starts[t] + offsets[order[t] + 1] - offsets[order[t]]
    later = np.empty(starts[-1], np.int32)
    soonest = np.full(blocks, len(order), np.int32)
    for t in range(len(order) - 1, -1, -1):
        begin = offsets[order[t]]
        for i in range(starts[t + 1] - starts[t]):
            later[starts[t] + i] = soonest[ids[begin + i]]
            soonest[ids[begin + i]] = t
    slot = np.full(blocks, -1, np.int32)
    block = np.full(capacity, -1, np.int32)
    key = np.full(capacity, -1.0)  # next use of the block in each slot; -1: free, or needed now
    used, loads = 0, 0
    for t in range(len(order)):
        begin, n = offsets[order[t]], starts[t + 1] - starts[t]
        missing = 0
        for i in range(n):
            b = ids[begin + i]
            missing += slot[b] < 0
            if slot[b] >= 0:
                key[slot[b]] = -1
        free = farthest(key, missing - (capacity - used))
        for i in range(len(free)):
            slot[block[free[i]]] = -1
        at = 0
        for i in range(n):
            b = ids[begin + i]
            if slot[b] < 0:
                if used < capacity:
                    slot[b] = used
                    used += 1
                else:
                    slot[b] = free[at]
                    at += 1
                block[slot[b]] = b
            key[slot[b]] = later[starts[t] + i]
        loads += missing
    return loads


@dataclass(frozen=True)
class Ours:
    """What the planner did for an order."""

    uploads: int
    reads: int
    late: int  # uploads that were not planned while an earlier pass was running
    dropped: int
    seconds: float


def ours(bounds: Bounds, views: list[View], order: np.ndarray, arena: int, host: int, hideable: float) -> Ours:
    """Horizon and planner as in training, but that transfers take no time and every block of a pass is changed."""
    planner = Planner(bounds.count, arena, host, 5)
    exact = PassPlanner(bounds, views.__getitem__, SETTINGS, arena)
    predicted = PassPlanner(bounds, views.__getitem__, SETTINGS, arena, 0.02)
    steps = (Step(i, (int(v),)) for i, v in enumerate(order))
    horizon = Horizon(planner, exact, predicted, steps, 2 * len(views), max(planner.chunk, arena // 50))
    horizon.hideable = hideable
    uploads = reads = late = dropped = 0
    begun = time.thread_time()
    while dues := horizon.begin():
        for due in dues:
            moves, brought = horizon.ensure(due)
            late += brought
            while (more := horizon.advance()) is not None:
                moves.append(more)
            for part in moves:
                counts = np.bincount(part[:, KIND], minlength=4)
                uploads += int(counts[1])
                reads += int(counts[READ])
            dropped += len(planner.missing(due.plan.ids))
            planner.state.dirty[due.plan.ids] = True
            horizon.finish(due)
    return Ours(uploads, reads, late, dropped, time.thread_time() - begun)


def plan_seconds(bounds: Bounds, views: list[View]) -> float:
    """CPU seconds for the index of next uses of one epoch and the passes of all its steps, which know no tiers yet."""
    begun = time.thread_time()
    planner = PassPlanner(bounds, views.__getitem__, SETTINGS, bounds.count)
    offsets, ids = working_sets(bounds, np.stack([planner.planes(i) for i in range(len(views))]))
    build_index(offsets, ids, np.arange(len(views)), bounds.count, 0)
    for i in range(len(views)):
        planner.step(Step(i, (i,)))
    return time.thread_time() - begun


def orders(sets: Sets, views: int, arena: int, shuffled: int) -> dict[str, np.ndarray]:
    """One epoch of each order; of the shuffled one its first visits."""
    sweep = np.arange(views)
    tour = cache_tour(sets.offsets, sets.ids, sets.blocks, arena)
    window = window_for(sets.offsets, sets.ids, tour, arena)
    log(f"arena {arena}: windows of {window}")
    return {
        "trajectory": sweep,
        "windowed": Schedule(views, 1, 0, sweep, 32).epoch(0),
        "shuffled": Schedule(views, 1, 0).epoch(0)[:shuffled],
        "cache": Schedule(views, 1, 0, tour, window).epoch(0),
    }


def case(
    bounds: Bounds, views: list[View], sets: Sets, order: np.ndarray, arena: int, host: int
) -> tuple[dict[str, dict[str, float]], Ours]:
    """Blocks an image over both links, for each policy."""
    mine = ours(bounds, views, order, arena, host, 0.0)
    hidden = ours(bounds, views, order, arena, host, HIDEABLE)
    fixed = (sets.offsets, sets.ids, order.astype(np.int64), sets.blocks)
    whole = float(np.diff(sets.offsets)[order].mean())
    n = len(order)
    return {
        "no_reuse": {"pcie": whole, "ssd": whole},
        "lru": {"pcie": lru_loads(*fixed, arena) / n, "ssd": lru_loads(*fixed, arena + host) / n},
        "ours": {"pcie": mine.uploads / n, "ssd": mine.reads / n},
        "ours_hidden": {"pcie": hidden.uploads / n, "ssd": hidden.reads / n},
        "belady": {"pcie": belady_loads(*fixed, arena) / n, "ssd": belady_loads(*fixed, arena + host) / n},
    }, mine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="of the sides of the city, and of the capacities")
    parser.add_argument("--shuffled-visits", type=int, default=4000)
    parser.add_argument("--arenas", type=int, nargs="+", default=[2048, 5000])
    args = parser.parse_args()
    ground = WIDTH * args.scale, HEIGHT * args.scale
    table, views = city_table(*ground), city_views(*ground)
    bounds = Bounds(table)
    offsets, ids = working_sets(bounds, np.stack([view_planes(v, SETTINGS) for v in views]))
    sets = Sets(offsets, ids, len(table))
    log(f"{len(table)} blocks, {len(views)} views, {len(ids) / len(views):.0f} blocks a view")
    host = int(HOST_NBYTES * args.scale**2) // NBYTES
    ahead = plan_seconds(bounds, views)
    log(f"index and passes of an epoch: {ahead:.1f} s")
    cases: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    planning, dropped = 0.0, 0
    for arena in args.arenas:
        for name, order in orders(sets, len(views), arena, args.shuffled_visits).items():
            found, mine = case(bounds, views, sets, order, arena, host)
            cases.setdefault(str(arena), {})[name] = found
            dropped += mine.dropped
            planning = max(planning, mine.seconds * len(views) / len(order) if name != "shuffled" else 0)
            log(f"arena {arena}, {name}: planned in {mine.seconds:.0f} s; late {mine.late / mine.uploads:.3f}; {found}")
    print(json.dumps({**summary(cases, planning, dropped), "index_and_plans_seconds": round(ahead, 1)}))


def summary(
    cases: dict[str, dict[str, dict[str, dict[str, float]]]], planning: float, dropped: int
) -> dict[str, object]:
    names = next(iter(cases.values())).keys()

    def worst(name: str, other: str) -> float:
        pairs = [(c[name]["ours"][link], c[name][other][link]) for c in cases.values() for link in ("pcie", "ssd")]
        return round(max(a / b for a, b in pairs), 4)

    return {
        "ours_vs_belady": {name: worst(name, "belady") for name in names},
        "ours_vs_lru": {name: worst(name, "lru") for name in names},
        "cache_order_vs_trajectory": {
            arena: round(c["cache"]["ours"]["pcie"] / c["trajectory"]["ours"]["pcie"], 4) for arena, c in cases.items()
        },
        "dropped_blocks": dropped,
        "planner_seconds": round(planning, 1),
        "peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20), 2),
        "mib_a_block": round(NBYTES / (1 << 20), 2),
        "cases": {
            arena: {
                name: {policy: {link: round(v, 2) for link, v in links.items()} for policy, links in found.items()}
                for name, found in c.items()
            }
            for arena, c in cases.items()
        },
    }


if __name__ == "__main__":
    main()
