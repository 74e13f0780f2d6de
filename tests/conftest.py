"""Fixtures for all tests."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("MKL_CBWR", "COMPATIBLE")  # else torch's products of a row depend on how many rows there are

import pytest
from hypothesis import settings

from tidegs.cli.main import main

settings.register_profile("same", derandomize=True)  # a red run can be repeated
settings.load_profile("same")

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of captured scenes and odd inputs that stands beside a developer's checkout."""
    if not SHARED.is_dir():
        pytest.skip(f"no folder {SHARED.name}/ beside the checkout: captured scenes are not at hand")
    return SHARED


@pytest.fixture(scope="session")
def city(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small generated city: 16 aerial views of 96x64, 12,000 points, about 190 blocks of 64."""
    out = tmp_path_factory.mktemp("scenes") / "city"
    sizes = ["--aerial", "16", "--street", "0", "--size", "96", "64", "--points", "12000", "--points-from", "all"]
    assert main(["synth", str(out), "--preset", "tiny", "--extent", "300", *sizes]) == 0
    return out
