"""Plans a step of a running job: lengths, layout and speeds in, a placement with operations out."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from coxswain.config import ModelConfig, ParallelConfig
from coxswain.cost import CostModel, constants_for
from coxswain.layout import Layout
from coxswain.plan.assemble import assemble, one_sequence_a_ring
from coxswain.plan.operations import operations
from coxswain.plan.planners import planner
from coxswain.plan.problem import make_problem
from coxswain.plan.validator import validate
from coxswain.plan.values import Placement

PACKED_RINGS = False
"""Whether the engine runs rings of several sequences. Where it does not, they are committed as rings of one each."""


def plan_step(
    sequence_lengths: Sequence[int],
    layout: Layout,
    parallelism: ParallelConfig,
    model: ModelConfig,
    speeds: Sequence[float] | None = None,
) -> Placement:
    """Places one step on the layout's replicas; speed 1 of a replica is the cost model's.

    Refused "CapacityLost" if the longest sequence does not fit. The result has passed the validator.
    """
    problem = make_problem(
        sequence_lengths,
        replicas=len(layout.replicas),
        capacity=parallelism.tokens_per_replica,
        cost=CostModel(constants_for(parallelism.hardware, model)),
        speeds=speeds,
        max_degree=parallelism.max_degree,
        node_size=replicas_per_trainer(layout),
    )
    drafts = planner(parallelism.balance)(problem)
    if not PACKED_RINGS:
        drafts = one_sequence_a_ring(drafts)
    placement = assemble(problem, parallelism.balance.lower(), drafts)
    placement = replace(placement, operations=operations(layout, placement.tasks, loss_layers(model)))
    faults = validate(placement, sequence_lengths, layout, parallelism.tokens_per_replica, parallelism.max_degree)
    if faults:
        raise AssertionError(f"planner {parallelism.balance}: {len(faults)} faults in its own plan, first: {faults[0]}")
    return placement


def loss_layers(model: ModelConfig) -> float:
    """The last stage's head, in layers: by the elements of their matrices."""
    head = model.hidden // model.heads
    layer = model.hidden * (2 * model.heads + 2 * model.kv_heads) * head + 3 * model.hidden * model.feed_forward
    return model.hidden * model.vocabulary / layer


def replicas_per_trainer(layout: Layout) -> int:
    """Counts the replicas of the first trainer: a trainer is a pod on one node."""
    homes = [replica.stages[0].devices[0].trainer for replica in layout.replicas]
    return sum(home == homes[0] for home in homes)
