"""Build of tidegs: pure Python plus torch-free C++ libraries with a C ABI, loaded by tidegs through ctypes.

The compute kernels are compiled once for each instruction set of the target architecture; tidegs picks one at run
time (tidegs/device/native.py). Nothing here needs torch, so an isolated `pip install .` downloads no second one.
"""

import glob
import os
import platform

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

BASE_FLAGS = ["-std=c++17", "-O3", "-fPIC", "-pthread", "-Wall", "-Wextra", "-fno-math-errno"]
BASE_FLAGS += ["-fno-trapping-math", "-ffp-contract=off", "-fvisibility=hidden"]
AVX2 = ["-mavx2", "-mfma", "-mbmi", "-mbmi2"]
X86_ISAS = {
    # GCC 12 warns of its own AVX-512 headers (PR 105593).
    "avx512": [
        *AVX2,
        *(f"-mavx512{part}" for part in ("f", "vl", "bw", "dq")),
        "-Wno-uninitialized",
        "-Wno-maybe-uninitialized",
    ],
    "avx2": AVX2,
    "portable": [],
}


def headers() -> list[str]:
    return sorted(glob.glob("csrc/**/*.hpp", recursive=True) + glob.glob("csrc/**/*.inl", recursive=True))


def kernels(isa: str, flags: list[str]) -> Extension:
    return Extension(
        f"tidegs._kernels_{isa}",
        sources=[f"csrc/isa/{isa}.cpp"],
        depends=headers(),
        include_dirs=["csrc"],
        extra_compile_args=BASE_FLAGS + flags,
        extra_link_args=["-pthread"],
        language="c++",
    )


def extensions() -> list[Extension]:
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    isas = X86_ISAS if x86 else {"portable": []}
    store = Extension(
        "tidegs._store",
        sources=sorted(glob.glob("csrc/store/*.cpp")),
        depends=headers(),
        include_dirs=["csrc"],
        extra_compile_args=BASE_FLAGS,
        extra_link_args=["-pthread"],
        language="c++",
    )
    return [kernels(isa, flags) for isa, flags in isas.items()] + [store]


class BuildExt(build_ext):
    """Builds the libraries side by side on all cores."""

    def finalize_options(self) -> None:
        super().finalize_options()
        if not getattr(self, "parallel", None):
            self.parallel = os.cpu_count() or 1


setup(
    packages=[*find_packages(include=["tidegs", "tidegs.*"]), "tidegs.configs"],
    package_dir={"tidegs.configs": "configs"},  # the presets go along
    package_data={"tidegs": ["py.typed", "report/assets/*"], "tidegs.configs": ["*.yml"]},
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildExt},
)
