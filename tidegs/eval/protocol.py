"""How quality was measured, stated beside every number."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Protocol:
    """What must be known to compare a PSNR with somebody else's."""

    split: str  # which images
    images: int
    width: int  # of the largest image, after undistortion and downscaling
    height: int
    data_factor: int
    renders: str  # "float32, clamped to [0, 1]" or "8 bit"
    psnr: str
    ssim: str
    lpips: str  # the network, or why there is none

    def as_json(self) -> dict[str, Any]:
        """For stats/*.json."""
        return asdict(self)
