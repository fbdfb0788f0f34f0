"""Detection of stragglers in simulated worlds: what is confirmed, how soon, with which cause, and what must not be."""

from __future__ import annotations

import pickle
from dataclasses import replace
from statistics import median_low
from typing import Any

import msgspec
import numpy as np
import pytest

from bench.detect import ONSET, QUIET, Run, World, steps_to_confirm, switches
from coxswain.stragglers.baseline import Baseline
from coxswain.stragglers.detector import Detector
from coxswain.stragglers.lengths import LengthFit
from coxswain.stragglers.medians import Peers, row_medians
from coxswain.stragglers.probes import Probes
from coxswain.stragglers.values import Cause, Floats, Place, Report, State, Step, Thresholds

FIRST = 3  # a rank that some tests slow down


def running(**world: Any) -> Run:
    """A run whose histories are known."""
    run = Run(World(**world))
    run.steps(ONSET)
    return run


def slowed(factor: float = 1.5, rank: int = FIRST, **world: Any) -> Run:
    run = running(**world)
    run.world.slow[rank] = factor
    return run


def confirmed(report: Report) -> list[int]:
    return [int(rank) for rank in np.flatnonzero(report.states == State.CONFIRMED)]


class StagesOnNodes(World):
    """Each node has one stage of all replicas: peers share a node."""

    @property
    def places(self) -> list[Place]:
        return [msgspec.structs.replace(p, node=p.stage) for p in super().places]


class DevicesOnNodes(World):
    """Each node has one device."""

    @property
    def places(self) -> list[Place]:
        return [msgspec.structs.replace(p, node=rank) for rank, p in enumerate(super().places)]


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


def test_a_suspect_has_full_speed_for_the_planner_until_a_probe_agrees() -> None:
    run = slowed(2.0)
    for _ in range(30):
        run.probed = ()
        report = run.step()
    assert report.states[FIRST] == State.SUSPECTED and report.speeds[FIRST] == 1.0 and FIRST in report.probes
    assert confirmed(run.step()) == [FIRST]


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


def test_a_node_is_blamed_when_most_of_its_devices_are_slow_alike() -> None:
    run = running()
    run.world.slow[8:16] = 1.3
    report = run.steps(15)
    assert confirmed(report) == [*range(8, 16)] and set(report.causes[8:16]) == {Cause.NODE}


def test_a_node_of_one_device_is_not_blamed_for_it() -> None:
    run = Run(DevicesOnNodes())
    run.steps(ONSET)
    run.world.slow[FIRST] = 1.5
    assert run.steps(12).finding(FIRST).cause == Cause.DEVICE


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_a_probe_of_no_time_or_without_end_is_no_answer(seconds: float) -> None:
    all_ranks = np.full(3, True)
    found = Probes(["", "", ""], Thresholds()).answers({0: seconds, 1: 0.01, 2: 0.01}, all_ranks, all_ranks)
    assert np.isnan(found[0])


def test_a_node_is_not_blamed_for_three_of_its_eight_devices() -> None:
    run = running()
    run.world.slow[8:11] = 1.3
    report = run.steps(15)
    assert confirmed(report) == [8, 9, 10] and set(report.causes[8:11]) == {Cause.DEVICE}


def test_a_much_slower_device_of_a_slow_node_is_blamed_itself() -> None:
    run = running()
    run.world.slow[8:16] = 1.3
    run.world.slow[9] = 4.0
    report = run.steps(15)
    assert report.causes[9] == Cause.DEVICE and set(np.delete(report.causes[8:16], 1)) == {Cause.NODE}


def test_a_slow_node_that_has_all_peers_of_a_stage_is_found() -> None:
    run = Run(StagesOnNodes())
    run.steps(ONSET)
    slow = np.flatnonzero(run.world.stage == 2)
    run.world.slow[slow] = 1.3
    report = run.steps(15)
    assert confirmed(report) == slow.tolist() and set(report.causes[slow]) == {Cause.NODE}


def test_a_heavy_loss_layer_is_the_last_stages_and_no_devices_fault() -> None:
    run = running(loss=1.4)
    report = run.steps(10)
    assert report.last_stage == pytest.approx(1.4, rel=0.03)
    assert {run.world.stage[f.rank] for f in report.findings} == {3}
    assert {f.cause for f in report.findings} == {Cause.LAST_STAGE} and set(report.speeds) == {1.0}


def test_long_sequences_are_named_on_the_ranks_that_have_them() -> None:
    run = running(long=True, lengths=True)
    step = run.world.step(ONSET, ())
    assert step.longest is not None
    while step.longest.max() < 25000:
        run.detector.observe(step)
        step = run.world.step(step.number + 1, ())
        assert step.longest is not None
    report = run.detector.observe(step)
    assert np.array_equal(report.causes == Cause.LONG_SEQUENCES, step.longest > 25000) and not report.states.any()


def test_a_straggler_among_long_sequences_is_found() -> None:
    run = slowed(1.5, long=True, lengths=True)
    assert confirmed(run.steps(20)) == [FIRST]


def waited(run: Run, count: int, network: Floats, host: Floats) -> Report:
    """Steps with waits as parts of compute."""
    for _ in range(count):
        step = run.world.step(run.number, run.probed)
        report = run.detector.observe(replace(step, network=network * step.compute, host=host * step.compute))
        run.number, run.probed = run.number + 1, report.probes
    return report


def test_longer_waits_for_others_are_the_networks_where_no_rank_is_slow() -> None:
    run, always, none = Run(World()), np.full(64, 0.2), np.zeros(64)
    assert not waited(run, ONSET, always, none).causes.any()
    more = np.where(run.world.replica == 1, 0.4, always)
    report = waited(run, 10, more, none)
    assert np.array_equal(report.causes == Cause.NETWORK, run.world.replica == 1) and not report.states.any()


def test_waits_for_a_straggler_are_not_the_networks() -> None:
    run, always, none = Run(World()), np.full(64, 0.2), np.zeros(64)
    waited(run, ONSET, always, none)
    run.world.slow[FIRST] = 1.5
    for _ in range(15):
        report = waited(run, 1, always + np.where(np.arange(64) == FIRST, 0, 0.5), none)
        assert Cause.NETWORK not in report.causes
    assert confirmed(report) == [FIRST]


def test_waits_for_data_are_the_hosts_and_the_waits_for_that_rank_not_the_networks() -> None:
    run, none = Run(World()), np.zeros(64)
    waited(run, ONSET, none, none)
    report = waited(run, 10, np.full(64, 0.3), np.where(np.arange(64) == FIRST, 0.3, 0.0))
    assert [(f.rank, f.cause, f.state) for f in report.findings] == [(FIRST, Cause.HOST, State.NORMAL)]


def test_a_straggler_stays_one_between_the_thresholds_and_leaves_below() -> None:
    run = slowed(1.2, noise=0.005)
    assert confirmed(run.steps(12)) == [FIRST]
    run.world.slow[FIRST] = 1.08
    report = run.steps(60)
    assert report.finding(FIRST).slowdown == pytest.approx(1.08, rel=0.03)
    run.world.slow[FIRST] = 1.0
    report = run.steps(40)
    assert not report.states.any() and report.speeds[FIRST] == 1.0 and report.since[FIRST] > ONSET + 72


def test_a_device_between_the_thresholds_is_never_suspected() -> None:
    run = slowed(1.07, noise=0.005)
    assert not any(run.step().states.any() for _ in range(100))


def test_a_straggler_that_gets_slower_is_reported_so_within_ten_steps() -> None:
    run = slowed(1.3)
    run.steps(12)
    run.world.slow[FIRST] = 2.57
    assert run.steps(10).finding(FIRST).slowdown == pytest.approx(2.57, rel=0.03)


@pytest.mark.parametrize("period", [30, pytest.param(60, marks=pytest.mark.slow), 120])
def test_flapping_changes_speeds_ever_more_rarely(period: int) -> None:
    assert switches(period, 0) <= 10 < 2000 // period


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


def test_all_ranks_may_be_missing() -> None:
    run, none = slowed(1.5), np.full(64, np.nan)
    before = run.steps(12)
    assert run.detector.observe(Step(60, none, none)).findings == before.findings


def test_equal_steps_give_equal_reports() -> None:
    first, second = (slowed(1.5, pauses=True, long=True) for _ in range(2))
    for _ in range(30):
        assert pickle.dumps(first.step()) == pickle.dumps(second.step())


def test_memory_does_not_grow_with_steps() -> None:
    run = slowed(1.5, pauses=True, long=True, lengths=True)
    run.steps(40)
    size = len(pickle.dumps(run.detector))
    run.steps(200)
    assert abs(len(pickle.dumps(run.detector)) - size) < 64


def test_a_straggler_stays_one_in_the_next_world_and_recovers_there() -> None:
    run = slowed(1.5)
    run.steps(12)
    order = np.roll(np.arange(64), -FIRST)  # the slow device becomes rank 0, and each device gets another role
    old = run.detector.places
    places = [
        msgspec.structs.replace(seat, trainer=old[d].trainer, device=old[d].device, node=old[d].node)
        for seat, d in zip(old, order, strict=True)
    ]
    run.detector, run.probed = run.detector.moved(places), ()
    run.world.natural, run.world.slow = run.world.natural[order], run.world.slow[order]
    assert confirmed(run.step()) == [0]
    assert confirmed(run.steps(30)) == [0]
    run.world.slow[0] = 1.0
    assert not run.steps(40).states.any()


def test_devices_that_keep_their_roles_in_the_next_world_do_not_probe_again_and_are_judged_as_before() -> None:
    run = running()
    run.detector, run.probed = run.detector.moved(run.detector.places), ()
    assert run.step().probes == ()
    run.world.slow[FIRST] = 1.15  # less than a device without a history may be slower
    assert confirmed(run.steps(16)) == [FIRST]


def test_a_device_that_had_the_time_for_a_history_has_had_it_in_the_next_world_too() -> None:
    before, after, rank = Baseline(1, 2), Baseline(1, 2), np.array([0])
    for _ in range(4):
        assert not before.settled.any()
        before.learn(np.array([False]), np.array([2.0]))  # slow from the start
    after.take(before, rank, rank)
    assert after.settled.all() and np.isnan(after.values).all()


def test_a_slow_node_stays_slow_where_it_alone_has_a_history() -> None:
    run = running()
    run.world.slow[8:16] = 5.42
    assert confirmed(run.steps(8)) == [*range(8, 16)]
    places = [msgspec.structs.replace(p, tensor=p.tensor + 4) for p in run.detector.places]  # each has a new role
    run.detector, run.probed = run.detector.moved(places), ()
    for _ in range(12):
        assert confirmed(run.step()) == [*range(8, 16)]


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
    for longest, probed in ((5000.0, True), (9000.0, False)):
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


def test_new_devices_begin_without_a_history_and_lost_ones_are_forgotten() -> None:
    run = slowed(1.5)
    run.steps(12)
    kept = [*run.detector.places[8:], *(msgspec.structs.replace(p, trainer=99) for p in run.detector.places[:8])]
    report = run.detector.moved(kept).observe(Step(60, np.ones(64), np.ones(64)))
    assert not report.states.any()


def test_lengths_that_rates_do_not_follow_explain_nothing() -> None:
    random, fit = np.random.default_rng(0), LengthFit(16)
    for _ in range(40):
        factors = fit.factors(np.exp(random.normal(0, 0.02, 16)), random.uniform(4096, 32768, 16))
        assert set(factors) == {1.0}


def test_a_probe_is_judged_beside_other_kinds_where_its_own_has_no_control() -> None:
    probes, every = Probes(["a", "b", "b", "b"], Thresholds()), np.ones(4, dtype=bool)
    probes.answers({0: 0.4, 1: 0.2, 2: 0.2, 3: 0.2}, every, every)
    normal = np.array([False, True, True, True])
    assert probes.answers({0: 0.52, 1: 0.26, 2: 0.26}, normal, every)[0] == pytest.approx(1.0)  # all are slower alike
    assert probes.answers({0: 0.60, 1: 0.20, 2: 0.20}, normal, every)[0] == pytest.approx(1.5)
    assert np.isnan(probes.answers({0: 0.60}, normal, every)[0])


def test_controls_of_a_probe_are_far_apart() -> None:
    probes, every = Probes(["a"] * 64, Thresholds()), np.ones(64, dtype=bool)
    probes.answers(dict.fromkeys(range(64), 0.3), every, every)
    suspects = np.arange(64) == FIRST
    asked = probes.requests(suspects, ~suspects, every)
    assert len(asked) == 4 and FIRST in asked
    assert len({rank // 16 for rank in asked if rank != FIRST}) == 3


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


def test_a_straggler_long_without_relapse_is_soon_normal_again_the_next_time() -> None:
    """`calm` doubles with each return, and is short again after `forget` steps."""
    took = []
    for forget in (4096, 50):
        run = slowed(1.5)
        run.detector = Detector(run.world.places, Thresholds(forget=forget))
        for _ in range(4):
            run.world.slow[FIRST] = 1.0
            run.steps(120)
            run.world.slow[FIRST] = 1.5
            assert FIRST in confirmed(run.steps(12))
        run.world.slow[FIRST] = 1.0
        took.append(next(n for n in range(200) if not confirmed(run.step())))
    assert took[0] > 3 * took[1]


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


# --- what the evidence is worth --------------------------------------------------------------------------------------


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


def test_a_suspect_keeps_its_history_in_another_role_so_that_a_little_slower_still_counts() -> None:
    run = slowed(1.17, noise=0.0)
    run.world.natural[:] = 1.0
    for _ in range(8):
        run.probed = ()
        run.step()
    places = [msgspec.structs.replace(p, stage=(p.stage + 1) % 4) for p in run.detector.places]
    run.detector = run.detector.moved(places)
    for _ in range(8):
        run.probed = ()
        report = run.step()
    assert report.states[FIRST] == State.SUSPECTED
    assert confirmed(run.step()) == [FIRST]


def test_stragglers_in_the_last_stage_do_not_make_it_heavy() -> None:
    run = running(noise=0.0)
    last = np.flatnonzero(run.world.stage == 3)
    run.world.slow[last[:12]] = 2.0
    report = run.steps(20)
    assert report.last_stage == pytest.approx(1.0, rel=0.05)
    assert {Cause(int(c)) for c in report.causes[last[12:]]} == {Cause.NONE}


def test_a_device_that_is_well_again_recovers_though_it_pauses_in_every_fifth_step() -> None:
    run = slowed(1.5, noise=0.0)
    run.steps(12)
    for number in range(30):
        run.world.slow[FIRST] = 3.0 if number % 5 == 0 else 1.0
        report = run.step()
    assert not report.states.any()


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
