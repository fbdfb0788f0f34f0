"""Which cause is named of what is slow: a device, a node, the last stage, long sequences, network or host."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from bench.detect import ONSET, Run, World
from coxswain.stragglers.lengths import LengthFit
from coxswain.stragglers.values import Cause, Floats, Place, Report, State
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
