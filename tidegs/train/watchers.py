"""Who else follows a run's log: a plain text file, TensorBoard.

Invariant: a watcher only listens; a run computes the same with and without it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from tidegs.errors import ConfigError

MINUTE = 60.0  # seconds between lines of progress in plain text


class Watcher(Protocol):
    """What a TrainLog tells."""

    def line(self, row: dict[str, Any], text: str) -> None:
        """A line of the log, and the same for people."""

    def said(self, text: str) -> None:
        """A sentence for the user."""

    def evaluated(self, step: int, scores: dict[str, Any], pictures: list[Path]) -> None:
        """The test split was scored: the content of stats/val_stepNNNN.json, and its comparison images."""

    def close(self) -> None: ...


class LogFile:
    """Sentences and a line of progress a minute, each with its time; appended, so that a resume goes on in it."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError where the file cannot be written."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "a", buffering=1)  # noqa: SIM115  (closed in close)
        except OSError as error:
            raise ConfigError(f"--log-file {path}: cannot be written: {error.strerror}") from error
        self._last = -MINUTE
        self._newest = ""  # line of progress that has not been written

    def line(self, row: dict[str, Any], text: str) -> None:
        self._newest = text
        if time.monotonic() - self._last >= MINUTE:
            self._last = time.monotonic()
            self._write_newest()

    def said(self, text: str) -> None:
        self._file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def evaluated(self, step: int, scores: dict[str, Any], pictures: list[Path]) -> None:
        pass

    def close(self) -> None:
        self._write_newest()
        self._file.close()

    def _write_newest(self) -> None:
        if self._newest:
            self.said(self._newest)
            self._newest = ""


class TensorBoard:
    """Scalars and images in the folder and under the names that gsplat uses: train/loss, train/num_GS, val/psnr, ..."""

    def __init__(self, folder: Path) -> None:
        self._writer = _summary_writer()(log_dir=str(folder))

    def line(self, row: dict[str, Any], text: str) -> None:
        values = {
            "train/loss": row["loss"],
            "train/psnr": row["psnr"],
            "train/num_GS": row["num_GS"],
            "train/mem": row["rss"] / 2**30,
            "tiers/arena_used": row["arena_used"],
            "tiers/host_used": row["host_used"],
            "tiers/stall_seconds": row["stall_seconds"],
            **{f"moved_bytes/{link}": n for link, n in row["moved_bytes"].items()},
        }
        for name, value in values.items():
            self._writer.add_scalar(name, value, row["step"])

    def said(self, text: str) -> None:
        pass

    def evaluated(self, step: int, scores: dict[str, Any], pictures: list[Path]) -> None:
        for name in ("psnr", "ssim", "lpips", "num_GS"):
            if scores.get(name) is not None:
                self._writer.add_scalar(f"val/{name}", scores[name], step)
        for k, path in enumerate(pictures):
            with Image.open(path) as picture:
                self._writer.add_image(f"val/render_{k:04d}", np.asarray(picture), step, dataformats="HWC")
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def check_watchers(log_file: Path | None, tensorboard: bool) -> None:
    """Raises ConfigError where one of them could not be opened later."""
    if log_file:
        LogFile(log_file).close()
    if tensorboard:
        _summary_writer()


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError("--tensorboard needs the package tensorboard: pip install tensorboard") from error
    return SummaryWriter
