"""Judges a layout by placing sampled steps on it as a job would: the planner's own plans, timed with all costs of a kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from coxswain.cost.memory import Recompute
from coxswain.cost.model import CostModel
from coxswain.cost.recompute import repeated
from coxswain.flops import loss_layers
from coxswain.layout import Layout
from coxswain.plan.head_groups import head_exchange
from coxswain.plan.kinds import kinds_of, nodes_of, rates_of
from coxswain.plan.planners import planner
from coxswain.plan.problem import Draft, Problem, make_problem
from coxswain.plan.simulate import simulate
from coxswain.plan.strategy.costs import KindCost, kind_cost
from coxswain.plan.strategy.values import Counts, Machine, layout_of

Ints = NDArray[np.int64]
Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Trial:
    """A layout to be judged: replicas by kind, what each kind takes and holds, and the speeds that the planner assumes."""

    counts: Counts
    costs: Sequence[KindCost]  # of each kind
    capacities: Sequence[int]  # tokens of a task, of each kind
    speeds: Sequence[
        float
    ] = ()  # of each kind, 1 is one device with the whole model; empty: as a job's planner has them
    recompute: Recompute = "None"

    def each(self, values: Sequence[Number]) -> list[Number]:
        """One value per replica."""
        return [value for value, (_, count) in zip(values, self.counts, strict=True) for _ in range(count)]


def step_seconds(machine: Machine, trial: Trial, steps: Sequence[Ints], balance: str) -> float:
    """Mean seconds of these steps. Refused ("CapacityLost") where a sequence does not fit the layout."""
    layout = layout_of(trial.counts, machine.trainers)
    return float(np.mean([_placed(machine, layout, trial, lengths, balance) for lengths in steps]))


def trial_of(machine: Machine, counts: Counts, recompute: Recompute, capacities: Sequence[int] = ()) -> Trial:
    """A layout with the costs of its kinds. `capacities`: empty: the machine's."""
    kinds = [kind for kind, _ in counts]
    costs = [kind_cost(machine, kind, recompute, kinds) for kind in kinds]
    return Trial(counts, costs, capacities or [machine.capacity] * len(counts), recompute=recompute)


def _placed(machine: Machine, layout: Layout, trial: Trial, lengths: Ints, balance: str) -> float:
    nodes, loss = nodes_of(layout), loss_layers(machine.model)
    exchange = head_exchange(machine.attention, machine.model, layout, nodes, trial.recompute)
    problem = make_problem(
        lengths,
        replicas=len(layout.replicas),
        capacity=trial.each(trial.capacities),
        cost=CostModel(repeated(machine.constants, trial.recompute), exchange),
        speeds=trial.each(trial.speeds) if trial.speeds else rates_of(layout, loss),
        max_degree=machine.max_degree,
        kinds=kinds_of(layout),
        nodes=nodes,
        layout=layout,
        loss=loss,
    )
    drafts = planner(balance)(problem)
    kinds = trial.each(range(len(trial.counts)))
    return max(kind_ends(problem, drafts, [k == own for k in kinds], cost) for own, cost in enumerate(trial.costs))


def kind_ends(problem: Problem, drafts: list[Draft], mine: list[bool], cost: KindCost) -> float:
    """When the last replica of a kind ends the step: its tasks, its longest one again for every further stage, the update."""
    own = [draft for draft in drafts if mine[draft.members[0]]]
    timeline = simulate(replace(problem, cost=cost.tasks, speeds=np.ones(problem.replicas)), own)
    ends, longest = [0.0] * problem.replicas, [0.0] * problem.replicas
    for draft, start, took in zip(own, timeline.starts, timeline.seconds, strict=True):
        for r in draft.members:
            ends[r], longest[r] = start + took, max(longest[r], took)
    return max(end + cost.drain * most for end, most in zip(ends, longest, strict=True)) + cost.after
