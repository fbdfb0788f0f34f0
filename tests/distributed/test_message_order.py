"""The executor enqueues as the validator of plans assumes: what that passes runs in the order of batches, the rest hangs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Literal

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from coxswain.config import ParallelConfig
from coxswain.layout import Layout
from coxswain.plan.pipelines.replay import replay
from coxswain.plan.step import plan_step
from coxswain.plan.values import Placement
from tests.distributed import training
from tests.distributed.reference import Stream
from tests.distributed.rendezvous import Communicator, Hang, RendezvousWorld
from tests.distributed.test_layouts import MODEL
from tests.distributed.threads import ThreadWorld, run_threads
from tests.layouts import layout_of

STREAM = Stream(lengths=(3, 40, 7, 16, 64, 29, 5, 41), vocabulary=training.VOCABULARY)
LAYOUTS = {
    "two pipelines of three stages": layout_of(*[[(1, 1), (1, 2), (1, 3)]] * 2),
    "unequal pipelines": layout_of([(1, 1), (1, 3)], [(1, 1), (1, 3)], [(1, 3)], [(1, 1), (1, 2), (1, 3)]),
}


Attention = Literal["Ring", "Ulysses"]
Balance = Literal["Makespan", "Naive"]
EACH = pytest.mark.parametrize("attention", ["Ring", "Ulysses"])


def placement_of(layout: Layout, attention: Attention, balance: Balance = "Makespan") -> Placement:
    """With rings, made by the planner."""
    parallel = ParallelConfig(tokens_per_replica=40, max_degree=4, attention=attention, balance=balance)
    found = plan_step(STREAM.lengths, layout, parallel, MODEL)
    assert any(task.kind == "ring" for task in found.tasks)
    assert any(task.ulysses for task in found.tasks) == (attention == "Ulysses")
    return found


def computed(world: ThreadWorld, layout: Layout, placement: Placement, communicator: Communicator) -> list[np.ndarray]:
    """This rank's owned gradient of the step. Raises Hang."""
    met = RendezvousWorld(world.mail, world.rank, world.ranks, communicator=communicator)
    engine = training.engine_of(met, torch.float64, MODEL, layout=layout)  # type: ignore[arg-type]
    engine.initialise(training.SEED)
    plan = placement.tasks, placement.operations
    try:
        engine.compute(training.work_of(STREAM, 0, plan, engine.seat.replica, engine.seat.stage))
    finally:
        communicator.leave()
    return [engine.optimizer.reduce().numpy()]


def run(layout: Layout, placement: Placement) -> list[np.ndarray]:
    ranks = len(layout.ranks())
    return [g for mine in run_threads(ranks, computed, layout, placement, Communicator(ranks)) for g in mine]


def swapped(placement: Placement) -> Iterator[Placement]:
    """With two neighbouring operations of one stage exchanged, everywhere."""
    for at, stage in enumerate(placement.operations):
        for first in range(len(stage.operations) - 1):
            mine = list(stage.operations)
            mine[first : first + 2] = mine[first + 1], mine[first]
            lists = list(placement.operations)
            lists[at] = replace(stage, operations=tuple(mine))
            yield replace(placement, operations=tuple(lists))


@EACH
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_the_planners_plans_run_on_a_communicator_that_keeps_the_order_of_batches(
    layout: Layout, attention: Attention
) -> None:
    found = np.concatenate(run(layout, placement_of(layout, attention)))
    alone = np.concatenate(run(layout_of([(1, 3)]), placement_alone()))
    assert np.linalg.norm(found) == pytest.approx(np.linalg.norm(alone), rel=1e-13)
    assert float(np.abs(np.sort(found) - np.sort(alone)).max()) <= 1e-14


def placement_alone() -> Placement:
    return plan_step(STREAM.lengths, layout_of([(1, 3)]), ParallelConfig(tokens_per_replica=400), MODEL)


@EACH
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_plan_with_two_operations_swapped_hangs_just_where_the_validator_says(
    layout: Layout, attention: Attention
) -> None:
    """Of plans with packs beside the rings, so that some stages need not wait for others."""
    placement = placement_of(layout, attention, "Naive")
    judged = [(changed, replay(changed, layout)) for changed in swapped(placement)]
    legal = [changed for changed, faults in judged if not faults]
    hanging = [changed for changed, faults in judged if faults and faults[0].startswith("hang")]
    assert legal and hanging
    for changed in random.Random(1).sample(legal, min(2, len(legal))):
        run(layout, changed)
    for changed in random.Random(2).sample(hanging, min(3, len(hanging))):
        with pytest.raises(Hang):
            run(layout, changed)
