"""A strategy that cannot be served is refused before anything is written; every way to begin a run serves it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.training import settings, train
from tidegs.config import TrainConfig, load_config
from tidegs.errors import ConfigError
from tidegs.store.block_store import BlockStore
from tidegs.train.run import RunRequest, run_training
from tidegs.train.strategies.choose import resolved

QUICK = {"max_steps": 12, "refine_start_iter": 2, "refine_every": 4, "grow_grad2d": 1e-4, "order": "shuffle"}


@pytest.mark.parametrize(
    ("points", "expected"),
    [(999_999, "default"), (1_000_000, "none"), (None, "none")],
)
def test_auto_thickens_thin_clouds(points, expected):
    config = resolved(TrainConfig(), points)
    assert config == TrainConfig(strategy=expected)
    assert resolved(TrainConfig(strategy="mcmc"), points).strategy == "mcmc"


@pytest.mark.parametrize(
    ("chosen", "opacity", "scale"),
    [
        ({"strategy": "default"}, 0.1, 1.0),
        ({"strategy": "mcmc"}, 0.5, 0.1),  # of gsplat 1.5.3's simple_trainer.py mcmc
        ({"strategy": "mcmc", "init_opacity": 0.2, "init_scale": 0.7}, 0.2, 0.7),
    ],
)
def test_first_gaussians_are_those_of_the_strategy(city, tmp_path, chosen, opacity, scale):
    plain = settings(strategy="none", init_scale=1.0, max_steps=0)
    widths = []
    for name, config in (("run", settings(**chosen, max_steps=0)), ("plain", plain)):
        train(city, tmp_path / name, config)
        with BlockStore.open(tmp_path / name / "store", readonly=True) as store:
            seeds = store.table[store.table["count"] > 0]
            widths.append(seeds["extent"].max())
            assert 1 / (1 + np.exp(-store.seed_opacity)) == pytest.approx(opacity if name == "run" else 0.1)
    assert widths[0] == pytest.approx(scale * widths[1], rel=1e-5)


def test_a_result_says_what_auto_was(city, tmp_path):
    assert train(city, tmp_path / "run", settings(strategy="auto", max_steps=1)).finished
    assert load_config(tmp_path / "run" / "cfg.yml").strategy == "default"


def test_a_run_keeps_its_strategy_and_adam(city, tmp_path):
    out = tmp_path / "run"
    train(city, out, settings(**QUICK, strategy="none"))
    cfg = (out / "cfg.yml").read_bytes()
    with pytest.raises(ConfigError, match="begun with strategy none and cannot go on with default"):
        train(city, out, settings(**{**QUICK, "max_steps": 20}, strategy="default"), resume=True)
    with pytest.raises(ConfigError, match="begun with adam selective and cannot go on with dense"):
        train(city, out, settings(**{**QUICK, "max_steps": 20}, strategy="none", adam="dense"), resume=True)
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
