"""The strategy that a run's settings name."""

from __future__ import annotations

from dataclasses import replace

from tidegs.config import TrainConfig
from tidegs.errors import ConfigError
from tidegs.train.strategies.settings import DefaultStrategy, MCMCStrategy, Strategy

DENSE = 1_000_000  # points from which on a cloud is not thickened unasked


def resolved(config: TrainConfig, points: int | None) -> TrainConfig:
    """The settings with the strategy that "auto" means for a cloud of so many points; None: for trained Gaussians."""
    if config.strategy != "auto":
        return config
    grows = points is not None and points < DENSE
    return replace(config, strategy="default" if grows else "none")


def check_strategy(config: TrainConfig, begun: TrainConfig | None = None) -> None:
    """Raises ConfigError where a run that was `begun` with another strategy or Adam goes on: its store lacks what this
    one goes by."""
    for name in ("strategy", "adam"):
        if begun is not None and getattr(config, name) != getattr(begun, name):
            raise ConfigError(
                f"the run was begun with {name} {getattr(begun, name)} and cannot go on with {getattr(config, name)}: "
                "leave it, or start a new run with --init from its PLY"
            )


def strategy_of(config: TrainConfig) -> Strategy | None:
    """None for "none", and for "auto" before it is resolved."""
    if config.strategy == "default":
        return DefaultStrategy(
            prune_opa=config.prune_opa,
            grow_grad2d=config.grow_grad2d,
            grow_scale3d=config.grow_scale3d,
            prune_scale3d=config.prune_scale3d,
            refine_start_iter=config.refine_start_iter,
            refine_stop_iter=config.last_refine,
            reset_every=config.reset_every,
            refine_every=config.refine_every,
            pause_refine_after_reset=config.pause_refine_after_reset,
            absgrad=config.absgrad,
            revised_opacity=config.revised_opacity,
        )
    if config.strategy == "mcmc":
        return MCMCStrategy(
            cap_max=config.cap_max,
            noise_lr=config.noise_lr,
            refine_start_iter=config.refine_start_iter,
            refine_stop_iter=config.last_refine,
            refine_every=config.refine_every,
            min_opacity=config.min_opacity,
            opacity_reg=config.opacity_reg,
            scale_reg=config.scale_reg,
        )
    return None
