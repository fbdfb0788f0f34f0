"""Legal plans of any small layout run on gloo to their end, by the executor's own code."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import pytest

from coxswain.plan.chunks import ring_slices
from coxswain.plan.pipelines.replay import replay
from coxswain.plan.values import Operation, StageOperations, Task
from tests.distributed.bare_ranks import Plan, run_plans
from tests.distributed.ranks import run_ranks
from tests.fuzzed_plans import fuzzed_plan, layout_of_shapes, placement_of

RANKS = 12


def file_of(folder: Path, plans: Sequence[Plan]) -> Path:
    file = folder / "plans"
    file.write_bytes(pickle.dumps(list(plans)))
    return file


def operations_run(plans: Sequence[Plan]) -> list[int]:
    """By rank, of all plans."""
    count = [0] * RANKS
    for layout, _, lists in plans:
        many = {(each.replica, each.stage): len(each.operations) for each in lists}
        for seat in layout.ranks():
            count[seat.rank] += many[seat.replica, seat.stage]
    return count


MANY = [pytest.mark.slow, pytest.mark.timeout(900)]
SEEDS = [pytest.param(range(50), id="fifty")]
SEEDS += [
    pytest.param(range(n, n + 1000), id=f"thousand {n // 1000 + 1} of ten", marks=MANY) for n in range(0, 10_000, 1000)
]


@pytest.mark.parametrize("seeds", SEEDS)
def test_fuzzed_legal_plans_run_on_gloo_to_their_end(seeds: range, tmp_path: Path) -> None:
    """Worlds of 2 to 12 ranks, 1 to 3 stages, replicas that differ: those that the unit tests judge by the validator."""
    for world in (seeds[at : at + 100] for at in range(0, len(seeds), 100)):
        fuzzed = [fuzzed_plan(seed) for seed in world]
        plans = [(each.layout, each.tasks, each.operations) for each in fuzzed]
        assert run_ranks(RANKS, run_plans, file_of(tmp_path, plans), deadline=120) == operations_run(plans), world


def test_the_forwards_of_an_evaluation_run_on_gloo_to_their_end(tmp_path: Path) -> None:
    fuzzed = [fuzzed_plan(seed) for seed in range(25)]
    plans = [(each.layout, each.tasks, forwards(each.operations)) for each in fuzzed]
    assert run_ranks(RANKS, run_plans, file_of(tmp_path, plans), deadline=120) == operations_run(plans)


def forwards(lists: Sequence[StageOperations]) -> tuple[StageOperations, ...]:
    return tuple(
        StageOperations(each.replica, each.stage, tuple(o for o in each.operations if o.kind == "F")) for each in lists
    )


def test_a_plan_whose_ring_lacks_a_member_is_refused_and_hangs_on_gloo(tmp_path: Path) -> None:
    """So the runner sees hangs: its deadline passes."""
    layout = layout_of_shapes([((1, 1),)] * 2)
    tasks = tuple(Task(i, "ring", (0, 1), tuple(ring_slices([i], [8], (0, 1)))) for i in range(1))
    uneven = StageOperations(0, 0, (Operation("F", 0), Operation("B", 0))), StageOperations(1, 0, ())
    assert replay(placement_of(layout, tasks, uneven), layout)
    with pytest.raises(TimeoutError):
        run_ranks(2, run_plans, file_of(tmp_path, [(layout, tasks, uneven)]), deadline=5)
