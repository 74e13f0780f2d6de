"""Compiles gsplat's CUDA kernels once, so that other machines need no compiler: writes csrc.so.

usage: python scripts/build_gsplat.py OUT [ARCH ...]        e.g.  wheels 8.0 8.9 9.0

Run it where there is nvcc and the torch that the other machine has (no GPU is needed). Put the file beside gsplat's own
files there (site-packages/gsplat/csrc.so), which scripts/gpu_check.sh does with one that it finds in wheels/.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from tidegs.device.cuda import versions


def main(out: Path, archs: list[str]) -> None:
    home = versions.cuda_home()
    if home is None:
        sys.exit("no CUDA toolkit found: set CUDA_HOME")
    os.environ["CUDA_HOME"] = str(home)
    os.environ["TORCH_CUDA_ARCH_LIST"] = ";".join(archs or ["8.0", "8.9", "9.0"])
    import gsplat
    from torch.utils import cpp_extension

    folder = Path(gsplat.__file__).parent / "cuda"
    sources = [*folder.glob("csrc/*.cu"), *folder.glob("csrc/*.cpp"), folder / "ext.cpp"]
    with tempfile.TemporaryDirectory() as build:
        cpp_extension.load(
            name="csrc",
            sources=[str(s) for s in sorted(sources)],
            extra_cflags=["-O3", "-Wno-attributes"],
            extra_cuda_cflags=["-O3", "-use_fast_math"],
            extra_include_paths=[str(folder / "include"), str(folder / "csrc" / "third_party" / "glm")],
            build_directory=build,
            is_python_module=False,
            verbose=True,
        )
        out.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(build) / "csrc.so", out / "csrc.so")
    print(out / "csrc.so")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2:])
