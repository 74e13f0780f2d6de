"""A headless Chromium for tests: the page as it is after its scripts, and what they wrote to the console."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
    "--virtual-time-budget=5000",
)


@dataclass(frozen=True)
class Seen:
    """What a browser made of a page."""

    dom: str
    console: list[str]


def chromium() -> str:
    """The browser's path; skips the test where there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")


def look(page: Path, work: Path, *flags: str) -> Seen:
    """Opens a page from a file; `work`: a new folder for the browser's profile."""
    command = [chromium(), *_FLAGS, *flags, f"--user-data-dir={work}", "--dump-dom", page.resolve().as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return Seen(done.stdout, re.findall(r"CONSOLE.*", done.stderr))


def screenshot(page: Path, work: Path, target: Path, width: int, height: int, *flags: str) -> None:
    command = [chromium(), *_FLAGS, *flags, f"--user-data-dir={work}", f"--window-size={width},{height}"]
    subprocess.run([*command, f"--screenshot={target}", page.resolve().as_uri()], capture_output=True, timeout=120)
