"""Layouts that the ladder is offered, judged by placing a job's steps on them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from math import inf
from statistics import mean

import pytest
from msgspec.structs import replace as with_fields

from coxswain.config import ParallelConfig
from coxswain.ladder.speeds import bucket, speed_of
from coxswain.ladder.values import Option, Options
from coxswain.layout import Device, Layout, Replica, Stage, uniform_layout
from coxswain_coordinator.planning.placers import place_step
from coxswain_coordinator.stragglers.judge import judged
from coxswain_coordinator.stragglers.ladder import Ladder
from tests.unit.coordinator_fakes import make_job
from tests.unit.ladder_samples import SLOW as SECOND
from tests.unit.ladder_samples import Job, left

DEVICES = [Device(t, 0) for t in range(4)]
SLOW = DEVICES[1]
WHOLE = uniform_layout(DEVICES, 4)
THREE = Layout(tuple(r for r in WHOLE.replicas if r.stages[0].devices != (SLOW,)), (SLOW,))
PAIR = Replica((Stage((DEVICES[0],), 0, 2), Stage((DEVICES[2],), 2, 4)))
DEEP = Layout((PAIR, WHOLE.replicas[3]), (SLOW,))
STEPS = [[512] * 16, [1024, 700, 300, *[256] * 24], [128] * 64]


def job_of(folder, **parallel):
    job = make_job(folder, trainers=4)
    shape = {"tokens_per_replica": 1024, "max_degree": 4, "hardware": "a100-80g"} | parallel
    return with_fields(job, model=with_fields(job.model, layers=4), parallelism=ParallelConfig(**shape))


def options(*layouts: tuple[Layout, float], stay: float = 5.0) -> Options:
    return Options(WHOLE, {SLOW: 0.25}, stay, 4.0, tuple(Option("Groups", found, s, 1.0) for found, s in layouts))


def planned(job, layout: Layout, speeds: tuple[float, ...] = ()) -> float:
    here = with_fields(job, model=with_fields(job.model, vocabulary=320))
    return mean(place_step(step, layout, here, speeds).makespan_seconds for step in STEPS)


def test_layouts_are_judged_by_the_plans_that_their_steps_would_have(tmp_path):
    job = job_of(tmp_path)
    found = judged(job, 320, options((THREE, 6.0)), STEPS)
    assert found.stay == pytest.approx(planned(job, WHOLE, (1.0, speed_of(bucket(4.0, 0)), 1.0, 1.0)))
    assert found.layouts == (Option("Groups", THREE, planned(job, THREE), 1.0),)
    assert found.healthy == pytest.approx(4.0 * found.stay / 5.0)
    assert (found.current, found.speeds) == (WHOLE, {SLOW: 0.25})


def test_a_pipeline_that_only_rounding_made_faster_is_slower_than_three_replicas(tmp_path):
    """16 micro-batches are 6 on the first of three replicas, and 11 of half the time on a pipeline of two."""
    found = judged(job_of(tmp_path), 320, options((THREE, 6.0), (DEEP, 5.9)), STEPS)
    three, deep = (option.seconds for option in found.layouts)
    assert three < deep


def test_a_layout_on_which_a_step_cannot_be_placed_is_no_option(tmp_path):
    long = [*STEPS, [4096]]
    found = judged(job_of(tmp_path), 320, options((THREE, 4.0)), long)
    assert found.layouts == () and found.stay < 5.0


def test_without_steps_options_stay_as_they_are(tmp_path):
    given = options((THREE, 6.0))
    assert judged(job_of(tmp_path), 320, given, []) == given


def test_without_steps_a_layout_that_cannot_stay_keeps_its_options(tmp_path):
    given = options((THREE, 6.0), stay=inf)
    assert judged(job_of(tmp_path), 320, given, []) == given


def test_options_stay_as_they_are_where_the_present_layout_cannot_hold_a_step(tmp_path):
    given = options((THREE, 6.0))
    assert judged(job_of(tmp_path), 320, given, [*STEPS, [4097]]) == given


def test_a_slow_device_with_few_layers_does_not_hold_its_pipeline_up(tmp_path):
    few, half = (Replica((Stage((SLOW,), 0, n), Stage((DEVICES[2],), n, 4))) for n in (1, 2))
    rest = (WHOLE.replicas[0], WHOLE.replicas[3])
    found = judged(job_of(tmp_path), 320, options((Layout((few, *rest)), 6.0), (Layout((half, *rest)), 6.0)), STEPS)
    assert found.layouts[0].seconds < found.layouts[1].seconds


def test_where_staying_is_impossible_it_stays_so_and_options_are_judged(tmp_path):
    job = job_of(tmp_path)
    found = judged(job, 320, options((THREE, 6.0), stay=inf), STEPS)
    assert (found.stay, found.healthy) == (inf, 4.0)
    assert [option.seconds for option in found.layouts] == [planned(job, THREE)]


def test_balances_that_may_take_long_are_judged_by_the_fall_back(tmp_path, monkeypatch):
    balances = set()

    def seen(lengths, layout, job, speeds, hardware):
        balances.add(job.parallelism.balance)
        return place_step(lengths, layout, job, speeds, hardware)

    monkeypatch.setattr("coxswain_coordinator.stragglers.judge.place_step", seen)
    for balance, by in (("FlexSP", "Makespan"), ("Naive", "Naive")):
        balances.clear()
        assert judged(job_of(tmp_path, balance=balance), 320, options((THREE, 6.0)), STEPS).layouts
        assert balances == {by}


@pytest.mark.parametrize(("seconds", "left"), [(8.0, True), (10.0, False)])
async def test_the_ladder_has_its_options_judged_by_the_last_four_steps(tmp_path, seconds: float, left: bool) -> None:
    j = Job(tmp_path, lengths=(256, 128), factor=3.0)
    asked = []

    def judge(job, vocabulary, found, steps):
        asked.append((vocabulary, steps))
        return replace(found, layouts=tuple(replace(option, seconds=seconds) for option in found.layouts))

    j.ladder.judge, j.slow = judge, False
    await j.run(6)
    j.slow, j.onset = True, j.step
    await j.run(30)
    assert asked[0] == (320, ((256, 128),) * 4)
    assert [layout.standby for layout, _ in j.asked] == ([(SECOND,)] if left else [])


async def test_a_new_coordinator_plans_for_a_loss_once_it_has_seen_a_step_that_judges_layouts(tmp_path):
    j, judges = Job(tmp_path, planner=left, trainers=3, slow=False, lengths=(256, 128)), []

    def judge(job, vocabulary, found, steps):
        judges.append(steps)
        return found

    j.ladder = Ladder(j.job, lambda *request: None, lambda *event: None, j.beside, left, judge=judge)
    j.lose(2)
    for _ in range(4):
        await asyncio.sleep(0)
    assert j.plans == 0
    await j.run(20)
    assert judges == [((256, 128),)]
