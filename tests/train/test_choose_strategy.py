"""A strategy that cannot be served is refused before anything is written; every way to begin a run serves it."""

from __future__ import annotations

import pytest

from tests.training import settings, train
from tidegs.errors import ConfigError
from tidegs.store.block_store import BlockStore
from tidegs.train.run import RunRequest, run_training

QUICK = {"max_steps": 12, "refine_start_iter": 2, "refine_every": 4, "grow_grad2d": 1e-4, "order": "shuffle"}


@pytest.mark.parametrize("strategy", ["default", "mcmc"])
def test_a_device_without_statistics_refuses(city, tmp_path, strategy):
    with pytest.raises(ConfigError, match=f"strategy {strategy} does not run on device cuda.*--strategy none"):
        train(city, tmp_path / "run", settings(strategy=strategy, device="cuda"))
    assert not (tmp_path / "run").exists()


def test_a_run_keeps_its_strategy(city, tmp_path):
    out = tmp_path / "run"
    train(city, out, settings(**QUICK, strategy="none"))
    cfg = (out / "cfg.yml").read_bytes()
    with pytest.raises(ConfigError, match="begun with strategy none and cannot go on with default"):
        train(city, out, settings(**{**QUICK, "max_steps": 20}, strategy="default"), resume=True)
    assert (out / "cfg.yml").read_bytes() == cfg


def test_trained_gaussians_grow_too(city, tmp_path):
    """A store made from a file of Gaussians has the statistics that the strategy goes by."""
    first = RunRequest(city, tmp_path / "first", None, settings(**QUICK), False, evaluate=True, quiet=True)
    before = run_training(first).summary["num_gaussians"]
    ply = tmp_path / "first" / "ply" / "point_cloud_12.ply"
    config = settings(**QUICK, strategy="default")
    request = RunRequest(city, tmp_path / "second", None, config, False, evaluate=False, quiet=True, init=ply)
    assert run_training(request).summary["num_gaussians"] > before
    with BlockStore.open(tmp_path / "second" / "store", readonly=True) as store:
        assert store.layout.stat_components == 2
