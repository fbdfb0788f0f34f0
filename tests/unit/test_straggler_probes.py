"""When a suspect is probed, beside which controls, and what its answers confirm or clear."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.detect import ONSET
from coxswain.stragglers.probes import Probes
from coxswain.stragglers.values import Mask, State, Step, Thresholds
from tests.unit.straggler_runs import FIRST, confirmed, running, slowed


def test_a_suspect_has_full_speed_for_the_planner_until_a_probe_agrees() -> None:
    run = slowed(2.0)
    for _ in range(30):
        run.probed = ()
        report = run.step()
    assert report.states[FIRST] == State.SUSPECTED and report.speeds[FIRST] == 1.0 and FIRST in report.probes
    assert confirmed(run.step()) == [FIRST]


def test_a_probe_that_finds_nothing_clears_a_suspect_and_the_next_probes_are_ever_rarer() -> None:
    run, times = running(), []
    for number in range(600):
        step = run.world.step(ONSET + number, run.probed)
        step.compute[FIRST] *= 1.5  # the rank's rate, and not its probe's
        report = run.detector.observe(step)
        run.probed = report.probes
        assert not confirmed(report)
        times += [number] if FIRST in report.probes else []
    assert 3 <= len(times) <= 6
    assert np.all(np.diff(times, n=2) > 0)


def test_a_suspect_that_was_cleared_is_probed_again_once_it_gets_slower() -> None:
    run = running()
    for _ in range(200):
        step = run.world.step(run.number, run.probed)
        step.compute[FIRST] *= 1.2
        report = run.detector.observe(step)
        run.number, run.probed = run.number + 1, report.probes
    run.world.slow[FIRST] = 1.5
    assert confirmed(run.steps(10)) == [FIRST]


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_a_probe_of_no_time_or_without_end_is_no_answer(seconds: float) -> None:
    all_ranks = np.full(3, True)
    found = Probes(["", "", ""], Thresholds()).answers({0: seconds, 1: 0.01, 2: 0.01}, all_ranks, all_ranks, ~all_ranks)
    assert np.isnan(found[0])


@pytest.mark.parametrize(("seconds", "took"), [(0.5, 5), (15.0, 1)])
def test_one_slow_step_that_lost_more_than_a_probe_takes_is_enough_to_probe(seconds: float, took: int) -> None:
    run = slowed(1.3, noise=0.0)
    run.world.natural[:] = 1.0
    probed = 0
    while FIRST not in run.probed:
        step = run.world.step(run.number, run.probed)
        run.probed = run.detector.observe(
            replace(step, compute=step.compute * seconds, work=step.work * seconds)
        ).probes
        run.number, probed = run.number + 1, probed + 1
    assert probed == took


def test_one_slow_step_with_a_long_sequence_makes_no_suspect() -> None:
    for longest, probed in ((5000.0, True), (6144.0, True), (6145.0, False)):
        run = slowed(1.3, noise=0.0)
        step = run.world.step(run.number, ())
        lengths = np.full(64, 4096.0)
        lengths[FIRST] = longest
        report = run.detector.observe(replace(step, compute=step.compute * 15, work=step.work * 15, longest=lengths))
        assert (FIRST in report.probes) == probed


def test_a_probe_that_is_much_slower_than_a_step_says_how_slow_the_device_is() -> None:
    run = slowed(2.0, noise=0.0)
    run.world.natural[:] = 1.0
    step = run.world.step(run.number, ())
    run.detector.observe(replace(step, compute=step.compute * 15, work=step.work * 15))  # slow for a part of it
    run.world.slow[FIRST] = 5.0
    none = np.full(64, np.nan)
    answers = {rank: 0.3 * float(run.world.slow[rank]) for rank in (FIRST, 20, 40)}
    report = run.detector.observe(Step(run.number, none, none, probes=answers))
    assert report.slowdowns[FIRST] == pytest.approx(5.0, rel=0.06)


def test_a_probe_is_judged_beside_other_kinds_where_its_own_has_no_control() -> None:
    probes, every = Probes(["a", "b", "b", "b"], Thresholds()), np.ones(4, dtype=bool)
    probes.answers({0: 0.4, 1: 0.2, 2: 0.2, 3: 0.2}, every, every, ~every)
    normal = np.array([False, True, True, True])
    assert probes.answers({0: 0.52, 1: 0.26, 2: 0.26}, normal, every, ~normal)[0] == pytest.approx(
        1.0
    )  # all are slower alike
    assert probes.answers({0: 0.60, 1: 0.20, 2: 0.20}, normal, every, ~normal)[0] == pytest.approx(1.5)
    assert np.isnan(probes.answers({0: 0.60}, normal, every, ~normal)[0])


def test_controls_of_a_probe_are_far_apart() -> None:
    probes, every = Probes(["a"] * 64, Thresholds()), np.ones(64, dtype=bool)
    probes.answers(dict.fromkeys(range(64), 0.3), every, every, ~every)
    suspects = np.arange(64) == FIRST
    asked = probes.requests(suspects, ~suspects, every)
    assert len(asked) == 4 and FIRST in asked
    assert len({rank // 16 for rank in asked if rank != FIRST}) == 3


@pytest.mark.parametrize(("slowdown", "steps"), [(2.2, 3), (2.57, 3), (5.42, 2), (12.53, 2)])
def test_a_very_slow_device_is_probed_after_two_steps_or_one_and_confirmed_with_the_next(
    slowdown: float, steps: int
) -> None:
    run = slowed(slowdown)
    report = run.steps(steps)
    assert confirmed(report) == [FIRST]
    assert report.slowdowns[FIRST] == pytest.approx(slowdown, rel=0.1)


def test_one_step_that_a_pause_makes_five_times_as_long_is_probed_and_cleared() -> None:
    run = slowed(5.0)
    report = run.step()
    assert FIRST in report.probes and not confirmed(report)
    run.world.slow[FIRST] = 1.0
    assert not any(run.step().states.any() for _ in range(20))


@pytest.mark.parametrize(("slowdown", "probed", "found"), [(1.5, 1.15, True), (5.0, 1.6, False), (5.0, 2.2, True)])
def test_a_probe_confirms_where_it_finds_a_quarter_of_the_slowdown(slowdown: float, probed: float, found: bool) -> None:
    run, reports = running(noise=0.0), []
    for number in range(12):
        step = run.world.step(ONSET + number, run.probed)
        step.compute[FIRST] *= slowdown
        answers = {rank: value * (probed if rank == FIRST else 1.0) for rank, value in step.probes.items()}
        reports.append(run.detector.observe(replace(step, probes=answers)))
        run.probed = reports[-1].probes
    assert (confirmed(reports[-1]) == [FIRST]) is found


def test_a_control_that_has_just_paused_is_a_control_all_the_same() -> None:
    run = slowed(2.0, noise=0.0)
    while FIRST not in run.probed:
        run.step()
    asked = run.probed
    controls = [rank for rank in asked if rank != FIRST]
    run.world.slow[controls] = 1.3
    for run.probed in ((), ()):
        run.step()
    run.world.slow[controls], run.probed = 1.0, asked
    assert confirmed(run.step()) == [FIRST]


def test_a_suspect_that_was_cleared_and_gets_slower_is_one_since_then() -> None:
    run = running(noise=0.0)
    report, cleared, number = run.step(), 0, 0
    while not cleared or report.states[FIRST] == State.NORMAL:
        number += 1
        before = report.states[FIRST]
        step = run.world.step(ONSET + number, run.probed)
        step.compute[FIRST] *= 2.5 if cleared else 1.3
        report = run.detector.observe(step)
        run.probed = report.probes
        if not cleared and before == State.SUSPECTED and report.states[FIRST] == State.NORMAL:
            cleared = ONSET + number
    assert report.finding(FIRST).since > cleared


NONE, EVERY = np.zeros(4, dtype=bool), np.ones(4, dtype=bool)


def answered(
    seconds: list[float], normal: Mask = EVERY, stragglers: Mask = NONE, kinds: str = "aaaa", first: float | None = None
) -> list[float]:
    """Of ranks that all took so long in their first probe; None: it is not known."""
    probes = Probes([*kinds[: len(seconds)]], Thresholds())
    if first is not None:
        probes.first[:] = first
    count = len(seconds)
    found = probes.answers(dict(enumerate(seconds)), normal[:count], EVERY[:count], stragglers[:count])
    return [round(float(value), 3) for value in found]


def test_only_normal_ranks_are_a_measure_for_a_probe() -> None:
    """Of three suspects none is well because the others are as slow."""
    one_well = np.array([False, False, False, True])
    assert answered([0.4, 0.4, 0.4, 0.2], one_well)[:3] == [2.0] * 3
    assert answered([0.4, 0.4, 0.4, 0.2], one_well, first=0.2)[:3] == [2.0] * 3


def test_a_rank_beside_which_no_rank_of_its_kind_is_well_has_an_answer_only_as_a_straggler() -> None:
    alone = np.array([True, False, False, False])
    suspect, straggler = (answered([0.5, 0.2, 0.2, 0.2], ~alone, stragglers, "abbb")[0] for stragglers in (NONE, alone))
    assert np.isnan(suspect) and straggler == 2.5


def test_a_probe_without_another_one_beside_it_says_something_in_a_world_of_one_rank_alone() -> None:
    assert answered([0.3], first=0.2) == [1.5]
    assert np.isnan(answered([0.3])[0]), "nothing is known"
    assert np.isnan(answered([0.3, np.nan], first=0.2)[0])


def test_a_device_that_was_always_slower_is_as_slow_as_it_has_become() -> None:
    probes = Probes(["a"] * 4, Thresholds())
    probes.first[:] = [0.4, 0.2, 0.2, 0.2]
    found = probes.answers({0: 0.6, 1: 0.2, 2: 0.2}, EVERY, EVERY, NONE)
    assert found[0] == pytest.approx(1.5) and probes.first.tolist() == [0.4, 0.2, 0.2, 0.2]


def test_a_first_probe_is_that_of_a_normal_rank_whose_history_is_known() -> None:
    for normal, known, taken in ((True, True, True), (False, True, False), (True, False, False)):
        probes = Probes(["a"] * 4, Thresholds())
        probes.answers(
            {0: 0.3, 1: 0.2}, np.array([normal, True, True, True]), np.array([known, True, True, True]), NONE
        )
        assert (probes.first[0] == 0.3) == taken and probes.first[1] == 0.2
        probes.answers({1: 0.5}, EVERY, EVERY, NONE)
        assert probes.first[1] == 0.2, "it stays"


def test_suspects_and_ranks_without_a_first_probe_are_asked_once_they_are_healthy_and_have_a_history() -> None:
    probes, third = Probes(["a"] * 4, Thresholds()), np.arange(4) == 2
    assert probes.requests(NONE, ~third, EVERY) == (0, 1, 3)
    assert probes.requests(NONE, EVERY, ~third) == (0, 1, 3)
    probes.first[:] = 0.2
    assert probes.requests(NONE, EVERY, EVERY) == ()
    assert probes.requests(third, ~third, EVERY) == (0, 1, 2, 3)
    assert probes.requests(third, NONE, EVERY) == (2,)


def test_controls_are_of_the_suspects_kind_and_of_any_where_it_has_none() -> None:
    probes, first = Probes([*"abbb"], Thresholds()), np.arange(4) == 0
    probes.first[:] = 0.2
    assert probes.requests(np.arange(4) == 1, np.arange(4) != 1, EVERY) == (1, 2, 3)
    assert probes.requests(first, ~first, EVERY) == (0, 1, 2, 3)
    assert probes.requests(first, np.arange(4) == 3, EVERY) == (0, 3)
