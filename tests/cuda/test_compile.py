"""Triton's compiler takes every kernel, for the GPUs that users have; no GPU is needed for that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed")


def compile_for(capabilities: list[int], tmp_path: Path) -> dict[str, list[int]]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)  # so that they are compiled, not found
    command = [sys.executable, "-m", "tests.cuda.compile_kernels", *map(str, capabilities)]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_ada(tmp_path):
    """RTX 40 series."""
    sizes = compile_for([89], tmp_path)
    assert len(sizes) == 12
    assert all(size > 0 for each in sizes.values() for size in each)


@pytest.mark.slow
def test_ampere_and_hopper(tmp_path):
    """A100, H100 and H200."""
    sizes = compile_for([80, 90], tmp_path)
    assert all(size > 0 for each in sizes.values() for size in each)
