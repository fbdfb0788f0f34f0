"""The learning rate of a step: a linear warm-up, then a share of the peak by the job's schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import cos, pi

from coxswain.config import OptimizerConfig


def learning_rate(config: OptimizerConfig, step: int, total_steps: int) -> float:
    """Rate of step `step` (from 0). After `total_steps` (a raised stop) it stays at the floor, minimum_ratio of the peak."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    height = _HEIGHTS[config.schedule](config, step, total_steps)
    return config.learning_rate * (config.minimum_ratio + (1 - config.minimum_ratio) * height)


def _constant(config: OptimizerConfig, step: int, total_steps: int) -> float:
    return 1.0


def _linear(config: OptimizerConfig, step: int, total_steps: int) -> float:
    return 1 - _progress(step, config.warmup_steps, total_steps)


def _cosine(config: OptimizerConfig, step: int, total_steps: int) -> float:
    return (1 + cos(pi * _progress(step, config.warmup_steps, total_steps))) / 2


def _warmup_stable_decay(config: OptimizerConfig, step: int, total_steps: int) -> float:
    """At the peak until the last `decay_steps`, over which it falls linearly (Hu et al., arXiv 2404.06395)."""
    begin = max(config.warmup_steps, total_steps - config.decay_steps)
    return 1 - _progress(step, begin, total_steps)


def _progress(step: int, begin: int, end: int) -> float:
    """Share of the steps [begin, end) before `step`, within [0, 1]."""
    return min(1.0, max(0.0, (step - begin) / max(1, end - begin)))


# Height above the floor of a step behind the warm-up: 1 at the peak, 0 at the floor.
_HEIGHTS: Mapping[str, Callable[[OptimizerConfig, int, int], float]] = {
    "Constant": _constant,
    "Cosine": _cosine,
    "Linear": _linear,
    "WSD": _warmup_stable_decay,
}
