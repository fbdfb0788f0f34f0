"""Replicas of unequal depth: sequences are dealt by when the pipelines end, with their fill and drain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from coxswain.config import ModelConfig
from coxswain.cost import constants_for
from coxswain.cost.model import CostModel
from coxswain.layout import Device, Layout, Replica, Stage
from coxswain.plan.dealing import Kind, by_kind, deal
from coxswain.plan.kinds import kinds_of, nodes_of, rates_of
from coxswain.plan.pipelines.dispatch import end_of
from coxswain.plan.planners import BALANCES, planner
from coxswain.plan.problem import Draft, Problem, make_problem

LAYERS, TOKENS, SINGLES, DEEP = 32, 8192, 4, 8
MODEL = ModelConfig(layers=LAYERS, hidden=4096, heads=32, kv_heads=8, feed_forward=11008)


def pipeline(trainers: range) -> Replica:
    cuts = [LAYERS * i // len(trainers) for i in range(len(trainers) + 1)]
    return Replica(tuple(Stage((Device(t, 0),), cuts[i], cuts[i + 1]) for i, t in enumerate(trainers)))


ALONE = tuple(pipeline(range(t, t + 1)) for t in range(SINGLES))
TOGETHER = pipeline(range(SINGLES, SINGLES + DEEP))


def problem_of(lengths: Sequence[int], *replicas: Replica, loss: float = 0.0) -> Problem:
    layout = Layout(replicas)
    return make_problem(
        lengths, replicas=len(replicas), capacity=TOKENS, cost=CostModel(constants_for("h100-80g", MODEL)),
        speeds=rates_of(layout, loss), max_degree=4, kinds=kinds_of(layout), nodes=nodes_of(layout), layout=layout, loss=loss,
    )  # fmt: skip


def planned_end(problem: Problem) -> float:
    return end_of(problem, planner("makespan")(problem))


def best_of_dealings(lengths: list[int]) -> float:
    """The least end where the pipeline of eight stages gets every n-th sequence by length, or so many of the shortest."""
    ordered, ends = sorted(lengths), list[float]()
    every = [set(range(0, len(lengths), n)) for n in (2, 3, 4, 5, 8)]
    for mine in every + [set(range(len(lengths) * n // 8)) for n in range(1, 8)]:
        deep = [length for i, length in enumerate(ordered) if i in mine]
        rest = [length for i, length in enumerate(ordered) if i not in mine]
        ends.append(max(planned_end(problem_of(deep, TOGETHER)), planned_end(problem_of(rest, *ALONE))))
    return min(ends)


@pytest.mark.parametrize("sequences", [5, 16, 40, 120, 400])
@pytest.mark.parametrize("seed", range(3))
def test_four_replicas_of_one_stage_beside_one_of_eight_end_no_later_than_the_best_of_twelve_dealings(
    sequences: int, seed: int
) -> None:
    lengths = np.minimum(TOKENS, np.random.default_rng(seed).lognormal(7, 1, sequences).astype(int) + 1).tolist()
    assert planned_end(problem_of(lengths, *ALONE, TOGETHER)) <= 1.001 * best_of_dealings(lengths)


def test_of_several_deals_the_one_that_ends_first_is_taken() -> None:
    """Here the first: in all others every kind runs everything on one replica."""
    calls = 0

    def worse(problem: Problem) -> list[Draft]:
        nonlocal calls
        calls += 1
        if calls <= 2:  # kinds
            return BALANCES["makespan"](problem)
        return [Draft((0,), (i,)) for i in range(problem.lengths.size)]

    lengths = np.minimum(TOKENS, np.random.default_rng(1).lognormal(7, 1, 24).astype(int) + 1).tolist()
    problem = problem_of(lengths, *ALONE, TOGETHER)
    found = by_kind(worse, problem, deals=4)
    assert calls > 2
    assert end_of(problem, found) == end_of(problem, by_kind(BALANCES["makespan"], problem, deals=1))


def test_a_pipeline_ends_when_the_slowest_of_its_unequal_stages_does() -> None:
    """The last stage has the loss besides its layers."""
    problem = problem_of([TOKENS] * 16, TOGETHER, loss=3.0)
    drafts = planner("makespan")(problem)
    assert end_of(problem, drafts) < end_of(replace(problem, loss=0.0), drafts)


def test_what_a_kind_got_before_is_not_planned_again() -> None:
    """The deals go to and fro between two dealings: each kind sees each of them once."""
    asked: list[tuple[int, bytes]] = []

    def asking(problem: Problem) -> list[Draft]:
        asked.append((problem.replicas, problem.lengths.tobytes()))
        return BALANCES["makespan"](problem)

    lengths = [TOKENS, 5000, 3000]
    by_kind(asking, problem_of(lengths, *ALONE, TOGETHER), deals=6)
    assert len(asked) == len(set(asked)) < 12


def test_a_kind_ends_a_sequence_behind_its_fill_and_drain_or_those_of_a_longer_one_that_it_has() -> None:
    """Four stages: three times the sequence's own 1.5 s, or what the longest one before it waits; at the least four times it."""
    kind = Kind(speed=2.0, waits=3.0, work=[4.0], alone=[1.5])
    assert kind.end(4.0, 1.0, 0) == 2.0 + 4.5
    assert kind.end(4.0, 5.0, 0) == 2.0 + 5.0
    assert kind.end(0.5, 1.0, 0) == 4 * 1.5
    assert replace(kind, later=2.0).end(4.0, 1.0, 0) == 2 * 6.5


def test_each_deal_takes_a_kind_for_as_much_later_as_it_ended_than_its_work_and_waits_alone_say() -> None:
    """Not for what an earlier deal took it for times as much again."""
    problem = problem_of([2000, 1000], ALONE[0], TOGETHER)
    one = Kind(speed=1.0, waits=0.0, work=[4.0, 2.0], alone=[4.0, 2.0])
    deep = Kind(speed=8.0, waits=7.0, work=[4.0, 2.0], alone=[0.5, 0.25])
    dealt, assumed = deal(problem, [one, deep])
    assert (dealt.tolist(), assumed) == ([0, 1], [4.0, 2.0])
    later = [kind.ended(was, end) for kind, was, end in zip((one, deep), assumed, (6.0, 3.0), strict=True)]
    assert [kind.later for kind in later] == [1.5, 1.5]
    assert deal(problem, later)[1] == assumed
    assert later[0].ended(4.0, 8.0).later == 2.0
    assert later[0].ended(0.0, 0.0).later == 1.5, "a kind without work says nothing"
