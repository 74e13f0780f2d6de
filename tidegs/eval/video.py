"""MP4 from frames, written under a temporary name and renamed when complete."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import numpy as np


def write_mp4(path: Path, frames: Iterable[np.ndarray], fps: int = 30) -> None:
    """Encodes frames (uint8 [H, W, 3], one size) with H.264, yuv420p; odd sizes lose a row or column."""
    import av

    temporary = path.with_name(f".{path.stem}.tmp.mp4")
    try:
        with av.open(str(temporary), "w") as container:
            stream = None
            for frame in frames:
                height, width = frame.shape[0] // 2 * 2, frame.shape[1] // 2 * 2
                if stream is None:
                    stream = container.add_stream("libx264", rate=Fraction(fps))
                    stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
                    stream.options = {"crf": "18"}
                picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame[:height, :width]), format="rgb24")
                container.mux(stream.encode(picture))
            if stream is not None:
                container.mux(stream.encode())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
