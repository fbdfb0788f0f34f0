"""The optimizer's update of one rank's boxes: AdamW over stretches with equal settings, Muon over whole hidden matrices.

Muon (Jordan 2024; torch.optim.Muon): momentum, five Newton-Schulz steps in bf16, and the rate scaled so that the update
is as large as AdamW's (Liu et al., arXiv 2502.16982). Its momentum is an average of gradients, kept as `exp_avg`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isfinite

import torch
from torch import Tensor
from torch.optim._muon import DEFAULT_A, DEFAULT_B, DEFAULT_C, DEFAULT_NS_STEPS, EPS, muon
from torch.optim.adamw import adamw

from coxswain.boxes import Box
from coxswain.config import OptimizerConfig
from coxswain.errors import Refused
from coxswain.parameter_groups import Settings, settings_of
from coxswain_train.parallel.state import KINDS, State, views


@dataclass(frozen=True, slots=True)
class Stretch:
    """Boxes [start, stop) of a shard. `matrices`: that Muon updates; else AdamW does."""

    start: int
    stop: int
    settings: Settings
    matrices: bool = False


def stretches(boxes: Sequence[Box], config: OptimizerConfig, matrices: Collection[str]) -> Iterator[Stretch]:
    """Successive boxes with the same settings, those of `matrices` apart."""
    start = 0
    for (settings, of_muon), same in groupby(boxes, lambda box: (_settings(box, config), box.name in matrices)):
        stop = start + sum(1 for _ in same)
        yield Stretch(start, stop, settings, of_muon)
        start = stop


def _settings(box: Box, config: OptimizerConfig) -> Settings:
    return settings_of(box.name, len(box.shape), config)


def take_step(
    state: State, gradient: Tensor, norm: float, config: OptimizerConfig, rate: float, step: int,
    matrices: Collection[str],
) -> None:  # fmt: skip
    """The update of step `step` (from 0): AdamW (Loshchilov and Hutter, arXiv 1711.05101), Muon for the `matrices`.

    `norm`: of all ranks' gradients, before clipping. Scales the gradient in place where it is clipped.
    """
    check_norm(norm, step)
    if config.gradient_clip and norm > config.gradient_clip:
        gradient.mul_(config.gradient_clip / (norm + 1e-6))
    update(state, gradient, stretches(state.order, config, matrices), config, rate, step + 1)


def check_norm(norm: float, step: int) -> None:
    if not isfinite(norm):
        raise Refused(
            "GradientNotFinite",
            f"step {step}: gradient norm {norm}; lower optimizer.learningRate or set gradientClip, "
            "then resume from the last checkpoint",
        )


def update(
    state: State, gradient: Tensor, parts: Iterable[Stretch], config: OptimizerConfig, rate: float, count: int
) -> None:
    """The `count`-th update (from 1) of the master parameters, at the schedule's `rate`."""
    master, first, second = (state.values(kind) for kind in KINDS)
    mine = [part for _, part in views(gradient, state.order)]
    for part in parts:
        rows = slice(part.start, part.stop)
        if part.matrices:
            _muon(master[rows], mine[rows], first[rows], part.settings, config, rate)
        else:
            _adamw(master[rows], mine[rows], first[rows], second[rows], part.settings, config, rate, count)


def _adamw(
    master: list[Tensor], gradient: list[Tensor], first: list[Tensor], second: list[Tensor], settings: Settings,
    config: OptimizerConfig, rate: float, count: int,
) -> None:  # fmt: skip
    """torch's fused kernel."""
    done = list(torch.full((len(master),), count - 1.0, device=master[0].device))  # it counts each of them up
    adamw(
        master, gradient, first, second, [], done, fused=True, amsgrad=False, beta1=config.beta1, beta2=config.beta2,
        lr=rate * settings.scale, weight_decay=settings.decay, eps=config.epsilon, maximize=False,
    )  # fmt: skip


def _muon(
    master: list[Tensor], gradient: list[Tensor], momentum: list[Tensor], settings: Settings, config: OptimizerConfig,
    rate: float,
) -> None:  # fmt: skip
    muon(
        master, gradient, momentum, lr=rate * settings.scale, weight_decay=settings.decay,
        momentum=config.momentum, nesterov=True, ns_coefficients=(DEFAULT_A, DEFAULT_B, DEFAULT_C),
        ns_steps=DEFAULT_NS_STEPS, eps=EPS, adjust_lr_fn="match_rms_adamw", has_complex=False,
    )  # fmt: skip
