"""Fits a machine's rates to measured seconds, and predicts those of other steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from coxswain.config import ModelConfig
from coxswain.cost.hardware import Point, Rates, attention_flops, linear_flops, scaled, step_seconds
from coxswain.cost.memory import Recompute
from coxswain.cost.model import CostModel
from coxswain.cost.recompute import FORWARD_LINEAR, repeated

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Step:
    """A measured step: every replica ran packs of these lengths, then all of them together one ring of `ring` tokens."""

    packs: tuple[tuple[int, ...], ...] = ()
    ring: int = 0
    seconds: float = 0.0

    @property
    def tasks(self) -> int:
        return len(self.packs) + (self.ring > 0)

    @property
    def tokens(self) -> int:
        """Of the packs of one replica."""
        return sum(map(sum, self.packs))


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of one model on `replicas` devices at a time, in seconds of forward and backward of all its layers.

    `attention`: by tokens of a sequence. `rings`: one step of a ring, by tokens of a member. `gbps`: that a device sends.
    """

    model: ModelConfig
    parameters: int
    replicas: int
    attention: tuple[Point, ...]
    rings: tuple[Point, ...]
    gbps: float
    steps: tuple[Step, ...]
    recompute: Recompute = "None"  # of the steps: rates are those without it

    def cost(self, rates: Rates) -> CostModel:
        """Of the measured steps, by these rates."""
        return CostModel(repeated(scaled(rates, self.model), self.recompute))


def fitted(measured: Measured, base: Rates, across_nodes: bool | None) -> Rates:
    """The rates of the measured machine. What was not measured is that of `base`.

    `across_nodes`: of which links `gbps` is; None: of both.
    """
    model, gbps = measured.model, measured.gbps
    rates = replace(
        base,
        attention_tflops=_last_rate(measured.attention, model) or base.attention_tflops,
        attention_table=_rates(measured.attention, model),
        ring_table=_rates(measured.rings, model),
        inside_node_gbps=base.inside_node_gbps if across_nodes or not gbps else gbps,
        between_nodes_gbps=base.between_nodes_gbps if across_nodes is False or not gbps else gbps,
    )
    fixed, task, token = _step_costs(measured, measured.cost(rates))
    token /= 1 + (measured.recompute != "None") * FORWARD_LINEAR
    sent = step_seconds(
        replace(rates, update_ns_per_parameter=0.0), measured.parameters, measured.replicas, not across_nodes
    )
    return replace(
        rates,
        linear_tflops=linear_flops(model) / token * 1e-12 if token else base.linear_tflops,
        task_ms=1e3 * task,
        update_ns_per_parameter=max(0.0, fixed - sent) / measured.parameters * 1e9,
    )


def _step_costs(measured: Measured, cost: CostModel) -> tuple[float, float, float]:
    """Seconds of a step, of a task and of a token, without attention: none below 0, by relative least squares."""
    rows, rest, weights = [], [], []
    for step in measured.steps:
        lengths = [s for pack in step.packs for s in pack]
        attention = float((cost.work_seconds(lengths) - cost.linear * np.asarray(lengths)).sum())
        rows.append((1.0, float(step.tasks), float(step.tokens)))
        rest.append(step.seconds - attention)
        weights.append(1 / step.seconds)
    scale = np.asarray(weights)
    fixed, task, token = _not_negative(np.asarray(rows) * scale[:, None], np.asarray(rest) * scale)
    return float(fixed), float(task), float(token)


def _not_negative(rows: Floats, values: Floats) -> Floats:
    """Least squares with no coefficient below 0: the best of those in which some are 0."""
    columns, best, least = rows.shape[1], np.zeros(rows.shape[1]), float(np.square(values).sum())
    for count in range(1, columns + 1):
        for chosen in map(list, combinations(range(columns), count)):
            found = np.linalg.lstsq(rows[:, chosen], values, rcond=None)[0]
            left = float(np.square(rows[:, chosen] @ found - values).sum())
            if (found >= 0).all() and left < least:
                best, least = np.zeros(columns), left
                best[chosen] = found
    return best


def _rates(points: Sequence[Point], model: ModelConfig) -> tuple[Point, ...]:
    """Seconds to TFLOP/s; a point that is not slower than a shorter one is noise, and left out."""
    kept: list[Point] = []
    for tokens, seconds in points:
        if seconds > 0 and (not kept or seconds > kept[-1][1]):
            kept.append((tokens, seconds))
    return tuple((tokens, attention_flops(model) * tokens**2 / seconds * 1e-12) for tokens, seconds in kept)


def _last_rate(points: Sequence[Point], model: ModelConfig) -> float:
    table = _rates(points, model)
    return table[-1][1] if table else 0.0


def predicted(step: Step, rates: Rates, measured: Measured, inside_node: bool) -> float:
    """The seconds of a step by rates."""
    cost = measured.cost(rates)
    packs = sum(cost.pack_seconds(pack) for pack in step.packs)
    ring = float(cost.ring_seconds(float(step.ring), float(measured.replicas), inside_node)) if step.ring else 0.0
    return packs + ring + step_seconds(rates, measured.parameters, measured.replicas, inside_node)
