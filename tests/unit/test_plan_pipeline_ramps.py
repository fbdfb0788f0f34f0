"""Ramps: pipelines that fill and drain with short packs wait less than for full ones; only some can have them."""

from __future__ import annotations

import numpy as np
import pytest

from coxswain.layout import pipelines_of
from coxswain.plan.pipelines.bound import ideal_bubble
from coxswain.plan.pipelines.classes import deal, short_of
from coxswain.plan.pipelines.dispatch import Trial, drafts_of, end_of, search
from coxswain.plan.pipelines.groups import Stack
from coxswain.plan.pipelines.operations import ordered
from coxswain.plan.pipelines.ramps import ramp, ramp_wait
from coxswain.plan.planners import planner
from coxswain.plan.problem import Problem, make_problem
from coxswain.plan.simulate import simulate
from coxswain.plan.values import Task
from tests.unit.plan_cases import given
from tests.unit.test_plan_pipeline_makespan import problem_of

K = 1024


def end_of_one(took: list[float], stages: int) -> float:
    tasks = [Task(i, "pack", (0,), (), seconds) for i, seconds in enumerate(took)]
    return ordered(pipelines_of([stages]), tasks).seconds


@pytest.mark.parametrize("stages", [2, 3, 4, 5, 8])
def test_a_pipeline_with_ramps_waits_as_long_however_many_full_packs_are_between_them(stages: int) -> None:
    parts = ramp(stages)
    for full in (1, 2, stages - 1, 3 * stages):
        took = [*parts[::2].tolist(), *[1.0] * full, *parts[::-2].tolist()]
        assert end_of_one(took, stages) - sum(took) == pytest.approx(ramp_wait(stages))
    assert end_of_one([1.0] * 3 * stages, stages) - 3 * stages == pytest.approx(stages - 1)
    assert ramp_wait(stages) < 0.7 * (stages - 1)


def test_the_packs_of_both_ramps_have_the_work_of_all_stages_but_one() -> None:
    for stages in (2, 3, 8):
        assert ramp(stages).sum() == pytest.approx(stages - 1)
        assert sorted(ramp(stages)) == ramp(stages).tolist()


def bubble_over_ideal(problem: Problem, tasks: int) -> float:
    drafts = planner("makespan")(problem)
    busy = sum(simulate(problem, drafts).busy)
    return (1 - busy / (32 * end_of(problem, drafts))) / ideal_bubble(int(problem.stages.max()), tasks)


@pytest.mark.parametrize(("name", "seed"), [("wikipedia", 0), ("wikipedia", 1), ("github", 1), ("byted", 1)])
def test_steps_of_many_packs_beside_rings_of_64k_tokens_idle_hardly_more_than_the_ideal_bubble(
    name: str, seed: int
) -> None:
    assert bubble_over_ideal(problem_of(name, 64 * K, 4, 64, seed), 64) <= 1.15


@pytest.mark.parametrize("name", ["wikipedia", "github", "byted"])
def test_steps_of_packs_alone_idle_less_than_the_ideal_bubble_of_full_packs(name: str) -> None:
    assert bubble_over_ideal(problem_of(name, 8 * K, 4, 64, 0), 64) <= 0.85


def packs_only(name: str, stages: int, tasks: int) -> tuple[Problem, Trial]:
    problem = problem_of(name, 8 * K, stages, tasks, 0)
    return problem, search(problem, np.zeros(0, int), np.argsort(-problem.lengths, kind="stable"))


def test_packs_rise_and_fall_by_the_ramp_where_the_search_counts_on_ramps() -> None:
    problem, trial = packs_only("github", 4, 64)
    drafts = drafts_of(trial)
    seconds = np.array(simulate(problem, drafts).seconds)
    home = np.array([draft.members[0] for draft in drafts])
    assert trial.dealt.ramps.sum() >= 16
    for replica in np.flatnonzero(trial.dealt.ramps):
        mine = seconds[home == replica]
        full = np.median(mine)
        assert mine[:3] / full == pytest.approx([0.25, 0.5, 0.75], abs=0.06)
        assert mine[-3:] / full == pytest.approx([0.75, 0.5, 0.25], abs=0.06)
        assert mine.max() <= 1.1 * full


def test_pipelines_with_rings_and_those_that_the_rest_does_not_level_have_no_ramps() -> None:
    problem = make_problem([4000] * 300, **given(4, 8 * K), stages=4)
    full, task = problem.cost.pack_seconds([4000, 4000]), problem.cost.task
    short = short_of(problem, np.arange(300), full)
    sums, ring = np.array([3 * full, 0.0, 0.0, 60 * full]), np.array([1, 0, 0, 0])
    dealt = deal(short, Stack(sums, ring * full, ring), 4, np.inf)
    assert dealt.ramps.tolist() == [False, True, True, False]
    waits = np.where(dealt.ramps, ramp_wait(4) * full + 3 * task, 3 * full)
    assert dealt.ends == pytest.approx(sums + waits)


def test_steps_of_fewer_full_packs_a_pipeline_than_stages_have_no_ramps() -> None:
    assert packs_only("wikipedia", 8, 16)[1].dealt.ramps.any()
    assert not packs_only("wikipedia", 8, 8)[1].dealt.ramps.any()


@pytest.mark.parametrize("stages", [4, 8])
@pytest.mark.parametrize("name", ["wikipedia", "github", "byted"])
def test_the_search_counts_on_the_end_of_the_walk_where_pipelines_have_ramps(name: str, stages: int) -> None:
    problem, trial = packs_only(name, stages, 64)
    assert trial.dealt.ramps.any()
    assert end_of(problem, drafts_of(trial)) == pytest.approx(trial.dealt.level, rel=0.02)
