"""Learning rates and SH degree of a step: pure functions of settings and step number, so a resume needs no state."""

from __future__ import annotations

import math
from typing import Any

from tidegs.config import TrainConfig
from tidegs.device.base import AdamSettings, RenderSettings
from tidegs.train.strategies.choose import strategy_of
from tidegs.train.strategies.settings import MCMCStrategy

MEANS_DECAY = 0.01  # of the means' rate, reached at the last step (gsplat's ExponentialLR)
BETA1, BETA2, EPS = 0.9, 0.999, 1e-15


def adam_settings(config: TrainConfig, step: int, extent: float, gaussians: int = 0) -> AdamSettings:
    """Adam of one step, counted from 0. `extent` is the scene's, in scene units; `gaussians`: their number, over which
    a strategy's regularisation is a mean.

    A step of b cameras uses rates times sqrt(b), betas to the power of b and eps over sqrt(b), which keeps the
    noise of the updates (Grendel, arXiv 2406.18533, section 4.2; gsplat scales rates and eps alike).
    """
    b = config.batch_size
    k = math.sqrt(b)
    decay = MEANS_DECAY ** (step / max(1, config.max_steps))
    return AdamSettings(
        lrs=(
            config.means_lr * extent * decay * k,
            config.quats_lr * k,
            config.scales_lr * k,
            config.opacities_lr * k,
            config.sh0_lr * k,
            config.shN_lr * k,
        ),
        step=step + 1,
        beta1=BETA1**b,
        beta2=BETA2**b,
        eps=EPS / k,
        dense=config.adam == "dense",
        **_of_strategy(config, step, gaussians),
    )


def _of_strategy(config: TrainConfig, step: int, gaussians: int) -> dict[str, Any]:
    """What the strategy adds to the optimizer's settings."""
    strategy = strategy_of(config)
    if isinstance(strategy, MCMCStrategy):
        n = max(1, gaussians)
        return {"opacity_reg": strategy.opacity_reg / n, "scale_reg": strategy.scale_reg / (3 * n)}
    if strategy is not None and strategy.collects(step):
        return {"cameras": config.batch_size}
    return {}


def render_settings(config: TrainConfig, step: int) -> RenderSettings:
    """How to render at a step: the SH degree in use rises by one every `sh_degree_interval` steps."""
    return RenderSettings(
        sh_degree=min(step // config.sh_degree_interval, config.sh_degree),
        near_plane=config.near_plane,
        far_plane=config.far_plane,
        rasterize_mode="antialiased" if config.antialiased else "classic",
        background=config.background,
        absgrad=config.strategy == "default" and config.absgrad and step < config.last_refine,
        pose_grad=config.pose_opt,
    )
