"""What must fit together before the CUDA device can run: torch, driver, GPU, Triton, gsplat and its compiler.

Invariant: what is wrong is said in one sentence with its remedy, before anything is allocated or compiled.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from tidegs.errors import DeviceError

LEAST_CAPABILITY = (7, 0)  # gsplat's cooperative groups, and Triton
GSPLAT = ((1, 5, 3), (1, 6))  # from, below
JOB_NBYTES = 3 << 30  # what one compiler process may need


@dataclass(frozen=True)
class Facts:
    """What is installed. Versions are None where the thing is missing."""

    torch: str
    torch_cuda: str | None
    gpu: bool
    capability: tuple[int, int] | None
    archs: tuple[str, ...]  # that torch was built for: "sm_90", ...
    triton: str | None
    gsplat: str | None
    kernels_built: bool  # gsplat's CUDA kernels are there, compiled
    nvcc: str | None  # version
    ninja: bool


def gather_facts() -> Facts:
    """Looks; compiles and allocates nothing."""
    gpu = torch.version.cuda is not None and torch.cuda.is_available()
    home = cuda_home()
    return Facts(
        torch=torch.__version__,
        torch_cuda=torch.version.cuda,
        gpu=gpu,
        capability=torch.cuda.get_device_capability() if gpu else None,
        archs=tuple(torch.cuda.get_arch_list()) if gpu else (),
        triton=_version("triton"),
        gsplat=_version("gsplat"),
        kernels_built=_kernels_built(),
        nvcc=nvcc_version(home) if home else None,
        ninja=shutil.which("ninja") is not None or importlib.util.find_spec("ninja") is not None,
    )


def problem(facts: Facts) -> str | None:
    """What keeps the CUDA device from running, with its remedy; None where nothing does."""
    if facts.torch_cuda is None:
        return (
            f"torch {facts.torch} is a CPU build: install one for CUDA with `pip install 'tidegs[cuda13]'` (driver 580 "
            "or newer) or `'tidegs[cuda12]'`, or use --device cpu"
        )
    if not facts.gpu or facts.capability is None:
        return (
            f"torch {facts.torch} is built for CUDA {facts.torch_cuda} but finds no GPU: look at nvidia-smi, the "
            "driver's version and CUDA_VISIBLE_DEVICES, or use --device cpu"
        )
    major, minor = facts.capability
    if facts.capability < LEAST_CAPABILITY:
        return (
            f"the GPU has compute capability {major}.{minor}, and at least "
            f"{LEAST_CAPABILITY[0]}.{LEAST_CAPABILITY[1]} is needed: use --device cpu"
        )
    if facts.archs and not any(_runs_on(arch, facts.capability) for arch in facts.archs):
        return (
            f"torch {facts.torch} has no code for compute capability {major}.{minor} (it has "
            f"{', '.join(facts.archs)}): install a build of torch that fits the GPU"
        )
    if facts.triton is None:
        return "triton is not installed: `pip install triton` in the version that torch asks for"
    if facts.gsplat is None or not GSPLAT[0] <= _numbers(facts.gsplat) < GSPLAT[1]:
        return f"gsplat {facts.gsplat or 'is missing'}: `pip install 'gsplat>=1.5.3,<1.6'`"
    return None if facts.kernels_built else _compiler_problem(facts, facts.torch_cuda)


def _compiler_problem(facts: Facts, torch_cuda: str) -> str | None:
    wanted = torch_cuda.split(".")[0]
    if facts.nvcc is None:
        return (
            f"gsplat's CUDA kernels are not compiled yet, and there is no nvcc: install the CUDA {wanted} toolkit and "
            f"set CUDA_HOME to its folder, or `pip install 'cuda-toolkit[nvcc,cccl,crt]=={torch_cuda}.*'` for CUDA 13"
        )
    if facts.nvcc.split(".")[0] != wanted:
        return (
            f"nvcc is of CUDA {facts.nvcc} but torch {facts.torch} is for CUDA {torch_cuda}: set CUDA_HOME to a CUDA "
            f"{wanted} toolkit, so that gsplat's kernels can be compiled"
        )
    if not facts.ninja:
        return "gsplat's CUDA kernels are not compiled yet, and there is no ninja: `pip install ninja`"
    return None


def require() -> None:
    """Makes the CUDA device ready to be opened: checks versions, compiles gsplat's kernels for this GPU where that has
    not been done. Raises DeviceError."""
    facts = gather_facts()
    trouble = problem(facts)
    if trouble:
        raise DeviceError(f"--device cuda cannot be used: {trouble}")
    if not facts.kernels_built and facts.capability:
        _prepare_compiler(facts.capability)
        where = f"sm_{facts.capability[0]}{facts.capability[1]}"
        print(f"compiling gsplat's kernels for {where}, once; this takes some minutes", file=sys.stderr)
    from gsplat.cuda import _backend

    if _backend._C is None:
        raise DeviceError(
            "--device cuda cannot be used: gsplat found no CUDA toolkit to compile its kernels with: set CUDA_HOME"
        )


def _prepare_compiler(capability: tuple[int, int]) -> None:
    """For this GPU alone (gsplat's default is every one), with as many processes as memory allows."""
    home = cuda_home()
    if home:
        os.environ.setdefault("CUDA_HOME", str(home))
    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", f"{capability[0]}.{capability[1]}")
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    os.environ.setdefault("MAX_JOBS", str(max(1, min(os.cpu_count() or 1, free // JOB_NBYTES))))


def cuda_home() -> Path | None:
    """The folder of the CUDA toolkit: CUDA_HOME, that of the nvcc on the PATH, or that of NVIDIA's pip packages.

    The nvcc on the PATH may be a wrapper in another folder, so it is asked where it lies.
    """
    named = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if named:
        return Path(named)
    nvcc = shutil.which("nvcc")
    if nvcc:
        said = _run([nvcc, "--dryrun", "-E", "-x", "cu", os.devnull])
        found = re.search(r"^#\$ TOP=(.+)$", said, re.MULTILINE)
        return Path(found[1]).resolve() if found else Path(nvcc).resolve().parents[1]
    places = [Path(p) / "nvidia" / "cu13" for p in sys.path if p]
    return next((p for p in places if (p / "bin" / "nvcc").is_file()), None)


def nvcc_version(home: Path) -> str | None:
    """ "13.0" of the toolkit's compiler; None where it does not run."""
    found = re.search(r"release (\d+\.\d+)", _run([str(home / "bin" / "nvcc"), "--version"]))
    return found[1] if found else None


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout + done.stderr


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version)[:3])


def _runs_on(arch: str, capability: tuple[int, int]) -> bool:
    """Machine code runs on later minors of its major; PTX (compute_) on anything later."""
    kind, _, digits = arch.partition("_")
    digits = digits.rstrip("af")
    built = int(digits[:-1]), int(digits[-1])
    if kind == "compute":
        return built <= capability
    return built[0] == capability[0] and built[1] <= capability[1]


def _kernels_built() -> bool:
    """A compiled `gsplat.csrc`, or what gsplat's just-in-time build left behind."""
    spec = importlib.util.find_spec("gsplat")
    if spec is None or spec.origin is None:
        return False
    if any(Path(spec.origin).parent.glob("csrc*.so")):
        return True
    from torch.utils import cpp_extension

    named = os.environ.get("TORCH_EXTENSIONS_DIR")
    built = "gsplat_cuda/gsplat_cuda.so"
    if named:
        return (Path(named) / built).is_file()
    python, cuda = "py{}{}".format(*sys.version_info), (torch.version.cuda or "").replace(".", "")
    return any(Path(cpp_extension.get_default_build_root()).glob(f"{python}*_cu{cuda}/{built}"))
