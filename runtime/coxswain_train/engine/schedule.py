"""The learning rate of a step: linear warm-up, then a cosine down to a share of the peak, or constant."""

from __future__ import annotations

from math import cos, pi

from coxswain.config import OptimizerConfig


def learning_rate(config: OptimizerConfig, step: int, total_steps: int) -> float:
    """Rate of step `step` (from 0). After `total_steps` (a raised stop), the cosine stays at its minimum."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.schedule == "Constant":
        return config.learning_rate
    progress = min(1.0, (step - config.warmup_steps) / max(1, total_steps - config.warmup_steps))
    ratio = config.minimum_ratio + (1 - config.minimum_ratio) * (1 + cos(pi * progress)) / 2
    return config.learning_rate * ratio
