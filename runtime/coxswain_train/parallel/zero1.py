"""ZeRO-1 by boxes (Rajbhandari et al., arXiv 1910.02054): gradients to their owners, AdamW there, weights back to all.

Parameters are whole on every replica; the master copy (fp32, or fp64 in tests) and both moments of a row exist only on
its owner. State changes in `apply` alone, after all ranks have agreed on the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from math import isfinite, sqrt
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from coxswain.boxes import Box, full_box, window
from coxswain.config import OptimizerConfig
from coxswain.errors import Refused, Retryable
from coxswain.parameter_groups import Settings, settings_of
from coxswain_train.parallel.shards import Shards

KINDS = ("parameter", "exp_avg", "exp_avg_sq")


class Reduction(Protocol):
    """The reductions of a step, over all replicas; index = replica."""

    def to_owners(self, packed: Tensor, sizes: list[int], me: int) -> list[Tensor]:
        """Sends the o-th part of `packed` to owner o; returns what every replica sent here, in replica order."""
        ...

    def to_all(self, mine: Tensor, sizes: list[int]) -> list[Tensor]:
        """The parts of all replicas, by owner."""
        ...

    def scalars(self, mine: list[float]) -> list[list[float]]:
        """Some fp64 numbers of every replica: the one small collective of a step."""
        ...


@dataclass(frozen=True, slots=True)
class RankStats:
    """One rank's part of a step's statistics. `plan`: a number below 2^53 that names the plan it followed."""

    loss_sum: float
    labels: int  # valid ones among its tokens
    step_labels: int  # that the plan promises for all ranks together
    plan: int


@dataclass(frozen=True, slots=True)
class GlobalStats:
    """The statistics of a step over all ranks."""

    loss_sum: float
    norm: float  # global, before clipping


class Zero1Optimizer:
    """The optimizer of one replica (stage): its shard of the state, and the way to and from all parameters."""

    def __init__(self, weights: Mapping[str, nn.Parameter], shards: Shards, me: int, reduction: Reduction) -> None:
        self._weights, self._shards, self._me, self._reduction = weights, shards, me, reduction
        sample = next(iter(weights.values()))
        wide = torch.promote_types(sample.dtype, torch.float32)
        self._state = {kind: torch.zeros(shards.size(me), dtype=wide, device=sample.device) for kind in KINDS}
        self._wide = None if wide == sample.dtype else wide
        self._accumulated: dict[str, Tensor] = {}  # gradients so far, where parameters are too narrow for a sum

    def boxes(self) -> dict[str, dict[Box, Tensor]]:
        """The owned state by kind and box: views, to be filled or saved."""
        return {kind: dict(_views(flat, self._shards.boxes[self._me])) for kind, flat in self._state.items()}

    @property
    def elements(self) -> int:
        """Of the owned boxes."""
        return len(self._state["parameter"])

    def accumulate(self) -> None:
        """After each backward: moves gradients of narrow parameters into fp32 sums."""
        if self._wide is None:
            return
        for name, weight in self._weights.items():
            if weight.grad is not None:
                total = self._accumulated.setdefault(name, torch.zeros_like(weight, dtype=self._wide))
                total += weight.grad
                weight.grad = None

    def reduce(self) -> Tensor:
        """The step's gradient of the owned boxes, summed in replica order. Forgets the local gradients."""
        parts = self._reduction.to_owners(self._packed(), self._shards.sizes(), self._me)
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        self._accumulated.clear()
        for weight in self._weights.values():
            weight.grad = None
        return total

    def reduce_stats(self, gradient: Tensor, mine: RankStats) -> GlobalStats:
        """Exchanges loss, norm and plan with all ranks, in the step's one small collective."""
        square = float(torch.linalg.vector_norm(gradient, dtype=torch.float64)) ** 2  # without a copy in fp64
        rows = self._reduction.scalars([square, mine.loss_sum, float(mine.labels), float(mine.plan)])
        return check_stats(rows, mine)

    def apply(self, gradient: Tensor, stats: GlobalStats, config: OptimizerConfig, rate: float, step: int) -> None:
        """One AdamW update (Loshchilov and Hutter, arXiv 1711.05101) of step `step` (from 0); then sends the weights out."""
        if not isfinite(stats.norm):
            raise Refused(
                "GradientNotFinite",
                f"step {step}: gradient norm {stats.norm}; lower optimizer.learningRate or set gradientClip, "
                "then resume from the last checkpoint",
            )
        if config.gradient_clip and stats.norm > config.gradient_clip:
            gradient.mul_(config.gradient_clip / (stats.norm + 1e-6))
        self._adamw(gradient, config, rate, step + 1)
        self.all_gather()

    def _adamw(self, gradient: Tensor, config: OptimizerConfig, rate: float, count: int) -> None:
        """Runs torch's fused kernel over each stretch of boxes with the same settings."""
        for rows, settings in _stretches(self._shards.boxes[self._me], config):
            master, first, second = ([self._state[kind][rows]] for kind in KINDS)
            done = [torch.tensor(count - 1.0, device=self._device)]
            adamw(
                master, [gradient[rows]], first, second, [], done, fused=True, amsgrad=False, beta1=config.beta1,
                beta2=config.beta2, lr=rate * settings.scale, weight_decay=settings.decay, eps=config.epsilon, maximize=False,
            )  # fmt: skip

    @torch.no_grad()
    def all_gather(self) -> None:
        """Copies the boxes of every owner into the parameters of every replica."""
        dtype = next(iter(self._weights.values())).dtype
        parts = self._reduction.to_all(self._state["parameter"].to(dtype), self._shards.sizes())
        for owner, part in enumerate(parts):
            for box, values in _views(part, self._shards.boxes[owner]):
                self._rows(self._weights[box.name], box).copy_(values)

    def _packed(self) -> Tensor:
        """All local gradients, owner after owner; zeros where this replica had no part in a parameter."""
        flat = torch.empty(sum(self._shards.sizes()), dtype=self._state["parameter"].dtype, device=self._device)
        order = tuple(box for owned in self._shards.boxes for box in owned)
        for box, target in _views(flat, order):
            gradient = self._accumulated.get(box.name, self._weights[box.name].grad)
            target.zero_() if gradient is None else target.copy_(self._rows(gradient, box))
        return flat

    @property
    def _device(self) -> torch.device:
        return self._state["parameter"].device

    @staticmethod
    def _rows(tensor: Tensor, box: Box) -> Tensor:
        return tensor[window(full_box(box.name, tuple(tensor.shape)), box)]


def _stretches(boxes: Iterable[Box], config: OptimizerConfig) -> Iterator[tuple[slice, Settings]]:
    """Successive boxes with the same settings: their elements in the packed buffer."""
    start = 0
    for settings, same in groupby(boxes, lambda box: settings_of(box.name, len(box.shape), config)):
        stop = start + sum(box.elements for box in same)
        yield slice(start, stop), settings
        start = stop


def _views(flat: Tensor, boxes: tuple[Box, ...]) -> list[tuple[Box, Tensor]]:
    """Each box's part of a packed buffer, in the box's shape."""
    parts = torch.split(flat, [b.elements for b in boxes])
    return [(box, part.view(box.shape)) for box, part in zip(boxes, parts, strict=True)]


def check_stats(rows: list[list[float]], mine: RankStats) -> GlobalStats:
    """Sums the rows (square of the gradient, loss, labels, plan) of all ranks. Raises Retryable when plans differ."""
    squares, losses, labels, plans = zip(*rows, strict=True)
    others = [rank for rank, plan in enumerate(plans) if plan != plans[0]]
    if others:
        raise Retryable(f"ranks {others} followed another step plan than rank 0; the step is discarded")
    if int(sum(labels)) != mine.step_labels:
        raise Retryable(f"the ranks trained on {int(sum(labels))} labels, the plan has {mine.step_labels}")
    return GlobalStats(loss_sum=sum(losses), norm=sqrt(sum(squares)))
