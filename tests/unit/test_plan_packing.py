"""Short sequences on replicas of unequal speeds: each goes to where it ends first, by what a new pack costs where one begins."""

from __future__ import annotations

import numpy as np
import pytest

from coxswain.plan.planners import planner
from coxswain.plan.problem import Draft, Problem, make_problem
from coxswain.plan.simulate import simulate
from tests.unit.plan_cases import given

SPEEDS = ("half of them slow", "all differ")


def step(kind: str, longest: int, seed: int) -> Problem:
    """One to three sequences a replica, all of which fit one."""
    rng = np.random.default_rng(seed)
    replicas = int(rng.integers(2, 17))
    lengths = rng.integers(1, longest + 1, int(rng.integers(replicas, 3 * replicas + 1)))
    speeds = {
        "half of them slow": np.where(np.arange(replicas) < replicas // 2, 0.5, 1.0),
        "all differ": rng.uniform(0.1, 3, replicas),
    }  # fmt: skip
    return make_problem(lengths, **given(replicas, 8192, speeds=speeds[kind].tolist()))


def one_by_one(problem: Problem) -> list[Draft]:
    """Gives each sequence, longest first, to the replica that then ends first."""
    work, lengths = problem.cost.work_seconds(problem.lengths).tolist(), problem.lengths.tolist()
    packs: list[list[list[int]]] = [[] for _ in range(problem.replicas)]
    levels = [0.0] * problem.replicas

    def end(sequence: int, replica: int) -> tuple[float, list[int] | None]:
        room = problem.capacity - lengths[sequence]
        pack = next((p for p in packs[replica] if sum(lengths[i] for i in p) <= room), None)
        took = work[sequence] + (problem.cost.task if pack is None else 0)
        return levels[replica] + took / float(problem.speeds[replica]), pack

    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        ends = [end(i, replica) for replica in range(problem.replicas)]
        chosen = min(range(problem.replicas), key=lambda replica: ends[replica][0])
        levels[chosen], pack = ends[chosen]
        if pack is None:
            packs[chosen].append(pack := [])
        pack.append(i)
    return [Draft((replica,), tuple(pack)) for replica, mine in enumerate(packs) for pack in mine]


@pytest.mark.parametrize("longest", [16, 256, 8192])
@pytest.mark.parametrize("kind", SPEEDS)
def test_a_step_of_few_short_sequences_ends_when_it_does_with_each_given_to_the_replica_that_ends_it_first(
    kind: str, longest: int
) -> None:
    for seed in range(20):
        problem = step(kind, longest, seed)
        plain = simulate(problem, one_by_one(problem)).makespan
        assert simulate(problem, planner("makespan")(problem)).makespan <= 1.02 * plain, f"seed {seed}"


def test_a_fast_replica_takes_a_second_sequence_into_its_pack_before_a_slow_one_begins_a_pack() -> None:
    problem = make_problem([9, 8], **given(2, 8192, speeds=[0.25, 1.0]))
    assert planner("makespan")(problem) == [Draft((1,), (0, 1))]


def test_a_sequence_for_which_the_fast_replicas_pack_has_no_room_counts_the_cost_of_another_pack() -> None:
    problem = make_problem([8192, 9], **given(2, 8192, speeds=[0.5, 1.0]))
    assert set(planner("makespan")(problem)) == {Draft((1,), (0,)), Draft((0,), (1,))}
