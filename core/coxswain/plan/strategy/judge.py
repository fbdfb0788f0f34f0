"""Judges a layout by placing sampled steps on it as a job would: the planner's own plans, timed with all costs of a kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from coxswain.cost.memory import Recompute
from coxswain.cost.model import CostModel
from coxswain.flops import loss_layers
from coxswain.layout import Layout
from coxswain.plan.kinds import kinds_of, nodes_of, rates_of
from coxswain.plan.planners import planner
from coxswain.plan.problem import Draft, Problem, make_problem
from coxswain.plan.simulate import simulate
from coxswain.plan.strategy.costs import KindCost, kind_cost
from coxswain.plan.strategy.values import Counts, Kind, Machine, layout_of

Ints = NDArray[np.int64]


def step_seconds(
    machine: Machine,
    counts: Counts,
    steps: Sequence[Ints],
    balance: str,
    recompute: Recompute = "None",
    capacities: Sequence[int] = (),
) -> float:
    """Mean seconds of these steps. Refused ("CapacityLost") where a sequence does not fit the layout.

    `capacities`: tokens of a task, of each kind; empty: the machine's.
    """
    layout = layout_of(counts, machine.trainers)
    kinds = [kind for kind, count in counts for _ in range(count)]
    costs = {kind: kind_cost(machine, kind, recompute) for kind, _ in counts}
    each = capacities or [machine.capacity] * len(counts)
    held = [tokens for tokens, (_, count) in zip(each, counts, strict=True) for _ in range(count)]
    seconds = [_placed(machine, layout, kinds, costs, lengths, balance, held) for lengths in steps]
    return float(np.mean(seconds))


def _placed(
    machine: Machine,
    layout: Layout,
    kinds: list[Kind],
    costs: dict[Kind, KindCost],
    lengths: Ints,
    balance: str,
    capacities: list[int],
) -> float:
    problem = make_problem(
        lengths,
        replicas=len(layout.replicas),
        capacity=capacities,
        cost=CostModel(machine.constants),
        speeds=rates_of(layout, loss_layers(machine.model)),
        max_degree=machine.max_degree,
        kinds=kinds_of(layout),
        nodes=nodes_of(layout),
        stages=[len(replica.stages) for replica in layout.replicas],
    )
    drafts = planner(balance)(problem)
    return max(_kind_ends(problem, drafts, [k == kind for k in kinds], cost) for kind, cost in costs.items())


def _kind_ends(problem: Problem, drafts: list[Draft], mine: list[bool], cost: KindCost) -> float:
    """When the last replica of a kind ends the step: its tasks, its longest one again for every further stage, the update."""
    own = [draft for draft in drafts if mine[draft.members[0]]]
    timeline = simulate(replace(problem, cost=cost.tasks, speeds=np.ones(problem.replicas)), own)
    ends, longest = [0.0] * problem.replicas, [0.0] * problem.replicas
    for draft, start, took in zip(own, timeline.starts, timeline.seconds, strict=True):
        for r in draft.members:
            ends[r], longest[r] = start + took, max(longest[r], took)
    return max(end + cost.drain * most for end, most in zip(ends, longest, strict=True)) + cost.after
