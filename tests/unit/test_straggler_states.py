"""Suspicion, confirmation and calm of one rank, window by window."""

from __future__ import annotations

import numpy as np
import pytest

from coxswain.stragglers.states import States
from coxswain.stragglers.values import State, Thresholds

ENTER = 1.1


class Rank:
    """One rank's machine: suspected by two of three slow windows, calm after two, at rest for two."""

    def __init__(self, **thresholds: int) -> None:
        self.steps = 0
        few = {"k": 2, "n": 3, "calm": 2, "most_calm": 4, "rest": 2, "most_rest": 4}
        self.machine = States(1, Thresholds(**few | thresholds))  # type: ignore[arg-type]

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


@pytest.mark.parametrize(("estimate", "state"), [(2.2, State.NORMAL), (2.21, State.SUSPECTED)])
def test_a_rest_ends_for_a_rank_that_gets_slower_than_was_cleared_by_more_than_the_threshold(estimate, state):
    rank = Rank(rest=8)
    rank.refute(2.0)
    assert rank.window(estimate, urgent=True) == state


def test_what_was_cleared_before_the_last_rest_does_not_count():
    rank = Rank()
    rank.refute(3.0)
    rank.window(1.0), rank.window(1.0)
    rank.refute(2.0)
    assert rank.window(2.5, urgent=True) == State.SUSPECTED


def test_slow_windows_before_a_probe_that_found_nothing_do_not_count():
    rank = Rank()
    rank.refute()
    assert rank.machine.since[0] == rank.steps
    assert [rank.window(value) for value in (1.0, 2.0)] == [State.NORMAL] * 2


@pytest.mark.parametrize("urgent", [True, False])
def test_a_rank_without_figures_is_not_suspected_and_not_in_doubt(urgent):
    rank = Rank()
    assert {rank.window(9.0, present=False, urgent=urgent) for _ in range(40)} == {State.NORMAL}
    assert not rank.machine.doubtful.any()


@pytest.mark.parametrize(
    ("probed", "estimate", "state", "slowdown"),
    [
        (ENTER, 2.0, State.CONFIRMED, 2.0),
        (1.09, 2.0, State.NORMAL, 1.0),
        (2.1, 2.0, State.CONFIRMED, 2.0),
        (2.5, 2.0, State.CONFIRMED, 2.5),
        (1.15, 1.096, State.CONFIRMED, 1.1),
        (1.15, 1.09, State.SUSPECTED, 1.0),
    ],
)
def test_a_probe_confirms_a_slow_rank_and_says_how_slow_it_is_only_where_it_is_much_slower(
    probed, estimate, state, slowdown
):
    rank = Rank()
    rank.window(2.0, urgent=True)
    assert (rank.probe(probed, estimate), rank.machine.slowdowns[0]) == (state, slowdown)


def test_a_slowdown_rises_only_after_slow_windows_in_a_row_that_are_above_it_by_more_than_the_limit():
    rank = Rank()
    rank.confirm(2.0)
    for value in (3.0, 2.0, 3.0, 2.0, *[2.1] * 9):
        rank.window(value)
        assert rank.machine.slowdowns[0] == 2.0
    rank.window(3.0), rank.window(3.0)
    assert rank.machine.slowdowns[0] == 3.0


def test_a_straggler_that_gets_less_slow_stays_one_and_its_next_calm_begins_then():
    rank = Rank()
    rank.confirm(2.0)
    for value in (1.9, 2.0, 1.9):
        rank.window(value)
    assert rank.machine.slowdowns[0] == 2.0, "calm, but not in a row"
    assert (rank.window(1.9), rank.machine.slowdowns[0]) == (State.CONFIRMED, 1.9)
    assert rank.steps_until(State.NORMAL, 1.04) == 4
    assert rank.machine.slowdowns[0] == 1.0


def test_a_straggler_at_the_limit_is_calm():
    rank = Rank()
    rank.confirm(ENTER)
    assert rank.steps_until(State.NORMAL, 1.05) == 2


def calm_needed(rank, between):
    """Calm steps until the second return, behind what comes between the first one and it."""
    rank.confirm()
    rank.steps_until(State.NORMAL, 1.0)
    between(rank)
    while rank.state != State.CONFIRMED:
        rank.confirm()
    return rank.steps_until(State.NORMAL, 1.0)


def stays_slow(rank):
    rank.confirm()
    for _ in range(20):
        rank.window(2.0)


def stays_slow_unobserved(rank):
    rank.confirm()
    rank.machine.passed(20)


@pytest.mark.parametrize(
    ("between", "needed"),
    [
        (lambda rank: [rank.window(1.0) for _ in range(3)], 4),
        (lambda rank: [rank.window(1.0) for _ in range(4)], 2),
        (lambda rank: [rank.window(1.0, present=False) for _ in range(20)], 4),
        (lambda rank: rank.machine.passed(20), 2),
        (stays_slow, 4),
        (stays_slow_unobserved, 4),
    ],
    ids=[
        "well for short",
        "well for long",
        "without figures",
        "well and not observed",
        "slow",
        "slow and not observed",
    ],
)
def test_a_calm_is_short_again_after_long_without_being_a_straggler(between, needed):
    assert calm_needed(Rank(forget=6), between) == needed


def test_steps_that_are_not_observed_are_some_of_a_rest():
    rank = Rank()
    rank.refute()
    rank.machine.passed(1)
    assert rank.window(2.0, urgent=True) == State.SUSPECTED


def test_a_rank_is_settled_unless_it_is_suspected_or_about_to_be_another():
    rank = Rank()
    assert rank.machine.settled and rank.machine.healthy.all()
    rank.window(2.0)
    assert not rank.machine.settled and not rank.machine.healthy.any(), "one slow window"
    rank.window(2.0)
    assert not rank.machine.settled, "a suspect"
    rank.probe(2.0, 2.0)
    rank.window(2.0)
    assert rank.machine.settled and not rank.machine.healthy.any()
    for value in (3.0, 1.0):
        rank.window(value)
        assert not rank.machine.settled, "on the way to another slowdown"
        rank.window(2.0)
        assert rank.machine.settled


def test_what_began_in_steps_that_are_done_again_began_with_the_first_of_them():
    slow, suspected = Rank(), Rank()
    slow.confirm()
    suspected.steps = slow.machine.since[0] = 9
    suspected.window(2.0)
    for rank in (slow, suspected):
        rank.machine.rewind(5)
    assert suspected.window(2.0) == State.SUSPECTED
    assert slow.machine.since[0] == suspected.machine.since[0] == 5
    slow.machine.rewind(7)
    assert slow.machine.since[0] == 5


def unseen(rank, answer, steps=16):
    """So many steps without figures, the last one with the answer of a probe. Returns the state."""
    for number in range(steps):
        rank.window(1.0, present=False)
        if number < steps - 1:
            assert not rank.machine.doubtful.any()
    rank.machine.probed(rank.steps, np.array([answer]))
    return rank.state


def test_a_straggler_without_figures_is_in_doubt_after_sixteen_steps_and_again_sixteen_behind_each_probe():
    rank = Rank()
    rank.confirm()
    for _ in range(3):
        assert unseen(rank, np.nan, steps=16) == State.CONFIRMED and rank.machine.doubtful.all()
        assert not rank.machine.probed(rank.steps, np.array([2.0])).any() and not rank.machine.doubtful.any()


def test_two_probes_in_a_row_that_find_a_straggler_without_figures_well_end_its_slowdown():
    rank = Rank()
    rank.confirm()
    assert [unseen(rank, answer) for answer in (1.0, 1.06, 1.05)] == [State.CONFIRMED] * 3
    assert unseen(rank, 1.05) == State.NORMAL
    assert (rank.machine.slowdowns[0], rank.machine.since[0]) == (1.0, rank.steps) and rank.machine.settled
    assert rank.window(1.0) == State.NORMAL and rank.window(2.0) == State.NORMAL, "what it was before does not count"


def test_a_straggler_without_figures_needs_more_well_probes_with_each_return():
    rank, took = Rank(calm=48, most_calm=80), []
    for _ in range(3):
        rank.confirm()
        took.append(next(n for n in range(1, 20) if unseen(rank, 1.0) == State.NORMAL))
        rank.window(1.0)
    assert took == [3, 5, 5]
