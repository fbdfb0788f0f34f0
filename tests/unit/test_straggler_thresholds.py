"""A job's `stragglers.thresholdPercent`: what is confirmed in simulated worlds, and how slow it is said to be."""

from __future__ import annotations

import pytest

from bench.detect import ONSET, Run, World
from coxswain.config import StragglerConfig
from coxswain.stragglers.detector import Detector
from coxswain.stragglers.values import Report, State
from coxswain_coordinator.stragglers.watch import thresholds_of
from tests.unit.straggler_runs import FIRST


def states_after(percent: int, slowdown: float, seed: int, steps: int = 120) -> list[Report]:
    world = Run(World(seed=seed, drift=True))
    world.detector = Detector(
        world.world.places, thresholds_of(StragglerConfig(action="Warn", threshold_percent=percent))
    )
    world.steps(ONSET)
    world.world.slow[FIRST] = slowdown
    return [world.step() for _ in range(steps)]


@pytest.mark.parametrize("percent", [20, 50, 101, 150, 200, 290, 500])
def test_a_device_below_the_jobs_threshold_is_not_even_suspected(percent):
    for seed in range(2):
        reports = states_after(percent, 1 + 0.8 * percent / 100, seed)
        assert all(report.states[FIRST] == State.NORMAL for report in reports)


@pytest.mark.parametrize("percent", [10, 50, 101, 150, 200, 290])
def test_a_confirmed_slowdown_is_within_a_tenth_of_the_true_one(percent):
    true = 1 + 1.2 * percent / 100
    for seed in range(2):
        found = [r.slowdowns[FIRST] for r in states_after(percent, true, seed) if r.states[FIRST] == State.CONFIRMED]
        assert found
        assert all(abs(slowdown / true - 1) <= 0.1 for slowdown in found)
