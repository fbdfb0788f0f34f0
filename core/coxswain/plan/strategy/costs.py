"""What a kind of replica takes: the cost model's constants of its busiest stage, and what a step costs besides its tasks.

A stage has its part of the layers, cut by its tensor group. Added are the sums of a tensor group (two a layer in forward,
two in backward) on the link inside a node, and the activations that pass between stages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from coxswain.config import ModelConfig
from coxswain.cost.constants import Constants
from coxswain.cost.memory import MASTER, Recompute
from coxswain.cost.model import CostModel
from coxswain.cost.recompute import repeated, times
from coxswain.cost.ulysses import HeadExchange, key_heads_of
from coxswain.flops import loss_layers
from coxswain.plan.pipelines.simulation import loads
from coxswain.plan.strategy.kinds import shares_of
from coxswain.plan.strategy.values import Kind, Machine

SUMS = 4  # of hidden activations a layer: two in forward, two in backward
LAUNCH = 30e-6  # seconds of a collective, however small. Not measured by this project.
UPDATE_BYTES = 44  # read and written by the optimizer an owned element: state, gradient, parameter
MEMORY_OVER_LINK = 6  # of a device: its memory's bandwidth over that of the link inside a node. A rule of thumb.


@dataclass(frozen=True, slots=True)
class KindCost:
    """`tasks`: seconds of one task on the busiest stage. `after`: seconds of a step behind its tasks, with all devices owners."""

    tasks: CostModel
    stages: int
    after: float

    @property
    def drain(self) -> int:
        """How often the longest task counts besides its own time: a pipeline fills and empties."""
        return self.stages - 1


def kind_cost(machine: Machine, kind: Kind, recompute: Recompute, beside: Iterable[Kind] = ()) -> KindCost:
    """`beside`: the other kinds of its layout: all rings of a layout have the head groups that all of its devices have."""
    tasks = CostModel(stage_constants(machine, kind, recompute), exchange_of(machine, kind, recompute, beside))
    return KindCost(tasks, len(kind.layers), after_tasks(machine, kind))


def exchange_of(machine: Machine, kind: Kind, recompute: Recompute, beside: Iterable[Kind] = ()) -> HeadExchange | None:
    """How rings of this kind exchange heads; None: they do not."""
    if machine.attention == "Ring":
        return None
    model, node = machine.model, max(1, machine.node // kind.devices)
    heads = key_heads_of(model.kv_heads, [kind.tensor, *(other.tensor for other in beside)])
    return HeadExchange(machine.attention, heads, model.heads / model.kv_heads, node, recompute)


def stage_constants(machine: Machine, kind: Kind, recompute: Recompute) -> Constants:
    """The constants of the stage that takes longest; those of the machine for a whole model on one device."""
    base, model = repeated(machine.constants, recompute), machine.model
    load = max(loads(kind.replica(), loss_layers(model)))
    layers, again = max(kind.layers), recompute != "None"
    token = model.hidden * machine.element  # bytes of a token's activations
    share = kind.tensor * load  # of the model's layers
    return replace(
        base,
        linear_us_per_token=base.linear_us_per_token * load
        + 1e6 * (_sums(machine, kind, layers, again) * token + _messages(machine, kind) * token),
        attention_ns_per_token2=base.attention_ns_per_token2 * load,
        kv_bytes_per_token=base.kv_bytes_per_token * (share / min(kind.tensor, model.kv_heads)),
        task_ms=base.task_ms * share + 1e3 * LAUNCH * SUMS * layers * (kind.tensor > 1),
        tables=times(base.tables, load),
    )


def _sums(machine: Machine, kind: Kind, layers: int, again: bool) -> float:
    """Seconds a byte of activations for the sums of a tensor group, as a ring all-reduce moves them."""
    moved = 2 * (kind.tensor - 1) / kind.tensor
    return moved * (SUMS + 2 * again) * layers / (machine.constants.inside_node_gbps * 1e9)


def _messages(machine: Machine, kind: Kind) -> float:
    """Seconds a byte of activations for what passes to the next stage, and its gradient back."""
    if len(kind.layers) == 1:
        return 0.0
    c = machine.constants
    return 2 / ((c.inside_node_gbps if machine.node % kind.devices == 0 else c.between_nodes_gbps) * 1e9)


def after_tasks(machine: Machine, kind: Kind) -> float:
    """Seconds for gradients to their owners, the optimizer, and weights back, on the stage with most parameters."""
    c, elements = machine.constants, stage_elements(machine.model, kind)
    replicas = machine.devices // kind.devices
    link = c.inside_node_gbps if len(machine.trainers) == 1 else c.between_nodes_gbps
    exchanged = (MASTER + machine.element) * elements * (replicas - 1) / replicas if replicas > 1 else 0.0
    update = UPDATE_BYTES * elements / max(1, replicas) / MEMORY_OVER_LINK / c.inside_node_gbps
    return exchanged / (link * 1e9) + update / 1e9


def stage_elements(model: ModelConfig, kind: Kind) -> int:
    """Parameters that one device of the fullest stage holds."""
    shares = shares_of(model)
    return max(shares.of(stage, tensor=0)[0] for stage in kind.replica().stages)
