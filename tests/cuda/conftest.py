"""The CUDA device on a CPU: gsplat over reference operators, streams that check order, Triton in its interpreter."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined

from tests.cuda.reference_ops import gsplat_on_cpu
from tidegs.cli.main import main


@pytest.fixture(autouse=True)
def _gsplat() -> Iterator[None]:
    with gsplat_on_cpu():
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Tensors here are small: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def village(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """8 aerial views of 48x32, 1,600 points."""
    out = tmp_path_factory.mktemp("scenes") / "village"
    sizes = ["--aerial", "8", "--street", "0", "--size", "48", "32", "--points", "1600", "--points-from", "all"]
    assert main(["synth", str(out), "--preset", "tiny", "--extent", "200", *sizes]) == 0
    return out
