"""A job's `stragglers.thresholdPercent`: what is confirmed in simulated worlds, and how slow it is said to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.detect import ONSET, Run, World
from coxswain.config import StragglerConfig
from coxswain.stragglers.detector import Detector
from coxswain.stragglers.values import Report, State, Thresholds
from coxswain_coordinator.stragglers.watch import thresholds_of
from tests.unit.straggler_runs import FIRST

DOCS = Path(__file__).resolve().parents[2] / "docs"


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


def page(name: str) -> str:
    return " ".join((DOCS / name).read_text().split())


def test_the_pages_say_what_counts_as_it_does() -> None:
    t, users, design = Thresholds(), page("stragglers.md"), page("design/stragglers.md")
    assert (t.k, t.n, t.window, t.dear, t.alarm, t.urgent, t.learn) == (4, 6, 3, 1.5, 4.0, 2.0, 16)
    for words in (
        "in four of six looks", "in one step that lost 1.5 s", "in one step of four times the time",
        "in one look of twice the time", "In the first 16 steps", "25 % count", "below half of the threshold",
    ):  # fmt: skip
        assert words in users
    assert (t.enter, t.leave, t.unknown, t.probe, t.part) == (1.10, 1.05, 1.25, 1.075, 0.25)
    assert (t.calm, t.most_calm, t.rest, t.most_rest, t.controls, t.estimate) == (8, 512, 16, 1024, 3, 5)
    for words in (
        "4 of the last 6 windows (medians of 3 steps) are at least 1.10; 1.25 in the first steps", "one window is at least 2.0",
        "one step is at least 4.0, or slow and lost at least 1.5 s", "at least 1.075 times slower", "three healthy ranks",
        "at most 1.05 for 8 steps; twice as many after each return, at most 512", "its first 16 steps",
        "must be a quarter of the slowdown", "for 16 steps, then 32, up to 1,024", "`slowdown` is a median of five scores",
    ):  # fmt: skip
        assert words in design
