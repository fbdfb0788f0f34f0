"""Rings whose members exchange heads train as one plain process, whatever else a layout splits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice
from typing import Literal

import pytest
import torch
from msgspec.structs import replace

from coxswain.config import ParallelConfig
from coxswain.cost.constants import load_hardware
from coxswain.layout import Layout
from coxswain.plan.head_groups import key_heads
from coxswain.plan.planners import BALANCES
from coxswain.plan.step import plan_step
from tests.distributed import test_training_in_layouts
from tests.distributed.plans import Plan, random_plan
from tests.distributed.ranks import run_ranks
from tests.distributed.test_training_in_layouts import STEPS, STREAM, differences
from tests.distributed.threads import run_threads
from tests.layouts import layout_of

MODEL = replace(test_training_in_layouts.MODEL, heads=8, kv_heads=4)
DEEP = [(2, 1), (1, 3)]
CASES = {
    "groups of a ring of four, or one": (layout_of(*[[(1, 3)]] * 4), {(4, 2), (4, 4), (3, 1)}),
    "tensor groups and stages": (layout_of(*[DEEP] * 3), {(2, 2), (2, 1)}),
}
UNEQUAL = layout_of([(2, 3)], [(2, 3)], [(1, 3)], [(1, 3)], DEEP), {(2, 2)}


def sizes(plans: Sequence[Plan]) -> set[tuple[int, int]]:
    """Members of each ring, and of its head groups."""
    return {(len(task.replicas), task.ulysses or 1) for tasks, _ in plans for task in tasks if task.kind == "ring"}


@pytest.mark.parametrize(
    ("layout", "some"),
    [*CASES.values(), pytest.param(*UNEQUAL, marks=pytest.mark.slow)],
    ids=[*CASES, "unequal replicas"],
)
def test_twenty_steps_with_an_exchange_of_heads_equal_one_plain_process(
    layout: Layout, some: set[tuple[int, int]]
) -> None:
    """With rings that exchange none beside them, and with several sequences in one ring."""
    keys = key_heads(MODEL, layout)
    plans = [random_plan(STREAM.lengths, len(layout.replicas), s, layout=layout, key_heads=keys) for s in range(STEPS)]
    assert some <= sizes(plans)
    assert max(differences(run_threads, layout, torch.float64, MODEL, plans)) <= 1e-12


def test_plans_of_every_planner_with_an_exchange_of_heads_train_over_processes_as_one_plain_process() -> None:
    """Links are slow, so Auto exchanges heads too."""
    layout, slow = layout_of(*[[(1, 3)]] * 4), load_hardware("h100-80g")
    slow = replace(slow, rates=replace(slow.rates, inside_node_gbps=1.0, between_nodes_gbps=1.0))

    def planned(attention: Literal["Ulysses", "Auto"], balance: str) -> Plan:
        parallel = ParallelConfig(tokens_per_replica=12, max_degree=4, balance=balance, attention=attention)
        placement = plan_step(STREAM.lengths, layout, parallel, MODEL, hardware=slow)
        return placement.tasks, placement.operations

    named, auto = ([planned(attention, b) for b in BALANCES] for attention in ("Ulysses", "Auto"))
    assert all((4, 4) in sizes(plans) for plans in (named, auto))
    every = list(islice(cycle([*named, *auto]), STEPS))
    assert max(differences(run_ranks, layout, torch.float64, MODEL, every)) <= 1e-12
