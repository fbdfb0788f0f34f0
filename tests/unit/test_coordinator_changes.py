"""Planned changes of a world: what is due, what is dropped, and what must be saved first."""

from __future__ import annotations

import pytest

from coxswain.layout import Device, Layout, uniform_layout
from coxswain_coordinator.state.changes import Changes, loses_state


def on(*trainers: int, pipeline: int = 1, aside: tuple[int, ...] = ()) -> Layout:
    """Of trainers with a device each; those `aside` are on standby."""
    found = uniform_layout([Device(t, 0) for t in trainers], 2, pipeline=pipeline)
    return Layout(found.replicas, (*found.standby, *(Device(t, 0) for t in aside)))


def devices(*trainers: int) -> set[Device]:
    return {Device(t, 0) for t in trainers}


def requested(*layouts: Layout, size: int = 2) -> Changes:
    changes = Changes(size)
    for number, layout in enumerate(layouts):
        changes.request(layout, f"reason {number}")
    return changes


def fail(changes: Changes) -> None:
    """The world fails before the change that it was to make."""
    changes.withdraw(on(0, 1))


ASIDE, PIPELINE = on(0, aside=(1,)), on(0, 1, pipeline=2)


def test_a_requested_layout_is_for_exactly_its_devices_with_those_on_standby() -> None:
    changes = requested(ASIDE)
    assert changes.layout_on(devices(1, 0)) == ASIDE
    assert changes.layout_on(devices(0)) is changes.layout_on(devices(0, 1, 2)) is None
    assert Changes(2).layout_on(devices(0, 1)) is None


def test_a_layout_that_a_world_has_is_kept_for_the_next_one_of_the_same_devices() -> None:
    changes = requested(ASIDE)
    changes.entered(ASIDE)
    assert changes.layout_on(devices(0, 1)) == ASIDE
    assert changes.due(ASIDE, {0, 1}) == changes.due(on(0, 1), {0, 1}) == ""


def test_a_layout_does_not_come_back_with_devices_that_were_not_in_the_world_since() -> None:
    changes = requested(ASIDE)
    changes.entered(ASIDE)
    changes.entered(on(0))
    assert changes.layout_on(devices(0, 1)) is None


def test_a_request_that_no_world_could_meet_is_dropped() -> None:
    changes = requested(ASIDE)
    changes.entered(on(0, 1, 2))
    assert changes.layout_on(devices(0, 1)) is None
    assert changes.due(on(0, 1), {0, 1}) == ""


def test_a_world_that_fails_before_its_change_keeps_the_layout_that_is_in_force() -> None:
    changes = requested(PIPELINE, ASIDE)
    fail(changes)
    assert changes.layout_on(devices(0, 1)) is None  # neither was in force
    changes = requested(PIPELINE)
    changes.entered(PIPELINE)
    changes.stepped()
    for layout in (ASIDE, on(0, 1)):
        changes.request(layout, "again")
    fail(changes)
    assert changes.layout_on(devices(0, 1)) == PIPELINE
    assert changes.due(on(0, 1), {0, 1}) == ""


@pytest.mark.parametrize("worlds", [1, 2])
def test_a_failure_takes_no_layout_from_a_job_that_has_made_a_step_in_it(worlds: int) -> None:
    changes = requested(PIPELINE)
    changes.entered(PIPELINE)
    changes.stepped()
    for _ in range(worlds):
        fail(changes)
        assert changes.layout_on(devices(0, 1)) == PIPELINE
        changes.entered(PIPELINE)


def test_a_layout_in_which_the_first_world_fails_before_a_step_gives_way_to_the_one_before() -> None:
    changes = requested(PIPELINE)
    changes.entered(PIPELINE)
    changes.stepped()
    changes.request(ASIDE, "trainer-1 is slow")
    changes.entered(ASIDE)
    fail(changes)
    assert changes.layout_on(devices(0, 1)) == PIPELINE
    changes.entered(PIPELINE)
    fail(changes)
    assert changes.layout_on(devices(0, 1)) == PIPELINE, "a step was made in it"
    changes = requested(ASIDE)
    changes.entered(ASIDE)
    fail(changes)
    assert changes.layout_on(devices(0, 1)) is None, "the job's own"


def test_a_layout_in_which_two_worlds_in_a_row_fail_before_a_step_gives_way_though_one_has_made_steps() -> None:
    """A later step may need more memory than the first one."""
    changes = requested(PIPELINE)
    changes.entered(PIPELINE)
    changes.stepped()
    changes.request(ASIDE, "trainer-1 is slow")
    changes.entered(ASIDE)
    changes.stepped()
    for kept in (ASIDE, ASIDE, PIPELINE):  # the first of these worlds has made a step
        changes.withdraw(ASIDE)
        assert changes.layout_on(devices(0, 1)) == kept and (changes.failed == ASIDE) == (kept == PIPELINE)
        changes.entered(kept)
    for kept in (PIPELINE, None):
        assert changes.failed is None
        changes.withdraw(PIPELINE)
        assert changes.layout_on(devices(0, 1)) == kept, "the one before it has failed as well"
        changes.entered(PIPELINE)


def test_worlds_of_other_layouts_between_them_are_no_failures_in_a_row() -> None:
    changes = Changes(2)
    for layout in (ASIDE, PIPELINE, ASIDE):
        changes.entered(layout)
        changes.withdraw(layout)
        assert changes.failed is None


def test_the_first_failure_of_a_layout_that_was_not_requested_says_nothing_of_it() -> None:
    """Another layout was, untried as the devices changed."""
    changes = requested(ASIDE)
    changes.entered(on(0, 1, 2))
    changes.withdraw(on(0, 1, 2))
    assert changes.failed is None


def test_a_world_that_takes_an_untried_layout_over_has_not_tried_it() -> None:
    """The first world was planned away before a step: the second one has the layout of the first."""
    changes = requested(ASIDE)
    changes.entered(ASIDE)
    changes.entered(ASIDE)
    fail(changes)
    assert changes.layout_on(devices(0, 1)) is None


@pytest.mark.parametrize(
    ("size", "layout", "present", "why"),
    [
        (2, on(0, 1), {0, 1}, ""),
        (2, on(0, 1), {0, 1, 2}, ""),  # it waits until the job has room for it
        (2, on(0, 1), {0}, ""),  # one that is gone ends its world by a failure
        (3, on(0, 1), {0, 1}, ""),
        (3, on(0, 1), {0, 1, 2}, "trainer-2 joined"),
        (4, on(0, 2), {0, 1, 2, 3}, "trainer-1, trainer-3 joined"),
        (2, on(0, 1, 2), {0, 1, 2}, "trainer-2 shall leave: the job has 2 trainers now"),
        (1, on(0, 1, 2), {0, 1, 2}, "trainer-1, trainer-2 shall leave: the job has 1 trainers now"),
        (1, on(0, aside=(1,)), {0, 1}, "trainer-1 shall leave: the job has 1 trainers now"),
        (2, on(0, 2), {0, 1, 2}, "trainer-2 shall leave: the job has 2 trainers now"),
    ],
)
def test_a_world_changes_for_trainers_that_leave_then_for_those_that_join(
    size: int, layout: Layout, present: set[int], why: str
) -> None:
    assert Changes(size).due(layout, present) == why


def test_a_requested_layout_is_due_until_a_world_has_it() -> None:
    changes = requested(ASIDE)
    assert changes.due(on(0, 1), {0, 1}) == "reason 0"
    assert changes.due(ASIDE, {0, 1}) == ""
    changes.size = 1
    assert changes.due(ASIDE, {0, 1}) == "trainer-1 shall leave: the job has 1 trainers now"


@pytest.mark.parametrize(
    ("current", "after", "loses"),
    [
        (on(0, 1), on(0, 1), False),
        (on(0, 1), on(0, 1, 2), False),
        (on(0, 1), on(0), True),
        (on(0, aside=(1,)), on(0), False),  # it has no state
        (on(0, 1), PIPELINE, False),
        (on(0, 1), ASIDE, True),
        (on(0, aside=(1,)), on(0, 1), False),
        (on(1, 2, pipeline=2), on(0, 1, 2, pipeline=2), True),  # trainer 0 is back and takes the place of trainer 2
        (on(0, 1, pipeline=2), on(0, 1, 2, pipeline=2), False),
        (on(0, 1, pipeline=2), on(0, pipeline=2), True),  # no replica is left
    ],
)
def test_state_is_saved_before_a_change_in_which_a_device_with_state_stops_working(
    current: Layout, after: Layout, loses: bool
) -> None:
    assert loses_state(current, after) is loses


def test_trainers_that_shall_leave_are_of_the_next_world_where_they_hold_state_that_is_not_saved() -> None:
    changes = Changes(1)
    changes.hold(on(0, 1))
    assert changes.forming == 2
    changes.entered(on(0, 1))
    assert changes.forming == 1
    changes.hold(on(0, aside=(1,)))
    assert changes.forming == 1
