"""The run's log: one JSON line every few steps in `stats/train.jsonl`, and the progress bar.

Invariant: after a resume the file holds exactly the lines of the steps that count.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from tidegs.train.watchers import MINUTE, Watcher

LOG_EVERY = 10  # steps


class TrainLog:
    """Collects what happened in each step and shows it."""

    def __init__(
        self, path: Path, start: int, total: int, quiet: bool = False, watchers: Sequence[Watcher] = ()
    ) -> None:
        self._path, self._watchers = path, watchers
        self._start, self._total = start, total
        self._begun = self._last_line = time.monotonic()
        self._losses: list[float] = []
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._bar = tqdm(
            total=total,
            initial=start,
            disable=quiet or not self._terminal,
            unit="it",
            dynamic_ncols=True,
            smoothing=0.1,
        )
        self._keep_until(start)
        self._file = open(path, "a", buffering=1)  # noqa: SIM115  (closed in close)

    def _keep_until(self, start: int) -> None:
        """Drops lines of steps that a resume takes again."""
        if not self._path.exists():
            return
        kept = []
        for line in self._path.read_text().splitlines():
            try:
                if json.loads(line)["step"] <= start:
                    kept.append(line)
            except (ValueError, KeyError):
                continue  # a line torn by a crash
        self._path.write_text("".join(line + "\n" for line in kept))

    def due(self, step: int) -> bool:
        """Whether a line is written after step number `step` (counted from 1)."""
        return step % LOG_EVERY == 0 or step == self._total

    def step(self, loss: float) -> None:
        """One step is done."""
        self._losses.append(loss)
        self._bar.update(1)

    def line(self, step: int, mse: float, tiers: dict[str, Any]) -> None:
        """Writes a line: mean loss since the last, PSNR of the last image, and the state of the tiers."""
        loss = sum(self._losses) / max(1, len(self._losses))
        self._losses.clear()
        psnr = -10 * math.log10(max(mse, 1e-10))
        elapsed = time.monotonic() - self._begun
        stalled = tiers["stall_seconds"] / max(elapsed, 1e-9)
        row = {"step": step, "seconds": round(elapsed, 3), "loss": loss, "psnr": psnr, **tiers}
        self._file.write(json.dumps(row) + "\n")
        shown = {
            "loss": f"{loss:.4f}",
            "psnr": f"{psnr:.2f}",
            "arena": f"{tiers['arena_used']}/{tiers['arena_slots']}",
            "host": f"{tiers['host_used']}/{tiers['host_slots']}",
            "stall": f"{100 * stalled:.0f}%",
        }
        self._bar.set_postfix(shown, refresh=False)
        rate = (step - self._start) / max(elapsed, 1e-9)
        text = f"step {step}/{self._total} {' '.join(f'{k} {v}' for k, v in shown.items())} {rate:.1f} it/s"
        for watcher in self._watchers:
            watcher.line(row, text)
        now = time.monotonic()
        if not self._quiet and not self._terminal and (now - self._last_line >= MINUTE or step == self._total):
            self._last_line = now
            print(text, file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """A sentence for the user, above the bar."""
        for watcher in self._watchers:
            watcher.said(text)
        if not self._quiet:
            self._bar.write(text, file=sys.stderr)

    def evaluated(self, step: int, scores: dict[str, Any], pictures: list[Path]) -> None:
        """The test split was scored; see Watcher."""
        for watcher in self._watchers:
            watcher.evaluated(step, scores, pictures)

    def flush(self) -> None:
        """Everything so far is in the file."""
        self._file.flush()

    def close(self) -> None:
        self._bar.close()
        self._file.close()
        for watcher in self._watchers:
            watcher.close()


def say(text: str, quiet: bool = False) -> None:
    """A sentence for the user, on standard error, so that standard output can be piped."""
    if not quiet:
        print(text, file=sys.stderr, flush=True)
