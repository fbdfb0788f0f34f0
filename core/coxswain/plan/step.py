"""Plans a step of a running job: lengths, layout and speeds in, a placement with operations out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from math import fsum

from msgspec.structs import replace

from coxswain.config import ModelConfig, ParallelConfig
from coxswain.cost import constants_for
from coxswain.cost.constants import Hardware
from coxswain.cost.model import CostModel
from coxswain.cost.recompute import repeated
from coxswain.flops import loss_layers
from coxswain.layout import Layout, capacities_of
from coxswain.plan.assemble import assemble
from coxswain.plan.head_groups import head_exchange, key_heads
from coxswain.plan.kinds import kinds_of, nodes_of, rates_of
from coxswain.plan.pipelines.bound import pipeline_bound
from coxswain.plan.pipelines.operations import is_flat, operations, ordered, shares_of
from coxswain.plan.planners import planner
from coxswain.plan.problem import Problem, make_problem
from coxswain.plan.validator import validate
from coxswain.plan.values import Placement


def plan_step(
    sequence_lengths: Sequence[int],
    layout: Layout,
    parallelism: ParallelConfig,
    model: ModelConfig,
    speeds: Sequence[float] | None = None,
    hardware: Hardware | None = None,
) -> Placement:
    """Places one step on the layout's replicas, which may differ. `speeds`: measured, 1 is what the cost model expects.

    Refused "CapacityLost" if the longest sequence does not fit. The result has passed the validator.
    """
    loss, nodes, capacities = loss_layers(model), nodes_of(layout), capacities_of(layout, parallelism)
    problem = make_problem(
        sequence_lengths,
        replicas=len(layout.replicas),
        capacity=capacities,
        cost=cost_model(layout, parallelism, model, hardware),
        speeds=speeds,
        max_degree=parallelism.max_degree,
        kinds=kinds_of(layout),
        nodes=nodes,
        layout=layout,
        loss=loss,
    )
    problem = dataclasses.replace(problem, speeds=problem.speeds * rates_of(layout, loss))
    placement = assemble(problem, parallelism.balance.lower(), planner(parallelism.balance)(problem))
    placement = _ordered(placement, problem, layout, loss)
    faults = validate(
        placement, sequence_lengths, layout, capacities, parallelism.max_degree,
        key_heads(model, layout),
    )  # fmt: skip
    if faults:
        raise AssertionError(f"planner {parallelism.balance}: {len(faults)} faults in its own plan, first: {faults[0]}")
    return placement


def cost_model(
    layout: Layout, parallelism: ParallelConfig, model: ModelConfig, hardware: Hardware | None = None
) -> CostModel:
    """What a job's steps are planned by. `hardware`: of its profile, instead of the named one."""
    recompute = parallelism.recompute
    exchange = head_exchange(parallelism.attention, model, layout, nodes_of(layout), recompute)
    return CostModel(repeated(constants_for(hardware or parallelism.hardware, model), recompute), exchange)


def _ordered(placement: Placement, problem: Problem, layout: Layout, loss: float) -> Placement:
    """Adds the operations; where replicas have several stages, times and bound are those of all stages."""
    if is_flat(layout):
        return replace(placement, operations=operations(layout, placement.tasks))
    found = ordered(layout, placement.tasks, loss)
    busy = fsum(task.seconds * len(task.replicas) for task in placement.tasks)
    return replace(
        placement,
        operations=found.operations,
        makespan_seconds=found.seconds,
        lower_bound_seconds=pipeline_bound(problem, shares_of(layout, loss)),
        idle_fraction=1 - busy / (placement.replicas * found.seconds) if found.seconds else 0.0,
    )
