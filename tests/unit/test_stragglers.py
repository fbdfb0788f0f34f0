"""Detection of stragglers in simulated worlds: what is confirmed, how soon, with which cause, and what must not be."""

from __future__ import annotations

import pickle
from statistics import median_low

import msgspec
import numpy as np
import pytest

from bench.detect import ONSET, QUIET, Run, World, steps_to_confirm
from coxswain.stragglers.detector import Detector
from coxswain.stragglers.medians import Peers, row_medians
from coxswain.stragglers.values import Cause, Floats, Place, Report, State, Step, Thresholds
from tests.unit.straggler_runs import FIRST, confirmed, running, slowed


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("slowdown", [1.5, 5.42])
def test_a_slow_device_is_confirmed_within_ten_steps(slowdown: float, seed: int) -> None:
    took = steps_to_confirm(slowdown, seed, pauses=True, drift=True)
    assert took is not None and took <= 10


@pytest.mark.parametrize("seed", range(4))
def test_a_device_just_above_the_threshold_is_confirmed_in_time(seed: int) -> None:
    assert steps_to_confirm(1.12, seed) is not None


def test_a_finding_says_how_slow_since_when_and_why_and_the_planner_gets_the_speed() -> None:
    report = slowed(1.5).steps(10)
    found = report.finding(FIRST)
    assert (found.state, found.cause) == (State.CONFIRMED, Cause.DEVICE)
    assert found.slowdown == pytest.approx(1.5, rel=0.03)
    assert ONSET <= found.since <= ONSET + 2
    assert report.speeds[FIRST] == 1 / found.slowdown
    assert [f.rank for f in report.findings] == [FIRST] and set(np.delete(report.speeds, FIRST)) == {1.0}


@pytest.mark.parametrize("name", QUIET)
@pytest.mark.parametrize("seed", range(3))
def test_what_is_no_straggler_is_never_confirmed(name: str, seed: int) -> None:
    run = Run(World(seed=seed, **QUIET[name]))
    assert not any(confirmed(run.step()) for _ in range(150))


@pytest.mark.parametrize(
    "name", ["pauses", "drift", "whole cluster 1.3", "heavy last stage", "long sequences, lengths reported"]
)
def test_what_the_rates_explain_is_not_even_suspected(name: str) -> None:
    run = Run(World(**QUIET[name]))
    assert not any(run.step().states.any() for _ in range(150))


def test_a_lone_replica_is_judged_by_its_own_history() -> None:
    assert confirmed(slowed(1.5, replicas=1, tensor=1).steps(10)) == [FIRST]


def test_of_two_ranks_the_slow_one_is_found() -> None:
    assert confirmed(slowed(1.5, rank=1, replicas=2, depth=1, tensor=1).steps(10)) == [1]


@pytest.mark.parametrize("slowdown", [1.15, 1.3])
def test_a_device_that_is_slow_from_the_start_is_found_by_its_peers(slowdown: float) -> None:
    run = Run(World(spread=0.0))
    run.world.slow[FIRST] = slowdown
    assert confirmed(run.steps(60)) == [FIRST]
    run.world.slow[FIRST] = 1.08
    assert confirmed(run.steps(60)) == [FIRST]
    run.world.slow[FIRST] = 1.0
    assert not confirmed(run.steps(60))


def test_a_device_a_little_slower_than_peers_is_not_suspected_before_there_was_time_for_a_history() -> None:
    run = Run(World(spread=0.0))
    run.world.slow[FIRST] = 1.15
    assert not any(run.step().states.any() for _ in range(2 * Thresholds().learn - 1))
    assert run.steps(10).states[FIRST] != State.NORMAL


def test_a_device_that_becomes_slow_before_its_history_is_known_is_found() -> None:
    run = Run(World())
    run.steps(5)
    run.world.slow[FIRST] = 1.2
    assert confirmed(run.steps(60)) == [FIRST]


def test_a_device_faster_than_its_peers_is_found_when_it_loses_more_than_it_had_ahead() -> None:
    run = running(noise=0.01, spread=0.0)
    run.world.natural[FIRST] = 0.95
    run = Run(run.world)
    run.steps(ONSET)
    run.world.slow[FIRST] = 1.13
    assert confirmed(run.steps(15)) == [FIRST]


def test_three_slow_steps_in_a_row_make_no_suspect_and_six_do() -> None:
    run = slowed(1.5)
    run.steps(3)
    run.world.slow[FIRST] = 1.0
    assert not any(run.step().states.any() for _ in range(20))
    run.world.slow[FIRST] = 1.5
    assert confirmed(run.steps(6)) == [FIRST]


def test_a_device_that_always_was_a_little_slower_is_no_straggler() -> None:
    run = Run(World(noise=0.01, spread=0.0))
    run.world.natural[FIRST] = 1.09
    assert not any(run.step().states.any() for _ in range(150))


def test_a_staircase_of_small_steps_is_found() -> None:
    run = running()
    for _ in range(5):
        run.world.slow[FIRST] *= 1.04
        report = run.steps(60)
    assert confirmed(report) == [FIRST]


def test_three_slow_ones_of_four_peers_are_found() -> None:
    run, slow = running(), [0, 16, 32]  # of stage 0 and tensor 0
    run.world.slow[slow] = 1.5
    assert confirmed(run.steps(12)) == slow


def test_a_device_between_the_thresholds_is_never_suspected() -> None:
    run = slowed(1.07, noise=0.005)
    assert not any(run.step().states.any() for _ in range(100))


def test_ranks_without_figures_keep_their_state_and_do_not_disturb_others() -> None:
    run = slowed(1.5)
    run.steps(12)
    for _ in range(20):
        step = run.world.step(run.number, run.probed)
        step.compute[[FIRST, 7, 20]] = np.nan
        step.work[30] = 0.0
        report = run.detector.observe(step)
        assert confirmed(report) == [FIRST]
    run.world.slow[7] = 1.5
    assert confirmed(run.steps(10)) == [FIRST, 7]


@pytest.mark.parametrize("longest", [None, np.full(64, 4096.0), np.full(64, np.nan)], ids=["none", "known", "unknown"])
def test_all_ranks_may_be_missing(longest: Floats | None) -> None:
    run, none = slowed(1.5), np.full(64, np.nan)
    before = run.steps(12)
    assert run.detector.observe(Step(60, none, none, longest=longest)).findings == before.findings


def test_equal_steps_give_equal_reports() -> None:
    first, second = (slowed(1.5, pauses=True, long=True) for _ in range(2))
    for _ in range(30):
        assert pickle.dumps(first.step()) == pickle.dumps(second.step())


def test_the_median_of_others_is_that_of_a_plain_loop() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        labels = random.integers(0, 4, 12).tolist()
        values = np.where(random.random(12) < 0.2, np.nan, random.random(12))
        found = Peers(labels).medians_of_others(values)
        for i in range(12):
            others = [v for j, v in enumerate(values) if j != i and labels[j] == labels[i] and v == v]
            assert found[i] == median_low(others) if others else np.isnan(found[i])


def test_the_median_of_a_row_leaves_out_what_is_not_known() -> None:
    rows = np.array([[3.0, np.nan, 1.0, 2.0], [np.nan] * 4, [5.0, np.nan, np.nan, 4.0]])
    np.testing.assert_array_equal(row_medians(rows), [2.0, np.nan, 4.0])


@pytest.mark.parametrize("seed", range(8))
def test_workers_that_share_busy_cores_are_no_stragglers(seed: int) -> None:
    """Rates are three times apart at random; a probe in a hundred is a fifth slower: a machine with much other work."""
    draw, asked = np.random.default_rng(seed), ()
    detector = Detector([Place(rank, 0, 0, rank, 0, 0) for rank in range(3)])
    for number in range(300):
        compute = 0.1 * np.exp(draw.normal(0.0, 0.5, 3))
        answers = {rank: 1.2 if draw.random() < 0.01 else draw.uniform(1.0, 1.04) for rank in asked}
        report = detector.observe(Step(number, compute, np.full(3, 0.1), probes=answers))
        assert not confirmed(report), report.slowdowns
        asked = report.probes


@pytest.mark.parametrize("field", ["stage", "tensor", "kind"])
def test_ranks_of_another_role_are_no_measure(field: str) -> None:
    """Their layers may take longer than planned for good. Beside ranks of their own role two of them would be slow."""
    ranks = [Place(rank, 0, 0, rank, 0, rank, "a") for rank in range(6)]
    other = {field: "b" if field == "kind" else 1}
    for roles, suspected in (([msgspec.structs.replace(p, **other) for p in ranks[:2]], False), (ranks[:2], True)):
        detector, compute = Detector([*roles, *ranks[2:]]), np.array([1.5, 1.5, 1.0, 1.0, 1.0, 1.0])
        reports = [detector.observe(Step(number, compute, np.ones(6))) for number in range(50)]
        assert any(report.states.any() for report in reports) == suspected


def of_four() -> Detector:
    """Behind forty steps in which each of four ranks took a second for a second's work."""
    detector = Detector([Place(rank, 0, 0, rank, 0, rank) for rank in range(4)])
    for number in range(40):
        detector.observe(Step(number, np.ones(4), np.ones(4)))
    return detector


def judged(compute: list[float], work: list[float]) -> Report:
    return of_four().observe(Step(40, np.array(compute), np.array(work)))


@pytest.mark.parametrize(("slowdown", "took"), [(2.0, 2), (1.99, 5), (1.1, 5), (1.09, 0)])
def test_two_short_steps_twice_as_slow_make_a_suspect_and_five_above_the_threshold(slowdown: float, took: int) -> None:
    detector, work = of_four(), np.full(4, 0.01)
    compute = work * np.array([slowdown, 1.0, 1.0, 1.0])
    found = [bool(detector.observe(Step(40 + n, compute, work)).states.any()) for n in range(8)]
    assert found == [bool(took) and n + 1 >= took for n in range(8)]


@pytest.mark.parametrize(
    ("first", "probed", "state"),
    [
        (True, 1.08, State.CONFIRMED),
        (True, 1.07, State.NORMAL),
        (False, 1.11, State.CONFIRMED),
        (False, 1.08, State.NORMAL),
    ],
)
def test_a_probe_confirms_a_little_sooner_beside_the_devices_own_first_one(
    first: bool, probed: float, state: State
) -> None:
    detector, work = of_four(), np.full(4, 0.01)
    if first:
        detector.observe(Step(40, work, work, probes=dict.fromkeys(range(4), 0.2)))
    slow = work * np.array([1.2, 1.0, 1.0, 1.0])
    states = [detector.observe(Step(41 + number, slow, work)).states[0] for number in range(6)]
    assert states[-1] == State.SUSPECTED
    answers = dict.fromkeys(range(1, 4), 0.2) | {0: 0.2 * probed}
    assert detector.observe(Step(47, slow, work, probes=answers)).states[0] == state


@pytest.mark.parametrize(("well", "state"), [(1, State.CONFIRMED), (2, State.NORMAL)])
def test_no_probe_confirms_a_rank_of_which_two_of_the_last_five_steps_were_well(well: int, state: State) -> None:
    """Other work makes its steps slow and fast by turns, and may disturb a probe."""
    detector, work = of_four(), np.ones(4)
    detector.observe(Step(40, work, work, probes=dict.fromkeys(range(4), 0.2)))
    factors = [1.2] * 6 + [1.05] * well + [1.2] * (5 - well)
    for number, factor in enumerate(factors, 41):
        answers = {0: 0.24, 1: 0.2, 2: 0.2, 3: 0.2} if number == 40 + len(factors) else {}
        compute = work * np.array([factor, 1.0, 1.0, 1.0])
        report = detector.observe(Step(number, compute, work, probes=answers))
        assert answers or number < 47 or report.states[0] == State.SUSPECTED
    assert report.states[0] == state


@pytest.mark.parametrize("bad", [float("inf"), float("nan"), 0.0, -1.0])
def test_figures_that_no_step_has_are_none(bad: float) -> None:
    for report in (judged([bad, 1.0, 1.0, 1.0], [1.0] * 4), judged([1.0] * 4, [bad, 1.0, 1.0, 1.0])):
        assert not report.findings


@pytest.mark.parametrize(
    ("slowdown", "lost", "suspected"),
    [(4.0, 0.0, True), (3.99, 0.0, False), (1.125, 1.5, True), (1.125, 1.49, False), (1.09, 9.0, False)],
)
def test_one_step_makes_a_suspect_that_is_four_times_as_slow_or_lost_more_than_a_probe_takes(
    slowdown: float, lost: float, suspected: bool
) -> None:
    """What a step of w seconds of work loses at a slowdown of x is w (x - 1)."""
    work = lost / (slowdown - 1) if lost else 0.01
    report = judged([slowdown * work, *[work] * 3], [work] * 4)
    assert report.states.tolist() == [State.SUSPECTED if suspected else State.NORMAL, 0, 0, 0]
    assert report.slowdowns[0] == pytest.approx(slowdown if suspected else 1.0)
    assert report.speeds.tolist() == [1.0] * 4


def test_steps_that_are_done_again_may_be_all_of_them() -> None:
    run = slowed(1.5)
    run.steps(12)
    moved = run.detector.moved(run.detector.places, 0)
    assert moved.observe(Step(0, np.full(64, np.nan), np.full(64, np.nan))).since[FIRST] == 0
