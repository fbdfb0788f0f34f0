"""Suspicion, confirmation and calm of one rank, window by window."""

from __future__ import annotations

import numpy as np
import pytest

from coxswain.stragglers.states import States
from coxswain.stragglers.values import State, Thresholds

ENTER = 1.1


class Rank:
    """One rank's machine: suspected by two of three slow windows, calm after two, at rest for two."""

    def __init__(self) -> None:
        self.steps = 0
        self.machine = States(1, Thresholds(k=2, n=3, calm=2, most_calm=4, rest=2, most_rest=4))

    @property
    def state(self) -> State:
        return State(int(self.machine.states[0]))

    def window(self, value: float, *, present: bool = True, urgent: bool = False) -> State:
        of = np.array([value])
        self.machine.advance(self.steps, np.array([present]), of, of, np.array([ENTER]), np.array([urgent]))
        self.steps += 1
        return self.state

    def probe(self, probed: float, estimate: float) -> State:
        self.machine.judge(self.steps, np.array([probed]), np.array([estimate]), np.array([ENTER]))
        return self.state

    def confirm(self, slowdown: float = 2.0) -> None:
        while self.state != State.SUSPECTED:
            self.window(slowdown, urgent=True)
        assert self.probe(slowdown, slowdown) == State.CONFIRMED

    def refute(self, estimate: float = 2.0) -> None:
        while self.state != State.SUSPECTED:
            self.window(estimate, urgent=True)
        assert self.probe(1.0, estimate) == State.NORMAL

    def steps_until(self, state: State, value: float, urgent: bool = False) -> int:
        """Windows of this value until it has the state."""
        begun = self.steps
        while self.window(value, urgent=urgent) != state:
            assert self.steps - begun < 50
        return self.steps - begun


@pytest.mark.parametrize(("value", "state"), [(ENTER, State.SUSPECTED), (1.09, State.NORMAL)])
def test_a_window_counts_as_slow_from_the_limit_on(value, state):
    rank = Rank()
    rank.window(value)
    assert rank.window(value) == state


def test_the_calm_that_is_needed_doubles_with_each_return_up_to_its_limit():
    rank, needed = Rank(), []
    for _ in range(4):
        rank.confirm()
        needed.append(rank.steps_until(State.NORMAL, 1.0))
    assert needed == [2, 4, 4, 4]


def test_the_rest_after_a_probe_that_found_nothing_doubles_up_to_its_limit_and_is_short_again_after_a_confirmation():
    rank, rests = Rank(), []
    for _ in range(4):
        rank.refute()
        rests.append(rank.steps_until(State.SUSPECTED, 2.0, urgent=True))
    assert rests == [2, 4, 4, 4]
    rank.confirm()
    rank.steps_until(State.NORMAL, 1.0)
    rank.refute()
    assert rank.steps_until(State.SUSPECTED, 2.0, urgent=True) == 2


def test_a_step_without_figures_neither_ends_a_calm_nor_a_rise():
    calm, rising = Rank(), Rank()
    for rank, value in ((calm, 1.0), (rising, 3.0)):
        rank.confirm()
        rank.window(value)
        rank.window(1.0, present=False)
        rank.window(value)
    assert (calm.state, rising.state, rising.machine.slowdowns[0]) == (State.NORMAL, State.CONFIRMED, 3.0)


def test_a_suspect_is_one_since_its_first_slow_window_and_until_none_of_its_last_ones_is_slow():
    rank = Rank()
    rank.window(1.0)
    states = [rank.window(value) for value in (2.0, 2.0, 1.0, 1.0)]
    assert states == [State.NORMAL, *[State.SUSPECTED] * 3]
    assert rank.machine.since[0] == 1
    assert rank.window(1.0) == State.NORMAL


def test_a_step_without_figures_is_none_of_a_rest():
    """Else a rank without work for a while is probed again at once."""
    rank = Rank()
    rank.refute()
    for _ in range(9):
        rank.window(2.0, present=False, urgent=True)
    assert rank.steps_until(State.SUSPECTED, 2.0, urgent=True) == 2


def test_of_two_probes_in_a_rest_that_found_nothing_the_higher_estimate_stays_cleared():
    rank = Rank()
    rank.refute(2.0)
    assert rank.window(3.0, urgent=True) == State.SUSPECTED  # much slower than what was cleared
    assert rank.probe(1.0, 1.5) == State.NORMAL
    assert rank.window(2.1, urgent=True) == State.NORMAL
