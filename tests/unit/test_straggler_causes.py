"""Which cause is named of what is slow: a device, a node, the last stage, long sequences, network or host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from bench.detect import ONSET, Run, World
from coxswain.stragglers.causes import LastStage, Waits, stragglers_causes
from coxswain.stragglers.lengths import LengthFit
from coxswain.stragglers.medians import Peers
from coxswain.stragglers.values import Cause, Floats, Ints, Mask, Place, Report, State, Step
from tests.unit.straggler_runs import FIRST, confirmed, running, slowed


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


def test_no_two_states_and_no_two_causes_are_one() -> None:
    assert (len(State), len(Cause)) == (len(State.__members__), len(Cause.__members__)) == (3, 7)


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


def test_lengths_that_rates_do_not_follow_explain_nothing() -> None:
    random, fit = np.random.default_rng(0), LengthFit(16)
    for _ in range(40):
        factors = fit.factors(np.exp(random.normal(0, 0.02, 16)), random.uniform(4096, 32768, 16))
        assert set(factors) == {1.0}


def test_stragglers_in_the_last_stage_do_not_make_it_heavy() -> None:
    run = running(noise=0.0)
    last = np.flatnonzero(run.world.stage == 3)
    run.world.slow[last[:12]] = 2.0
    report = run.steps(20)
    assert report.last_stage == pytest.approx(1.0, rel=0.05)
    assert {Cause(int(c)) for c in report.causes[last[12:]]} == {Cause.NONE}


def blamed(*slowdowns: float, away: tuple[int, ...] = (), other: float = 1.0) -> list[Cause]:
    """Of the devices of one node, of which those slower than 1 are marked; on another node is one device."""
    every = np.array([*slowdowns, other])
    nodes: Ints = np.array([0] * len(slowdowns) + [1])
    present = ~np.isin(np.arange(len(every)), away)
    found = stragglers_causes(every > 1, present, every, nodes, Peers(nodes.tolist()))
    return [Cause(int(cause)) for cause in found[: len(slowdowns)]]


@pytest.mark.parametrize(
    ("devices", "slow", "cause"),
    [
        (1, 1, "DEVICE"),
        (2, 1, "DEVICE"),
        (2, 2, "NODE"),
        (4, 2, "DEVICE"),
        (4, 3, "NODE"),
        (8, 5, "DEVICE"),
        (8, 6, "NODE"),
    ],
)
def test_a_node_is_blamed_from_three_quarters_of_its_devices_on(devices: int, slow: int, cause: str) -> None:
    found = blamed(*[2.0] * slow, *[1.0] * (devices - slow))
    assert found == [Cause[cause]] * slow + [Cause.NONE] * (devices - slow)


@pytest.mark.parametrize(("slowdowns", "cause"), [((1.25, 1.5), Cause.NODE), ((1.25, 1.52), Cause.DEVICE)])
def test_devices_are_slow_alike_up_to_a_fifth_apart(slowdowns: tuple[float, float], cause: Cause) -> None:
    assert blamed(*slowdowns) == blamed(*slowdowns[::-1]) == [cause] * 2


def test_a_device_that_is_not_slow_alike_is_none_of_those_for_which_a_node_is_blamed() -> None:
    assert blamed(2.0, 2.0, 5.0, 1.0) == [Cause.DEVICE] * 3 + [Cause.NONE]
    assert blamed(2.0, 2.0, 2.0, 5.0) == [Cause.NODE] * 3 + [Cause.DEVICE]
    assert blamed(5.0, 5.0, 5.0, 2.0) == [Cause.NODE] * 3 + [Cause.DEVICE]


def test_devices_without_figures_count_to_a_node_only_where_they_are_slow() -> None:
    assert blamed(2.0, 2.0, 1.0, away=(2,)) == [Cause.NODE] * 2 + [Cause.NONE]
    assert blamed(2.0, 2.0, 2.0, 1.0, away=(0,)) == [Cause.NODE] * 3 + [Cause.NONE]
    assert blamed(2.0, 2.0, 9.0, away=(2,)) == [Cause.DEVICE] * 3, "two of three"


def test_a_node_of_which_no_device_has_figures_is_blamed_for_nothing_and_others_as_ever() -> None:
    every, nodes = np.array([2.0, 2.0, 1.0, 1.0]), np.array([0, 0, 1, 2])
    present = np.array([True, True, True, False])
    found = stragglers_causes(every > 1, present, every, nodes, Peers(nodes.tolist()))
    assert found.tolist() == [Cause.NODE, Cause.NODE, Cause.NONE, Cause.NONE]


def test_a_device_on_another_node_is_no_measure() -> None:
    assert blamed(2.0, 2.0, other=9.0) == blamed(2.0, 2.0, other=1.0) == [Cause.NODE] * 2


STAGES = [Place(replica, stage, 0, 2 * replica + stage, 0, 0) for replica in range(2) for stage in range(2)]


def test_the_last_stage_is_that_of_each_replica_and_no_other_where_all_have_one() -> None:
    uneven = [*STAGES, Place(2, 0, 0, 9, 0, 0)]
    last = LastStage(uneven[::-1])
    assert last.ranks.tolist() == [False, True, False, True, False], (
        "a replica of one stage has nothing to be compared with"
    )
    assert last.factor(np.array([5.0, 3.0, 2.0, 3.0, 2.0])) == 1.5
    assert last.factor(np.array([0.5, 0.3, 0.2, 0.3, 0.2])) == pytest.approx(1.5), "of plans that say too much, too"
    one, every = LastStage(STAGES[::2]), LastStage(STAGES[1::2])
    assert one.factor(np.array([1.0, 3.0])) == every.factor(np.array([1.0, 3.0])) == 1.0


@pytest.mark.parametrize("unknown", [(0, 2), (1, 3)], ids=["first stages", "last stages"])
def test_of_a_last_stage_without_rates_or_without_others_nothing_is_known(unknown: tuple[int, ...]) -> None:
    rates = np.full(4, 2.0)
    rates[list(unknown)] = np.nan
    assert LastStage(STAGES).factor(rates) == 1.0


def waits(
    steps: int,
    compute: Sequence[float],
    network: Sequence[float],
    host: Sequence[float],
    known: Waits,
    blamed: bool = False,
) -> list[Cause]:
    for number in range(steps):
        step = Step(number, np.array(compute), np.ones(2), network=np.array(network), host=np.array(host))
        found = known.causes(step, blamed, 2)
    return [Cause(int(cause)) for cause in found]


def test_a_wait_is_worth_a_word_from_a_tenth_of_compute_on() -> None:
    none = [0.0, 0.0]
    for part, host, network in ((0.125, Cause.HOST, Cause.NETWORK), (0.12, Cause.NONE, Cause.NONE)):
        assert waits(1, [8.0, 8.0], none, [8 * part, 0.0], Waits(2, 2, 3, 0.125))[0] == host
        known = Waits(2, 2, 3, 0.125)
        waits(2, [8.0, 8.0], none, none, known)
        assert waits(3, [8.0, 8.0], [8 * part, 0.0], none, known)[0] == network


def test_a_rank_that_waits_for_data_is_slowed_by_its_host_though_it_waits_for_others_too() -> None:
    known = Waits(2, 2, 3, 0.1)
    waits(2, [1.0, 1.0], [0.0, 0.0], [0.0, 0.0], known)
    assert waits(3, [1.0, 1.0], [0.5, 0.0], [0.5, 0.0], known) == [Cause.HOST, Cause.NONE]


def test_waits_make_no_history_while_a_rank_is_slow_or_waits_for_data_and_none_of_ranks_without_compute() -> None:
    """Else longer waits would be usual after such a time."""
    for blamed, host, compute in ((True, 0.0, 1.0), (False, 0.5, 1.0), (False, 0.0, 0.0)):
        known = Waits(2, 2, 1, 0.1)
        waits(4, [1.0, compute], [0.5, 0.5], [0.0, host], known, blamed)
        assert np.isnan(known.baseline.values[1]), (blamed, host, compute)


def test_the_network_is_not_named_while_a_rank_is_slow_or_one_waits_for_data() -> None:
    for blamed, host in ((True, 0.0), (False, 0.5)):
        known = Waits(2, 2, 1, 0.1)
        waits(2, [1.0, 1.0], [0.0, 0.0], [0.0, 0.0], known)
        assert Cause.NETWORK not in waits(2, [1.0, 1.0], [0.5, 0.5], [0.0, host], known, blamed)


def test_a_rank_that_computes_nothing_in_a_step_adds_nothing_to_the_history_of_its_waits() -> None:
    known, none = Waits(2, 2, 3, 0.1), [0.0, 0.0]
    for compute in (1.0, 0.0, 0.0):
        waits(1, [1.0, compute], none, none, known)
    assert np.isnan(known.baseline.values).tolist() == [False, True]


def explained(slope: float, lengths: Floats, known: Mask | None = None, steps: int = 4) -> Floats:
    """The factors of ranks whose rates follow their lengths by so much a token."""
    fit = LengthFit(len(lengths))
    for number in range(steps):
        of = np.roll(lengths, number)
        rates = np.exp(slope * of)
        rates[~(known if known is not None else np.ones(len(of), dtype=bool))] = np.nan
        found = fit.factors(rates, of)
    return found


def test_rates_that_follow_lengths_are_explained_beside_the_shortest_of_the_step() -> None:
    lengths = np.array([1000.0, 2000.0, 3000.0, 4000.0])
    assert explained(1e-4, lengths) == pytest.approx(np.exp(1e-4 * (np.roll(lengths, 3) - 1000.0)))
    assert explained(-1e-4, lengths).tolist() == [1.0] * 4, "shorter ones are not slower"
    assert explained(1e-4, lengths, steps=1).tolist() == [1.0] * 4, "one step says nothing of one rank"


def test_ranks_that_are_slower_than_others_at_any_length_are_so_for_no_length() -> None:
    lengths, own, fit = np.array([1000.0, 2000.0, 3000.0, 4000.0]), np.array([1.0, 2.0, 1.0, 3.0]), LengthFit(4)
    for number in range(4):
        of = np.roll(lengths, number)
        found = fit.factors(own * np.exp(1e-4 * of), of)
    assert found == pytest.approx(np.exp(1e-4 * (of - 1000.0)))


def test_lengths_of_ranks_without_rates_and_rates_without_lengths_explain_nothing() -> None:
    lengths = np.array([1000.0, 2000.0, 3000.0, 4000.0])
    known = np.array([True, True, True, False])
    assert explained(1e-4, lengths, known)[3] == 1.0
    assert explained(1e-4, lengths, known)[:3] == pytest.approx(np.exp(1e-4 * (np.roll(lengths, 3)[:3] - 2000.0)))
    fit = LengthFit(2)
    for number in range(6):
        of = np.array([1000.0 + 500 * (number % 2), np.nan])
        assert fit.factors(np.exp(1e-4 * of[:1].repeat(2)), of)[1] == 1.0
    assert fit.factors(np.full(2, np.nan), np.full(2, np.nan)).tolist() == [1.0] * 2
    assert fit.factors(np.ones(2), None).tolist() == [1.0] * 2
