"""Spellings of other trainers, presets, help that fits, completion."""

from __future__ import annotations

import argparse
import subprocess

import pytest

from tidegs.cli import train
from tidegs.cli.completion import bash_script
from tidegs.cli.main import COMMANDS, main
from tidegs.cli.options import add_config_options, config_from_args
from tidegs.config import PRESETS, TrainConfig, load_config, preset_path
from tidegs.train.result import ResultFolder


def parse(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    train.add_arguments(parser)
    args = parser.parse_args(argv)
    train._apply_aliases(args)
    return args


@pytest.mark.parametrize(
    "argv",
    [
        ["garden", "--out", "o", "--data-factor", "4", "--max-steps", "7", "--ssim-lambda", "0.3"],
        ["--data_dir", "garden", "--result_dir", "o", "--data_factor", "4", "--max_steps", "7", "--ssim_lambda", "0.3"],
        ["-s", "garden", "-m", "o", "-r", "4", "--iterations", "7", "--eval", "--lambda_dssim", "0.3"],
        ["--source_path", "garden", "--model_path", "o", "--resolution", "4", "--iterations", "7"],
    ],
)
def test_spellings_mean_the_same(argv):
    args = parse(*argv)
    config = config_from_args(args)
    assert (str(args.scene), str(args.out)) == ("garden", "o")
    assert config == TrainConfig(data_factor=4, max_steps=7, ssim_lambda=config.ssim_lambda)
    assert config.ssim_lambda == (0.3 if "0.3" in argv else 0.2)


def test_nothing_given_is_the_default_and_the_scene_is_given_once(capsys):
    args = parse()
    assert args.scene is None
    assert args.out is None
    assert config_from_args(args) == TrainConfig()
    assert main(["train", "garden", "-s", "other"]) == 2
    assert "the scene is given twice" in capsys.readouterr().err


def test_a_run_with_inria_spellings(city, tmp_path):
    argv = [
        "-s",
        str(city),
        "-m",
        str(tmp_path / "o"),
        "-r",
        "2",
        "--iterations",
        "1",
        "--eval",
        "--no-eval",
        "--quiet",
    ]
    assert main(["train", *argv, "--test_iterations", "1"]) == 0
    config = ResultFolder(tmp_path / "o").config()
    assert (config.data_factor, config.max_steps, config.eval_steps) == (2, 1, (1,))


@pytest.mark.parametrize("name", ["quality", "fast", "city", "cpu", "mcmc"])
def test_presets_are_valid_and_differ_from_the_defaults(name):
    config = load_config(preset_path(name))
    assert config != TrainConfig()
    assert max(config.eval_steps + config.save_steps + config.ply_steps) == config.max_steps
    assert sorted(p.stem for p in PRESETS.glob("*.yml")) == ["city", "cpu", "fast", "mcmc", "quality"]


def test_help_of_train_fits_two_screens_and_has_every_setting(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 100
    assert max(map(len, text.splitlines())) <= 120
    parser = argparse.ArgumentParser()
    add_config_options(parser)
    for action in parser._actions:
        if action.help != argparse.SUPPRESS:
            assert action.option_strings[0] in text


def complete(*words: str) -> list[str]:
    """What bash offers for the last of the words."""
    line = " ".join(f"'{w}'" for w in words)
    state = f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}"
    script = f"{bash_script()}\n{state}\n_tidegs\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_commands_options_and_values():
    assert set(complete("tidegs", "")) == set(COMMANDS)
    assert complete("tidegs", "exp") == ["export"]
    assert "--max-count" in complete("tidegs", "export", "--m")
    assert complete("tidegs", "export", "r", "--format", "s") == ["splat", "spz", "sog"]
    assert complete("tidegs", "completion", "") == ["bash"]
    assert complete("tidegs", "train", "gar") == []  # files, by bash itself
