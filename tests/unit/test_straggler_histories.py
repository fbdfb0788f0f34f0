"""What is kept of a device over steps and worlds: a straggler recovers, relapses and moves with its history."""

from __future__ import annotations

import pickle

import msgspec
import numpy as np
import pytest

from bench.detect import ONSET, Run, World, switches
from coxswain.stragglers.baseline import Baseline
from coxswain.stragglers.detector import Detector
from coxswain.stragglers.medians import Peers
from coxswain.stragglers.scores import Scores
from coxswain.stragglers.states import UNSEEN
from coxswain.stragglers.values import Place, Report, State, Step, Thresholds
from tests.unit.straggler_runs import FIRST, confirmed, running, slowed


def test_a_straggler_stays_one_between_the_thresholds_and_leaves_below() -> None:
    run = slowed(1.2, noise=0.005)
    assert confirmed(run.steps(12)) == [FIRST]
    run.world.slow[FIRST] = 1.08
    report = run.steps(60)
    assert report.finding(FIRST).slowdown == pytest.approx(1.08, rel=0.03)
    run.world.slow[FIRST] = 1.0
    report = run.steps(40)
    assert not report.states.any() and report.speeds[FIRST] == 1.0 and report.since[FIRST] > ONSET + 72


def test_a_straggler_that_gets_slower_is_reported_so_within_ten_steps() -> None:
    run = slowed(1.3)
    run.steps(12)
    run.world.slow[FIRST] = 2.57
    assert run.steps(10).finding(FIRST).slowdown == pytest.approx(2.57, rel=0.03)


@pytest.mark.parametrize("period", [30, pytest.param(60, marks=pytest.mark.slow), 120])
def test_flapping_changes_speeds_ever_more_rarely(period: int) -> None:
    assert switches(period, 0) <= 10 < 2000 // period


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


def test_new_devices_begin_without_a_history_and_lost_ones_are_forgotten() -> None:
    run = slowed(1.5)
    run.steps(12)
    kept = [*run.detector.places[8:], *(msgspec.structs.replace(p, trainer=99) for p in run.detector.places[:8])]
    report = run.detector.moved(kept).observe(Step(60, np.ones(64), np.ones(64)))
    assert not report.states.any()


def on_standby(run: Run) -> tuple[Detector, tuple[int, int]]:
    """The detector of a world in which one of the devices has no rank, and the name of that device."""
    places = run.detector.places
    device = places[FIRST].trainer, places[FIRST].device
    return run.detector.moved([p for p in places if (p.trainer, p.device) != device], standby=[device]), device


def set_aside(natural: float) -> tuple[Detector, tuple[int, int], float]:
    """A detector, a device on standby that takes so many times as long as others, and seconds of a probe of these."""
    run = Run(World(noise=0.0, spread=0.0))
    run.world.natural[FIRST] = natural
    run.steps(ONSET)
    detector, device = on_standby(run)
    firsts = detector.firsts()
    usual = firsts[run.detector.places[0].trainer, run.detector.places[0].device]
    assert firsts[device] == pytest.approx(natural * usual)
    return detector, device, usual


def test_a_device_on_standby_is_compared_with_its_own_first_probe_and_those_of_ranks() -> None:
    detector, device, usual = set_aside(1.08)
    assert detector.slowdown_aside(device, 1.08 * usual) == pytest.approx(1.0)  # as slow as it always was
    assert detector.slowdown_aside(device, 2.16 * usual) == pytest.approx(2.0)
    assert detector.slowdown_aside(device, 0.54 * usual) == pytest.approx(0.5)
    assert detector.slowdown_aside((99, 0), 1.5 * usual) == pytest.approx(1.5)  # peers alone
    assert all(np.isnan(detector.slowdown_aside(device, seconds)) for seconds in (0.0, -1.0, np.inf, np.nan))
    fresh = Detector(detector.places)
    assert np.isnan(fresh.slowdown_aside((99, 0), 0.3)), "nothing is known to compare with"
    detector, device, usual = set_aside(0.8)
    assert detector.slowdown_aside(device, usual) == pytest.approx(1.05)  # peers may be slower by so much


def test_a_device_keeps_its_first_probe_on_standby_and_takes_it_back_into_a_seat() -> None:
    run = running()
    detector, device = on_standby(run)
    places, first = run.detector.places, run.detector.firsts()[device]
    assert first > 0
    detector = detector.moved(detector.places, standby=[device])
    assert detector.moved(places).firsts()[device] == first
    gone = detector.moved(detector.places)
    assert np.isnan(gone.moved(places).firsts()[device]), "a device that leaves the layout is forgotten"


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


@pytest.mark.parametrize("pause", [3.0, 6.0])
def test_a_device_that_is_well_again_recovers_though_it_pauses_in_every_fifth_step(pause: float) -> None:
    run = slowed(1.5, noise=0.0)
    run.steps(12)
    for number in range(30):
        run.world.slow[FIRST] = pause if number % 5 == 0 else 1.0
        report = run.step()
    assert not report.states.any()


@pytest.mark.parametrize("slow_steps", [5, 12], ids=["a suspect", "a straggler"])
def test_what_began_in_steps_that_are_done_again_began_with_the_first_of_them(slow_steps: int) -> None:
    """A checkpoint is loaded: an onset in a step to come would delay what is done about the device until then."""
    run = slowed(1.5)
    for _ in range(slow_steps):
        run.probed = run.probed if slow_steps == 12 else ()
        run.step()
    first, run.probed = 8, ()
    run.detector, run.number = run.detector.moved(run.detector.places, first), first
    report = run.steps(12)
    assert confirmed(report) == [FIRST] and report.since[FIRST] == first


def of_kinds(*kinds: str) -> list[Place]:
    """Two replicas of two stages, a device and a node each."""
    return [Place(rank // 2, rank % 2, 0, rank, 0, rank, kind) for rank, kind in enumerate(kinds)]


def observed(
    detector: Detector, steps: range, slow: float, work: float = 1.0, probes: list[int] | None = None
) -> Report:
    """Rank 0 is so slow and has so much work; all ranks that are asked run the probe."""
    draw, asked = np.random.default_rng(steps.start), tuple[int, ...]()
    factors, works = np.array([slow, 1.0, 1.0, 1.0]), np.array([work, 1.0, 1.0, 1.0])
    for number in steps:
        seconds = works * factors * np.exp(draw.normal(0, 0.01, 4))
        report = detector.observe(Step(number, seconds, works, probes={rank: 0.001 * factors[rank] for rank in asked}))
        asked = report.probes
        if probes is not None and 0 in asked:
            probes.append(number)
    return report


def test_a_straggler_that_nothing_can_be_compared_with_stays_one_until_probes_find_it_well() -> None:
    """It was slow from the first step, so it has no history, and its layers in the next world are no other rank's."""
    detector = Detector(of_kinds(*["2/1"] * 4))
    assert observed(detector, range(60), 2.0).states.tolist() == [State.CONFIRMED, 0, 0, 0]
    detector = detector.moved(of_kinds("1/1", "3/1", "2/1", "2/1"), 60)
    assert observed(detector, range(60, 200), 2.0).states[0] == State.CONFIRMED
    report = observed(detector, range(200, 260), 1.0)
    assert not report.states.any() and report.speeds[0] == 1.0


def test_a_straggler_without_work_is_probed_and_works_again_once_two_probes_find_it_well() -> None:
    probes = list[int]()
    detector = Detector(of_kinds(*["2/1"] * 4))
    observed(detector, range(40), 1.0)
    assert observed(detector, range(40, 60), 16.0).states[0] == State.CONFIRMED
    assert observed(detector, range(60, 100), 16.0, work=0.0, probes=probes).states[0] == State.CONFIRMED
    assert probes and min(probes) == 60 + UNSEEN - 1 and len(probes) < 5
    assert observed(detector, range(100, 110), 1.0, work=0.0).states[0] == State.CONFIRMED, "one probe is not enough"
    report = observed(detector, range(110, 150), 1.0, work=0.0)
    assert not report.states.any() and report.speeds[0] == 1.0
    assert not observed(detector, range(150, 190), 1.0).states.any(), "what it was before does not count"


def test_a_straggler_with_figures_is_not_probed() -> None:
    probes = list[int]()
    detector = Detector(of_kinds(*["2/1"] * 4))
    observed(detector, range(40), 1.0)
    observed(detector, range(40, 60), 3.0)
    observed(detector, range(60, 200), 3.0, probes=probes)
    assert probes == []


def learned(*values: float, length: int = 2) -> Baseline:
    found = Baseline(1, length)
    for value in values:
        found.learn(np.array([value == value]), np.array([value]))
    return found


def test_a_history_is_known_with_its_last_step_and_that_is_time_enough() -> None:
    assert not learned(2.0).settled.any() and np.isnan(learned(2.0).values).all()
    assert learned(2.0, 3.0).settled.all() and learned(2.0, 3.0).values[0] == 2.0


def test_steps_without_figures_are_no_time_for_a_history() -> None:
    assert not learned(*[np.nan] * 9).settled.any()


@pytest.mark.parametrize(("rate", "learned"), [(1.09, True), (1.1, False)])
def test_a_step_at_the_threshold_beside_peers_makes_no_history(rate: float, learned: bool) -> None:
    peers, baseline = Peers([0] * 3), Baseline(3, 1)
    Scores(peers, peers, baseline, Thresholds()).observe(np.array([rate, 1.0, 1.0]), np.zeros(3, dtype=bool))
    assert (~np.isnan(baseline.values)).tolist() == [learned, True, True]


def test_a_history_that_is_known_does_not_follow_the_device() -> None:
    assert learned(2.0, 2.0, *[5.0] * 9).values[0] == 2.0


def test_a_history_that_was_begun_in_one_world_goes_on_in_the_next() -> None:
    before, after, rank = learned(2.0, 4.0, length=3), Baseline(2, 3), np.array([1])
    after.take(before, rank, np.array([0]))
    after.learn(np.array([True, True]), np.array([9.0, 6.0]))
    assert np.isnan(after.values[0]) and after.values[1] == 4.0
