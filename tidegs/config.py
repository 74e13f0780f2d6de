"""Typed, frozen settings of a training run: one dataclass that the CLI, the presets and every result folder share.

Invariant: a TrainConfig that exists is valid; each bad value was refused in one sentence naming the setting.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from tidegs.errors import ConfigError

_HERE = Path(__file__).resolve().parent
PRESETS = _HERE / "configs" if (_HERE / "configs").is_dir() else _HERE.parent / "configs"  # installed; a checkout
_UNITS = {"": 1, "B": 1, **{u + s: 1024 ** (i + 1) for i, u in enumerate("KMGT") for s in ("", "B", "iB")}}


def option(default: Any, group: str, text: str, **extra: Any) -> Any:
    """A setting with its default, its group in `--help` and what it means."""
    return field(default=default, metadata={"group": group, "help": text, **extra})


DATA, BUDGET, RUN, MODEL, RATES = "scene", "budgets", "run", "model", "learning rates"
DENSIFY = "densification"
_STOP_ITER = {"auto": 15_000, "none": 15_000, "default": 15_000, "mcmc": 25_000}  # refine before this step, in gsplat
_MCMC_FIRST = {"opacity": 0.5, "scale": 0.1}  # as gsplat's trainer begins with that strategy


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a run. Names and defaults are gsplat's where gsplat has them."""

    data_factor: int = option(1, DATA, "downscale images by this; takes images_N where it exists", low=1)
    test_every: int = option(8, DATA, "every N-th image by name is for testing; 0 trains on all", low=0)
    masks: str = option("", DATA, "folder of masks below the scene's; else masks/ where it exists", metavar="FOLDER")
    invert_masks: bool = option(False, DATA, "white pixels of masks do not count, instead of black ones")

    device: Literal["cpu", "cuda"] = option("cpu", BUDGET, "where to render and optimise")
    device_memory: str = option("auto", BUDGET, "arena of resident blocks: 4GiB, 20%% (of the scene), or auto")
    host_memory: str = option("auto", BUDGET, "cache of blocks in RAM behind the arena: 8GiB, 30%%, 0 or auto")
    image_memory: str = option("1GiB", BUDGET, "decoded images kept ahead of the trainer")
    block_capacity: int = option(4096, BUDGET, "Gaussians a block: a multiple of 64 up to 8192", low=64, high=8192)
    store_dtype: Literal["float32", "bfloat16", "float16"] = option(
        "float32", BUDGET, "moments and SH above 0 on the SSD; others than float32 round"
    )
    max_pass_blocks: int = option(
        0, BUDGET, "split passes that need more blocks than this; 0: only what must be", low=0
    )
    threads: int = option(0, BUDGET, "threads of the CPU device; 0 for all cores", low=0)

    max_steps: int = option(30_000, RUN, "optimizer steps", low=0)
    steps_scaler: float = option(1.0, RUN, "scales every step count, gsplat's way to a shorter schedule", low=1e-6)
    batch_size: int = option(1, RUN, "cameras a step; rates scale with its square root", low=1)
    order: Literal["auto", "shuffle", "trajectory", "cache"] = option(
        "auto", RUN, "camera order; auto: shuffle in core, else sparing links"
    )
    seed: int = option(42, RUN, "seed of the camera order and of all random numbers", low=0)
    eval_steps: tuple[int, ...] = option((7_000, 30_000), RUN, "steps after which the test split is evaluated")
    save_steps: tuple[int, ...] = option((7_000, 30_000), RUN, "steps after which a snapshot is committed")
    snapshot_minutes: float = option(10.0, RUN, "also commit a snapshot this often; 0 for never", low=0)
    ply_steps: tuple[int, ...] = option((30_000,), RUN, "steps after which a PLY is written")

    sh_degree: int = option(3, MODEL, "greatest degree of spherical harmonics", low=0, high=3)
    sh_degree_interval: int = option(1000, MODEL, "steps between raising the degree in use", low=1)
    init_random: int = option(0, MODEL, "start from so many random points instead of the scene's", low=0)
    init_opacity: float = option(0.0, MODEL, "opacity of first Gaussians; 0: 0.1, mcmc 0.5", low=0, high=0.999)
    init_scale: float = option(0.0, MODEL, "their size in distances to the 3 nearest; 0: 1, mcmc 0.1", low=0)
    antialiased: bool = option(False, MODEL, "antialiased rasterization (Mip-Splatting's 2D filter)")
    near_plane: float = option(0.01, MODEL, "near clipping distance, scene units", low=1e-9)
    far_plane: float = option(1e10, MODEL, "far clipping distance, scene units", low=0)
    background: tuple[float, float, float] = option((0.0, 0.0, 0.0), MODEL, "rgb behind the scene, 0 to 1")
    exposure: bool = option(False, MODEL, "train a colour transform of each image")
    pose_opt: bool = option(False, MODEL, "refine the poses of the training images")
    depth_loss: bool = option(False, MODEL, "compare depths with COLMAP's points, where an image shows them")
    depth_lambda: float = option(1e-2, MODEL, "weight of --depth-loss", low=0)
    ssim_lambda: float = option(0.2, MODEL, "weight of D-SSIM against L1", low=0, high=1)

    strategy: Literal["auto", "none", "default", "mcmc"] = option(
        "auto", DENSIFY, "growth; auto: default, or none from 1M points or with --init"
    )
    max_gaussians: int = option(0, DENSIFY, "default: stop growing at this many; 0: as the disk allows", low=0)
    cap_max: int = option(1_000_000, DENSIFY, "mcmc: grow to this many", low=1)
    refine_start_iter: int = option(500, DENSIFY, "refine after this step", low=0)
    refine_stop_iter: int = option(0, DENSIFY, "refine before this step; 0: 15000 (default), 25000 (mcmc)", low=0)
    refine_every: int = option(100, DENSIFY, "steps between refinements", low=1)
    reset_every: int = option(3000, DENSIFY, "default: steps between opacity resets", low=1)
    pause_refine_after_reset: int = option(0, DENSIFY, "default: steps without refinement after a reset", low=0)
    absgrad: bool = option(False, DENSIFY, "default: go by absolute gradients; with --grow-grad2d 8e-4")
    revised_opacity: bool = option(False, DENSIFY, "default: halves of a split get less opacity")
    grow_grad2d: float = option(2e-4, DENSIFY, "default: grow above this gradient", low=0)
    grow_scale3d: float = option(0.01, DENSIFY, "default: split above this share of the extent", low=0)
    prune_opa: float = option(0.005, DENSIFY, "default: prune below this opacity", low=0, high=0.4)
    prune_scale3d: float = option(0.1, DENSIFY, "default: prune above this share of the extent", low=0)
    min_opacity: float = option(0.005, DENSIFY, "mcmc: relocate rows of less opacity", low=0, high=1)
    noise_lr: float = option(5e5, DENSIFY, "mcmc: noise of means, in learning rates", low=0)
    opacity_reg: float = option(0.01, DENSIFY, "mcmc: weight of the mean opacity in the loss", low=0)
    scale_reg: float = option(0.01, DENSIFY, "mcmc: weight of the mean scale in the loss", low=0)

    adam: Literal["selective", "dense"] = option(
        "selective", RATES, "which rows take a step: those in view, or all as in torch"
    )
    means_lr: float = option(1.6e-4, RATES, "means, times the scene's extent; decays to a hundredth", low=0)
    scales_lr: float = option(5e-3, RATES, "log scales", low=0)
    quats_lr: float = option(1e-3, RATES, "quaternions", low=0)
    opacities_lr: float = option(5e-2, RATES, "opacity logits", low=0)
    sh0_lr: float = option(2.5e-3, RATES, "colour", low=0)
    shN_lr: float = option(2.5e-3 / 20, RATES, "higher spherical harmonics", low=0)
    exposure_lr: float = option(1e-2, RATES, "colour transforms of --exposure; decays to a tenth", low=0)
    pose_opt_lr: float = option(1e-5, RATES, "poses, in radians and extents; decays to a hundredth", low=0)
    pose_opt_reg: float = option(1e-6, RATES, "weight decay of poses", low=0)

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for f in dataclasses.fields(self):
            value = _coerce(f.name, getattr(self, f.name), hints[f.name])
            low, high = f.metadata.get("low"), f.metadata.get("high")
            if (low is not None and value < low) or (high is not None and value > high):
                bounds = f"at least {low}" if high is None else f"between {low} and {high}"
                raise ConfigError(f"{f.name} is {value}; it must be {bounds}")
            object.__setattr__(self, f.name, value)
        if self.block_capacity % 64:
            raise ConfigError(f"block_capacity is {self.block_capacity}; it must be a multiple of 64")
        for name in ("device_memory", "host_memory", "image_memory"):
            if getattr(self, name) != "auto":
                parse_memory(getattr(self, name), total=1, name=name)

    def scaled(self) -> TrainConfig:
        """The same settings with `steps_scaler` applied to every step count and set to 1."""
        k = self.steps_scaler

        def each(steps: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(max(1, round(s * k)) for s in steps)

        return dataclasses.replace(
            self,
            steps_scaler=1.0,
            max_steps=round(self.max_steps * k),
            eval_steps=each(self.eval_steps),
            save_steps=each(self.save_steps),
            ply_steps=each(self.ply_steps),
            sh_degree_interval=max(1, round(self.sh_degree_interval * k)),
            refine_start_iter=round(self.refine_start_iter * k),
            refine_stop_iter=round(self.last_refine * k),
            refine_every=max(1, round(self.refine_every * k)),
            reset_every=max(1, round(self.reset_every * k)),
            pause_refine_after_reset=round(self.pause_refine_after_reset * k),
        )

    @property
    def last_refine(self) -> int:
        """`refine_stop_iter`, or the strategy's own where that is 0."""
        return self.refine_stop_iter or _STOP_ITER[self.strategy]

    @property
    def first_opacity(self) -> float:
        """`init_opacity`, or the strategy's own where that is 0."""
        return self.init_opacity or (_MCMC_FIRST["opacity"] if self.strategy == "mcmc" else 0.1)

    @property
    def first_scale(self) -> float:
        """`init_scale`, or the strategy's own where that is 0."""
        return self.init_scale or (_MCMC_FIRST["scale"] if self.strategy == "mcmc" else 1.0)


def parse_memory(text: str, total: int, name: str = "memory") -> int:
    """Bytes of "4GiB", "512MB", "4g" (powers of 1024), or of "20%" of `total`. Raises ConfigError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%|[A-Za-z]*)\s*", text)
    if match:
        number, unit = float(match[1]), match[2]
        if unit == "%":
            return int(total * number / 100)
        for known, scale in _UNITS.items():
            if unit.lower() == known.lower():
                return int(number * scale)
    raise ConfigError(f"{name} is {text!r}; write it like 4GiB, 512MiB, 20% or auto")


def load_config(source: Path, overrides: dict[str, Any] | None = None) -> TrainConfig:
    """Reads a YAML file of settings (a preset, or a result's cfg.yml) and applies overrides. Raises ConfigError."""
    try:
        values = yaml.safe_load(source.read_text()) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{source}: cannot be read as settings: {str(error).splitlines()[0]}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{source}: expected settings as `name: value` lines, found {type(values).__name__}")
    known = {f.name for f in dataclasses.fields(TrainConfig)}
    unknown = sorted(set(map(str, values)) - known)
    if unknown:
        raise ConfigError(f"{source}: unknown setting {unknown[0]!r}; `tidegs train --help` lists all")
    return TrainConfig(**{**values, **(overrides or {})})


def preset_path(name: str) -> Path:
    """The file of a preset by its name, or of a path to one. Raises ConfigError naming the presets there are."""
    path = Path(name)
    if path.suffix in {".yml", ".yaml"}:
        return path
    found = PRESETS / f"{name}.yml"
    if not found.is_file():
        raise ConfigError(f"preset {name!r} is not one of: {', '.join(sorted(p.stem for p in PRESETS.glob('*.yml')))}")
    return found


def dump_config(config: TrainConfig) -> str:
    """YAML with one setting a line, in the order of TrainConfig."""
    values = {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(config).items()}
    return yaml.safe_dump(values, sort_keys=False, default_flow_style=None)


def _coerce(name: str, value: Any, hint: Any) -> Any:
    """`value` as the setting's type, or ConfigError."""
    origin = typing.get_origin(hint)
    if origin is Literal:
        allowed = typing.get_args(hint)
        if value not in allowed:
            raise ConfigError(f"{name} is {value!r}; it must be one of {', '.join(map(str, allowed))}")
        return value
    if origin is tuple:
        args = typing.get_args(hint)
        if not isinstance(value, (list, tuple)) or (Ellipsis not in args and len(value) != len(args)):
            raise ConfigError(
                f"{name} is {value!r}; expected {'numbers' if Ellipsis in args else f'{len(args)} numbers'}"
            )
        return tuple(_coerce(name, v, args[0]) for v in value)
    if isinstance(hint, types.UnionType):
        hint = next(a for a in typing.get_args(hint) if a is not type(None))
    if (hint is bool and isinstance(value, bool)) or (hint is str and isinstance(value, str)):
        return value
    if hint in (int, float) and not isinstance(value, bool):
        try:
            number = float(value)
            if number == number and (hint is float or number == int(number)):
                return hint(value) if not isinstance(value, str) else hint(number)
        except (TypeError, ValueError, OverflowError):
            pass
    raise ConfigError(f"{name} is {value!r}; expected {'a whole number' if hint is int else 'a ' + hint.__name__}")
