"""What the benches of the engine and of recovery make of their measurements."""

import json
from types import SimpleNamespace

import pytest

from bench.engine_table import System, check_same, print_results, summary
from bench.recovery import describe, judge, standing


def system(replicas: int, rate: float, loss: float = 8.0) -> System:
    return System(replicas, rate, 1.0, {"worker": 0.25}, [0.001] * 99 + [0.5], 0.03, 0.95, loss)


def plain(rate: float) -> dict[str, float | str]:
    return {"tokens_per_second": rate, "cpu_per_1000": 0.2, "ways": "masked", "first_loss": 8.0}


def test_ratios_are_those_of_the_same_round():
    """A machine that halves its speed between two rounds must not show in them."""
    plains, ones = [plain(1000), plain(500)], [system(1, 950), system(1, 475)]
    found = summary(plains, ones, [system(2, 1520), system(2, 760)])
    assert (found["one over plain"], found["two over one"]) == (pytest.approx(0.95), pytest.approx(1.6))
    assert found["plain CPU over worker CPU"] == pytest.approx(0.8)


def test_the_first_line_is_json_and_the_last_one_states_the_ratios(capsys):
    print_results([plain(1000)], [system(1, 950)], [system(2, 1520)])
    first, *_, last = capsys.readouterr().out.splitlines()
    assert json.loads(first)["rounds"]["two"][0]["replicas"] == 2
    assert last.startswith("one over plain 0.950 (target 0.95; by CPU 0.800), two over one 1.60")


def test_sides_that_train_on_something_else_are_not_compared():
    with pytest.raises(RuntimeError, match="losses of step 0 differ"):
        check_same([plain(1000)], [system(1, 950, loss=8.01)])


def steps(*ends: float, first: int = 0, world: int = 1) -> list[tuple[float, int, int]]:
    return [(end, first + i, world) for i, end in enumerate(ends)]


def test_a_kill_that_only_delays_costs_its_longest_gap():
    found = judge("loader", [*steps(1, 2, 3.1), *steps(4, 7, 8, first=3)], at=3.5, between=0.0)
    assert (found.pause, found.resumed, found.redone, found.generations, found.cost) == (3, 0, 0, 0, 3)


def test_a_kill_that_costs_a_world_is_timed_to_the_first_step_of_the_next():
    found = judge("worker", [*steps(1, 2, 3), *steps(5.5, 6, 7, first=1, world=2)], at=3.25, between=0.0)
    assert (found.pause, found.resumed, found.redone, found.generations) == (2.5, 2.25, 2, 1)
    assert found.cost == 2.5
    assert "next world's first step after 2.25 s" in describe("worker", [found])


@pytest.mark.parametrize(("between", "cost"), [(0.9, 0.0), (1.1, 1.1)])
def test_a_step_stands_still_when_a_rank_waits_for_it_longer_than_a_step_takes(between, cost):
    found = judge("coordinator", steps(1, 2, 3, 4, 6.5, 7), at=4.0, between=between)
    assert (found.pause, found.cost) == (2.5, cost)
    assert describe("coordinator", [found]).endswith("MISSED" if cost else "met")


def test_ranks_stand_from_the_end_of_a_step_to_the_begin_of_the_next_of_the_same_world():
    """Rank 1 waits for 0.25 s before step 2; before that, and from world to world, it does not count."""
    ends = [(0, 1, 1.0), (1, 1, 5.0), (2, 1, 6.25), (2, 2, 20.0)]
    lines = [
        {"step": step, "worldGeneration": world, "ranks": [{"rank": 1, "ended": end, "seconds": 1.0}]}
        for step, world, end in ends
    ]
    assert standing(SimpleNamespace(lines=lambda name: lines), after=5.5) == 0.25
