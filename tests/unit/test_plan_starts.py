"""Times read again from a stored plan."""

from __future__ import annotations

import random

import pytest

from coxswain.cost import load_constants
from coxswain.cost.model import CostModel
from coxswain.plan.assemble import assemble
from coxswain.plan.problem import Draft, make_problem
from coxswain.plan.simulate import simulate
from coxswain.plan.starts import starts


@pytest.mark.parametrize("seed", range(40))
def test_starts_read_from_a_plan_are_those_of_its_simulation_also_behind_barriers(seed: int) -> None:
    dice = random.Random(seed)
    lengths = [dice.randint(1, 2000) for _ in range(12)]
    cost = CostModel(load_constants("h100-80g"))
    problem = make_problem(lengths, replicas=5, capacity=2000, cost=cost, max_degree=5, node_size=2)
    drafts = [
        Draft(tuple(sorted(dice.sample(range(5), dice.choice([1, 1, 2, 4])))), (i,), i // 4 * (seed % 2))
        for i in range(12)
    ]
    found = starts(assemble(problem, "any", drafts).tasks)
    assert [found[i] for i in range(12)] == pytest.approx(simulate(problem, drafts).starts)
