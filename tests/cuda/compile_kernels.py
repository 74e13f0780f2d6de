"""Compiles every Triton kernel for GPUs that need not be there, from the arguments of real launches.

Run as `python -m tests.cuda.compile_kernels 80 89 90` without TRITON_INTERPRET; prints one JSON line: kernel name to
bytes of machine code for each. The interpreter accepts programs that the compiler does not.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.device.harness import look
from tidegs.device.base import AdamSettings, PassBlocks, RenderSettings
from tidegs.device.cuda import kernels, launch, ssim, ssim_kernels
from tidegs.device.cuda.arena import Arena
from tidegs.device.cuda.device import _blocks_on
from tidegs.device.cuda.rows import Reach, adam_numbers, camera_of, culling_of, empty_params
from tidegs.gaussians.layout import RecordLayout

TYPES = {torch.float32: "fp32", torch.int32: "i32", torch.int64: "i64", torch.int8: "i8", torch.uint8: "u8"}


class Recorder:
    """Stands in for a kernel: keeps the arguments of its launches instead of launching."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.calls = kernel, []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args, **kwargs: self.calls.append((args, kwargs))


def record() -> list[Recorder]:
    """Launches everything once, on Recorders."""
    recorders = []
    for module in (kernels, ssim_kernels):
        for name in [n for n in vars(module) if n.endswith("_kernel")]:
            recorders.append(Recorder(getattr(module, name)))
            setattr(module, name, recorders[-1])
    layout = RecordLayout(4096, 3, with_grads=True)
    arena = Arena(layout, 1, torch.device("cpu"))
    blocks = PassBlocks(np.zeros(1, np.int32), np.full(1, 4000, np.int32), np.full(1, 15, np.uint8))
    held = _blocks_on(torch.device("cpu"), blocks)
    rows, take = torch.arange(70), torch.ones(70, dtype=torch.bool)
    params, numbers = empty_params(70, 3, arena.device), adam_numbers(AdamSettings((1e-3,) * 6, 1))
    launch.cull(arena, held, camera_of(look(64, 48)), culling_of(RenderSettings()))
    launch.gather(arena, held, rows, 3)
    launch.adam_rows(arena, held, rows, take, params, params, numbers)
    launch.add_grads(arena, held, rows, take, params, params)
    launch.adam_marked(arena, held.slots, held.counts, 3, numbers)
    launch.adam_rest(arena, held.slots, held.counts, torch.zeros(1, 4096, dtype=torch.bool), 3, numbers)
    launch.noise(arena, held, torch.zeros(1, dtype=torch.int64), torch.ones(1), 0.005)
    launch.bounds(arena, held, Reach(1.0, 1.0, 1e-15))
    ssim.l1_ssim(torch.zeros(48, 64, 3), torch.zeros(48, 64, 3, dtype=torch.uint8), 0.2, 1.0)
    return recorders


def compile_one(recorder: Recorder, capability: int) -> int:
    """Bytes of machine code for a GPU of compute capability `capability`."""
    kernel, (args, kwargs) = recorder.kernel, recorder.calls[0]
    options = {k: v for k, v in kwargs.items() if k == "num_warps"}
    given = dict(zip(kernel.arg_names, args, strict=False)) | {k: v for k, v in kwargs.items() if k not in options}
    constants = {p.name: given[p.name] for p in kernel.params if p.is_constexpr}
    signature = {name: "constexpr" if name in constants else _type(given[name]) for name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    return len(triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options).asm["cubin"])


def _type(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "*" + TYPES[value.dtype]
    return {bool: "i1", int: "i32", float: "fp32"}[type(value)]


if __name__ == "__main__":
    capabilities = [int(a) for a in sys.argv[1:]]
    recorded = record()
    unused = [r.kernel.__name__ for r in recorded if not r.calls]
    assert not unused, f"never launched: {unused}"
    print(json.dumps({r.kernel.__name__: [compile_one(r, c) for c in capabilities] for r in recorded}))
