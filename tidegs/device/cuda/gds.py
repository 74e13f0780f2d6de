"""kvikio, and whether it has GPUDirect Storage: the SSD's bytes go to the GPU's memory without the CPU touching them.

Invariant: looking changes nothing, and fails nothing; what keeps kvikio from being used is said in words.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

THREADS = 8  # of kvikio's, each with a transfer of up to 4 MiB


@dataclass(frozen=True)
class Gds:
    """What was found."""

    usable: bool  # kvikio can move bytes between files and device memory
    direct: bool  # by GPUDirect Storage, not through kvikio's own buffer in host memory
    says: str


def look() -> Gds:
    """Looks for kvikio and its mode."""
    if importlib.util.find_spec("kvikio") is None:
        return Gds(False, False, "kvikio is not installed (pip install kvikio-cu12, or kvikio-cu13 for CUDA 13)")
    try:
        import kvikio
        import kvikio.cufile_driver
        import kvikio.defaults

        compat = bool(kvikio.defaults.is_compat_mode_preferred())
        available = bool(kvikio.cufile_driver.get("is_gds_available"))
        nvfs = int(kvikio.cufile_driver.get("major_version")) if available else 0
    except Exception as error:  # whatever a foreign library makes of a missing driver or an old version
        return Gds(False, False, f"kvikio cannot be used ({(str(error).splitlines() or [type(error).__name__])[0]})")
    version = getattr(kvikio, "__version__", "")
    if available and nvfs and not compat:
        return Gds(True, True, f"kvikio {version} with GPUDirect Storage")
    why = "KVIKIO_COMPAT_MODE or cuFile's absence asks for it" if compat else "no nvidia-fs driver"
    return Gds(True, False, f"kvikio {version} in compatibility mode, through its own buffer in host memory ({why})")


def prepare() -> None:
    """Several transfers at once; kvikio's default is one."""
    _defaults().set("num_threads", THREADS)


def _defaults() -> Any:
    import kvikio.defaults

    return kvikio.defaults
