"""Whatever does not fit is said in one sentence with its remedy."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tidegs.device.cuda import open_cuda, versions
from tidegs.device.cuda.versions import Facts, problem
from tidegs.errors import DeviceError

GOOD = Facts(
    torch="2.13.0+cu130",
    torch_cuda="13.0",
    gpu=True,
    capability=(8, 9),
    archs=("sm_75", "sm_80", "sm_86", "sm_90"),
    triton="3.7.1",
    gsplat="1.5.3",
    kernels_built=False,
    nvcc="13.1",
    ninja=True,
)


def test_what_fits():
    assert problem(GOOD) is None
    assert problem(replace(GOOD, kernels_built=True, nvcc=None, ninja=False)) is None
    assert problem(replace(GOOD, torch="2.9.1+cu128", torch_cuda="12.8", nvcc="12.4")) is None
    assert problem(replace(GOOD, capability=(12, 0), archs=("sm_80", "compute_120"))) is None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"torch_cuda": None, "gpu": False}, r"is a CPU build: .*tidegs\[cuda13\].*tidegs\[cuda12\]"),
        ({"gpu": False, "capability": None}, r"finds no GPU: .*nvidia-smi"),
        ({"capability": (6, 1)}, r"compute capability 6\.1, and at least 7\.0"),
        ({"capability": (12, 0)}, r"no code for compute capability 12\.0 \(it has sm_75"),
        ({"triton": None}, r"pip install triton"),
        ({"gsplat": "1.4.0"}, r"gsplat 1\.4\.0: .*>=1\.5\.3"),
        ({"gsplat": "1.6.0"}, r"<1\.6"),
        ({"gsplat": None}, r"gsplat is missing"),
        ({"nvcc": None}, r"no nvcc: install the CUDA 13 toolkit"),
        ({"nvcc": "12.4"}, r"nvcc is of CUDA 12\.4 but torch .* is for CUDA 13\.0"),
        ({"ninja": False}, r"pip install ninja"),
    ],
)
def test_what_does_not_fit(change, sentence):
    import re

    said = problem(replace(GOOD, **change))
    assert said is not None
    assert re.search(sentence, said)
    assert "\n" not in said


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch is a CUDA build here")
def test_opening_without_cuda_is_an_error_of_one_sentence():
    with pytest.raises(DeviceError, match=r"--device cuda cannot be used: torch .* is a CPU build"):
        open_cuda()


def test_the_package_imports_without_triton_or_cuda():
    """Only opening the device needs them."""
    code = (
        "import sys\n"
        "sys.modules['triton'] = None\n"
        "import tidegs.device.cuda, tidegs.device.cuda.device, tidegs.device.cuda.versions\n"
    )
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True)


def test_the_toolkit_is_found_behind_a_wrapper(tmp_path, monkeypatch):
    """A script called nvcc on the PATH that runs a toolkit elsewhere."""
    home = tmp_path / "toolkit"
    (home / "bin").mkdir(parents=True)
    real = home / "bin" / "nvcc"
    real.write_text(f'#!/bin/sh\necho "#\\$ TOP={home}"\necho "Cuda compilation tools, release 13.0, V13.0.88"\n')
    wrapper = tmp_path / "path" / "nvcc"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {real} "$@"\n')
    for script in (real, wrapper):
        script.chmod(0o755)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("PATH", str(wrapper.parent), prepend=":")
    assert versions.cuda_home() == home.resolve()
    assert versions.nvcc_version(home) == "13.0"
    monkeypatch.setenv("CUDA_HOME", "/elsewhere")
    assert versions.cuda_home() == Path("/elsewhere")
    assert versions.nvcc_version(Path("/elsewhere")) is None
