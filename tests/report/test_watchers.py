"""--tensorboard and --log-file."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from PIL import Image

from tests.report.fake import row
from tests.training import settings
from tidegs.errors import ConfigError
from tidegs.train.run import RunRequest, run_training
from tidegs.train.watchers import LogFile, TensorBoard


def request(city, out, **changes):
    config = settings(max_steps=1)
    return RunRequest(city, out, None, config, False, evaluate=False, quiet=True, **changes)


def test_without_the_package_nothing_is_begun(city, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match="pip install tensorboard"):
        run_training(request(city, tmp_path / "out", tensorboard=True))
    assert not (tmp_path / "out").exists()


def test_a_log_file_that_cannot_be_written_is_named(city, tmp_path):
    with pytest.raises(ConfigError, match="--log-file"):
        run_training(request(city, tmp_path / "out", log_file=tmp_path))
    assert not (tmp_path / "out").exists()


def test_one_line_a_minute_and_the_last(tmp_path):
    log = LogFile(tmp_path / "log.txt")
    for step in (10, 20, 30):
        log.line(row(step), f"step {step}")
    log.said("done")
    log.close()
    found = [line[20:] for line in (tmp_path / "log.txt").read_text().splitlines()]
    assert found == ["step 10", "done", "step 30"]


def test_tensorboard_gets_the_names_of_gsplat(tmp_path):
    pytest.importorskip("tensorboard", reason="the package tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    Image.fromarray(np.zeros((4, 8, 3), np.uint8)).save(tmp_path / "a.png")
    board = TensorBoard(tmp_path / "tb")
    board.line(row(10), "")
    board.evaluated(10, {"psnr": 21.5, "ssim": 0.5, "lpips": None, "num_GS": 7}, [tmp_path / "a.png"])
    board.close()
    found = EventAccumulator(str(tmp_path / "tb"))
    found.Reload()
    assert {"train/loss", "train/num_GS", "train/mem", "val/psnr", "val/ssim"} <= set(found.Tags()["scalars"])
    assert found.Scalars("val/psnr")[0].value == pytest.approx(21.5)
    assert found.Tags()["images"] == ["val/render_0000"]
