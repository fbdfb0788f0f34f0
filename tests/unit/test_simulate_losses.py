"""What a loss costs in virtual time, where devices are left and where none is: the clock, ours and rivals."""

from __future__ import annotations

from typing import Any

import pytest

from coxswain.ladder.options import draft_of
from coxswain.layout import Device, uniform_layout
from coxswain.simulate.compare import NAMES, simulate
from coxswain.simulate.ours import Ours
from coxswain.simulate.run import RESTART, Measured, Outcome, Run, Settings
from coxswain.simulate.traces import Event
from coxswain.simulate.truth import ARMED
from coxswain.simulate.world import load_seconds
from tests.unit.test_simulate import DEVICES, NODES, SPAN, Still, trace, world

EVERY = tuple(f"n{n}" for n in range(NODES))


def lost(t: float, duration: float | None, *components: str) -> list[Event]:
    return [Event(t, component, "lost", 1.0, duration) for component in components]


def outcomes(
    events: list[Event], seconds: float = SPAN, rivals: tuple[str, ...] = NAMES, **options: Any
) -> list[Outcome]:
    return simulate(world(), trace(*events, seconds=seconds), rivals, **options)


def test_where_every_device_is_lost_all_load_the_checkpoint_once_they_are_back() -> None:
    """No memory has kept the state: 60 s behind the checkpoint of second 150 are done again, after a restart."""
    for outcome in outcomes(lost(210.0, 300.0, *EVERY), settings=Settings(checkpoint=150.0)):
        assert 55 < outcome.seconds_lost["redone"] < 62, outcome.name
        assert outcome.seconds_lost["restart"] == pytest.approx(RESTART + load_seconds(world()), abs=0.01), outcome.name
        assert outcome.seconds_lost["too few devices"] + outcome.seconds_lost["losses"] == pytest.approx(
            300.0, abs=0.01
        )
        begun = [end for end in outcome.ends if end > 210.0]
        assert begun[0] > 510.0 + RESTART, outcome.name


@pytest.mark.parametrize("name", ["ours", "layers-only", "torchft"])
def test_devices_that_are_back_before_others_go_on_from_the_checkpoint(name: str) -> None:
    """Also those systems that go on from memory after a loss: all memories were lost."""
    events = [*lost(210.0, 100.0, "n0"), *lost(210.0, 400.0, "n1")]
    found = {o.name: o for o in outcomes(events, rivals=(name,) if name != "ours" else ())}[name]
    assert found.seconds_lost["restart"] == pytest.approx(RESTART + load_seconds(world()), abs=0.01)
    assert found.seconds_lost["redone"] > 200.0
    assert min(end for end in found.ends if end > 210.0) > 310.0 + RESTART


@pytest.mark.parametrize("left", [0.5, 1.0, 30.0])
def test_a_loss_of_all_devices_shortly_before_the_end_costs_no_second_beyond_it(left: float) -> None:
    for outcome in outcomes(lost(100.0, None, *EVERY), seconds=100.0 + left):
        assert min(outcome.seconds_lost.values()) >= 0, outcome.name
        useful = outcome.goodput * outcome.seconds
        assert useful + sum(outcome.seconds_lost.values()) == pytest.approx(100.0 + left, abs=0.01), outcome.name


def test_time_never_goes_back_where_an_armed_event_was_due_while_a_policy_waited() -> None:
    """Ours plans for 50 s for the device that is left, which holds no layout."""
    seen = []

    class Watched(Run):
        def wait(self, seconds: float, cause: str) -> None:
            seen.append((cause, seconds))
            super().wait(seconds, cause)

    gone = lost(ARMED - 20.0, 200.0, "n1", *(f"n0/{d}" for d in range(1, DEVICES)))
    slow = Event(0.0, "coordinator", "coordinator", 100.0, None)
    Watched(world(), trace(*gone, slow, Event(0.0, "n0/1", "armed", 2.0, None)), Ours(0)).go()
    assert {"planning", "too few devices"} <= {cause for cause, _ in seen}
    assert all(seconds >= 0 for _, seconds in seen)


def test_a_layout_that_a_loss_did_not_touch_goes_on() -> None:
    layout = uniform_layout([Device(0, d) for d in range(DEVICES)], 32, pipeline=DEVICES)

    class Without(Still):
        """Leaves the last node out from the first step on."""

        def stepped(self, run: Run, measured: Measured) -> None:
            run.use(draft_of(run.world.costs, layout))

    found = Run(world(), trace(*lost(30.0, None, "n1"), seconds=60.0), Without()).go()
    assert set(found.seconds_lost) == {"slow or missing devices"} and found.ends[-1] > 50.0
