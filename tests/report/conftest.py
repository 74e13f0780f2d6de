"""A finished run, once for all tests of the report: 60 steps out of core, evaluated twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training import settings
from tidegs.train.run import RunRequest, run_training


@pytest.fixture(scope="session")
def result(city: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "run"
    config = settings(
        max_steps=60, eval_steps=[30, 60], device_memory="40%", host_memory="30%", image_memory="4MiB", order="shuffle"
    )
    run_training(RunRequest(city, out, None, config, False, evaluate=True, quiet=True, log_file=out.parent / "log.txt"))
    return out
