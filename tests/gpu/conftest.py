"""Tests that need a GPU; scripts/gpu_check.sh runs them in a process of their own, with real Triton and real gsplat."""

from __future__ import annotations

import os

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what is here where it cannot run."""
    if not torch.cuda.is_available():
        reason = "no GPU"
    elif os.environ.get("TRITON_INTERPRET") == "1":
        reason = "Triton is in its interpreter: run tests/gpu in a process of its own"
    else:
        return
    for item in items:
        if "/gpu/" in item.nodeid or item.nodeid.startswith("gpu/"):
            item.add_marker(pytest.mark.skip(reason=reason))
