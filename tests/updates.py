"""A step's update and what follows it, as the engine does them."""

from __future__ import annotations

from torch import Tensor

from coxswain.config import OptimizerConfig
from coxswain_train.parallel.updates import take_step
from coxswain_train.parallel.zero1 import GlobalStats, Zero1Optimizer


def apply(
    optimizer: Zero1Optimizer, gradient: Tensor, stats: GlobalStats, config: OptimizerConfig, rate: float, step: int
) -> None:
    take_step(optimizer.state, gradient, stats.norm, config, rate, step, ())
    optimizer.all_gather()
