"""Settings: valid or refused in one sentence, the same through files, presets and the command line."""

import argparse
import dataclasses

import pytest

from tidegs.cli.options import add_config_options, config_from_args
from tidegs.config import PRESETS, TrainConfig, dump_config, load_config, parse_memory, preset_path
from tidegs.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4GiB", 4 << 30), ("512MB", 512 << 20), ("1.5g", 3 << 29), ("20%", 200), ("0", 0), ("123", 123)],
)
def test_memory_sizes(text, expected):
    assert parse_memory(text, total=1000) == expected


@pytest.mark.parametrize("text", ["", "four", "4 XB", "-1GiB", "%", "1e3"])
def test_bad_memory_sizes_name_the_setting(text):
    with pytest.raises(ConfigError, match="host_memory"):
        parse_memory(text, total=1000, name="host_memory")


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"max_steps": "x"}, "max_steps"),
        ({"max_steps": -1}, "max_steps"),
        ({"device": "gpu"}, "device"),
        ({"background": [0, 1]}, "background"),
        ({"block_capacity": 100}, "block_capacity"),
        ({"ssim_lambda": float("nan")}, "ssim_lambda"),
        ({"antialiased": 1}, "antialiased"),
        ({"eval_steps": 5}, "eval_steps"),
        ({"device_memory": "lots"}, "device_memory"),
    ],
)
def test_bad_settings_are_refused_by_name(bad, named):
    with pytest.raises(ConfigError, match=named):
        TrainConfig(**bad)


def test_a_file_gives_back_what_was_dumped(tmp_path):
    config = TrainConfig(max_steps=7, background=(0.5, 0.25, 1.0), antialiased=True, eval_steps=(1, 2))
    (tmp_path / "cfg.yml").write_text(dump_config(config))
    assert load_config(tmp_path / "cfg.yml") == config


@pytest.mark.parametrize(
    ("text", "match"),
    [("no_such: 1", "no_such"), ("- 1", "name: value"), ("{", "cannot be read"), ("seed: red", "seed")],
)
def test_bad_files_are_refused_in_a_sentence(tmp_path, text, match):
    (tmp_path / "cfg.yml").write_text(text)
    with pytest.raises(ConfigError, match=match):
        load_config(tmp_path / "cfg.yml")


def test_steps_scaler_scales_every_count():
    config = TrainConfig(steps_scaler=0.1).scaled()
    assert (config.max_steps, config.sh_degree_interval, config.eval_steps) == (3000, 100, (700, 3000))
    assert config.scaled() == config


def test_every_setting_has_an_option_and_the_command_line_wins(tmp_path):
    parser = argparse.ArgumentParser()
    parser.add_argument("--config")
    add_config_options(parser)
    text = parser.format_help()
    for f in dataclasses.fields(TrainConfig):
        assert f"--{f.name.replace('_', '-')}" in text
    (tmp_path / "mine.yml").write_text("max_steps: 5\nseed: 9\n")
    args = parser.parse_args(
        ["--config", str(tmp_path / "mine.yml"), "--max_steps", "6", "--background", "1", "1", "0", "--antialiased"]
    )
    config = config_from_args(args)
    assert (config.max_steps, config.seed, config.background, config.antialiased) == (6, 9, (1.0, 1.0, 0.0), True)


def test_presets_load_and_unknown_ones_are_named():
    for path in PRESETS.glob("*.yml"):
        load_config(preset_path(path.stem))
    with pytest.raises(ConfigError, match="nonesuch"):
        preset_path("nonesuch")
