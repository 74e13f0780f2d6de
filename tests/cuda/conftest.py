"""The CUDA device on a CPU: gsplat over reference operators, streams that check order, Triton in its interpreter."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined

from tests.cuda.reference_ops import gsplat_on_cpu


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
