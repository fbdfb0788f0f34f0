"""Slow devices on standby in a running job: which are probed, what a probe counts for, and when one is planned with again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from dataclasses import replace as with_fields

import pytest
from msgspec.structs import replace

from coxswain.config import ParallelConfig, StragglerConfig
from coxswain.errors import Stale
from coxswain.ladder.values import Option, Options
from coxswain.layout import Device, Layout, Replica, Stage
from coxswain.wire import StandbyProbes
from coxswain_coordinator.stragglers.aside import UNKNOWN, set_aside
from coxswain_coordinator.stragglers.figures import Measured
from coxswain_coordinator.stragglers.standby import StandbyProbing
from coxswain_coordinator.world.formation import layout_of
from tests.unit.coordinator_fakes import make_job
from tests.unit.coordinator_lead import ONSET, moved_to, run_steps, saved_and_moved, training
from tests.unit.coordinator_samples import agents
from tests.unit.ladder_samples import SLOW, Job, as_planned, at_once, nothing, straggler

pytestmark = pytest.mark.looptime

NAN = float("nan")


@dataclass
class Watch:
    """Takes the seconds of a probe for its slowdown."""

    asked: list[Device] = field(default_factory=list)

    def slowdown_aside(self, device: Device, seconds: float) -> float:
        self.asked.append(device)
        return seconds if seconds else NAN


class Probed:
    """A job whose trainer 1 has gone on standby, and what its agent would probe."""

    def __init__(self, folder, **job) -> None:
        self.job, self.watch, self.events = Job(folder, **job), Watch(), []
        self.probing = StandbyProbing(self.watch, self.job.ladder, lambda *event: self.events.append(event))

    def wanted(self, trainer: int = 1) -> tuple[int, ...]:
        return self.probing.wanted(f"trainer-{trainer}").devices

    def probe(self, *slowdowns: float, trainer: int = 1, device: int = 0) -> None:
        for slowdown in slowdowns:
            found = StandbyProbes(self.job.generation, f"trainer-{trainer}", ((device, slowdown),))
            self.probing.hear(found)

    async def go_aside(self) -> None:
        self.job.slow = True
        while not self.job.record.layout.standby:
            await self.job.run(1)
        self.job.slow = False

    @property
    def aside(self) -> bool:
        return SLOW in self.job.record.layout.standby


async def set_apart(folder, **job) -> Probed:
    found = Probed(folder, **job)
    await found.go_aside()
    return found


async def test_a_slow_device_on_standby_that_two_probes_find_well_works_again_and_an_event_says_so(tmp_path):
    p = await set_apart(tmp_path)
    assert (p.wanted(), p.wanted(0)) == ((0,), ())
    p.probe(1.0)
    await p.job.run(40)
    assert p.aside and p.events == []
    p.probe(1.05)
    await p.job.run(40)
    assert not p.aside and p.wanted() == ()
    assert p.events == [
        (
            "StragglerRecovered",
            "trainer-1 device 0, on standby, computes at its normal speed in 2 probes in a row: layouts are planned with it",
            False,
        )
    ]
    assert p.job.asked[-1][1].startswith("because of trainer-1 device 0: 2 x tp1pp1 is predicted to save")


async def test_a_slow_probe_begins_the_dwell_again(tmp_path):
    p = await set_apart(tmp_path)
    p.probe(1.0, 1.2, 1.0)
    await p.job.run(40)
    assert p.aside and p.events == []
    p.probe(1.0)
    assert len(p.events) == 1


async def test_a_device_that_is_slow_again_after_each_return_is_planned_with_ever_later(tmp_path):
    p, took = Probed(tmp_path), []
    for _ in range(3):
        p.job.onset = p.job.step
        await p.go_aside()
        known = len(p.events)
        while len(p.events) == known:
            p.probe(1.0)
            took.append(len(p.events))
        while p.aside:
            await p.job.run(1)
    assert [took.count(returns) for returns in range(3)] == [1, 4, 8]


async def test_a_probe_without_anything_to_compare_it_with_counts_for_nothing(tmp_path):
    p = await set_apart(tmp_path)
    p.probe(1.0, *[0.0] * 8)
    assert p.aside and p.wanted() == (0,) and p.events == []
    p.probe(1.0)
    assert len(p.events) == 1


async def test_a_probe_of_a_device_with_a_seat_or_of_another_trainer_counts_for_nothing(tmp_path):
    p = Probed(tmp_path)
    await p.job.run(1)
    assert p.job.ladder.speeds and p.wanted() == ()
    p.probe(*[1.0] * 8)
    await p.go_aside()
    p.probe(*[1.0] * 8, trainer=0)
    p.probe(*[1.0] * 8, device=1)
    p.probe(*[1.0] * 8, trainer=7)
    assert p.watch.asked == [] and p.events == [] and p.aside


async def test_a_device_that_was_never_slow_needs_no_probe_on_standby(tmp_path):
    aside = await set_apart(tmp_path)
    p = Probed(tmp_path, slow=False)
    p.job.enter(aside.job.record.layout)
    assert p.aside and p.wanted() == ()
    p.probe(*[1.0] * 8)
    assert p.watch.asked == [] and p.events == []


async def test_a_world_that_is_formed_again_keeps_what_probes_have_said(tmp_path):
    p = await set_apart(tmp_path)
    p.probe(1.0)
    p.job.enter(p.job.record.layout)
    p.probe(1.0)
    assert len(p.events) == 1


async def test_a_device_that_is_well_is_planned_with_also_where_no_decision_has_chosen_the_layout(tmp_path):
    p = await set_apart(tmp_path)
    p.job.asked.clear()
    stages = tuple(Stage((Device(0, 0),), layer, layer + 1) for layer in range(2))
    p.job.enter(Layout((Replica(stages),), standby=(SLOW,)))  # as after a loss
    p.probe(1.0, 1.0)
    await p.job.run(40)
    assert not p.aside


AGAIN = [replace(agent, pod=f"{agent.pod}-again") for agent in agents(2)]


async def test_another_pod_is_not_asked_for_the_probes_of_the_one_before_and_has_never_been_back(tmp_path):
    p = await set_apart(tmp_path)
    p.probe(1.0, 1.0)
    await p.job.run(40)
    await p.go_aside()
    assert p.job.ladder.aside.waiting[SLOW].dwell == 4
    aside = p.job.record.layout
    p.job.enter(aside, AGAIN)
    assert p.wanted() == ()
    p.job.enter(None, AGAIN)
    p.job.slow = True  # it too
    await p.job.run(1, changes=False)
    p.job.enter(aside, AGAIN)
    assert p.job.ladder.aside.waiting[SLOW].dwell == 2


@pytest.mark.parametrize("action", ["None", "Warn", "Rebalance"])
async def test_an_action_below_migrate_wants_no_probes_of_devices_on_standby(tmp_path, action):
    aside = await set_apart(tmp_path)
    p = Probed(tmp_path, action=action, adopted=aside.job.record.layout)
    assert p.aside and p.wanted() == ()


# --- a coordinator that has taken over -------------------------------------------------------------------------------


async def taken_over(folder, **job) -> Probed:
    """With a device on standby of which this coordinator knows nothing."""
    found = Probed(folder, adopted=(await set_apart(folder)).job.record.layout, slow=False, **job)
    assert found.aside
    return found


async def test_a_new_coordinator_takes_a_device_back_once_its_probes_are_as_fast_as_those_of_peers(tmp_path):
    p = await taken_over(tmp_path)
    await p.job.run(40)
    assert p.wanted() == (0,)
    p.probe(1.0)
    await p.job.run(40)
    assert p.aside
    p.probe(1.0)
    await p.job.run(40)
    assert not p.aside and [reason for reason, *_ in p.events] == ["StragglerRecovered"]


async def test_a_new_coordinator_plans_for_another_slow_device_with_next_to_no_speed_of_one_that_it_knows_nothing_of(
    tmp_path,
):
    p = await taken_over(tmp_path, planner=nothing)
    p.job.ladder.stepped(Measured(0, 10.0, 0.0, ()), [with_fields(straggler(2.0, 0), trainer="trainer-0")])
    await asyncio.sleep(0)
    ((_, _, speeds, _),) = p.job.inputs
    assert speeds == {Device(0, 0): pytest.approx(0.5, rel=0.03), SLOW: UNKNOWN}


async def test_a_new_coordinator_knows_the_speed_of_a_device_once_a_probe_has_found_it_slow(tmp_path):
    p = await taken_over(tmp_path)
    p.probe(2.0)
    await p.job.run(40)
    assert p.job.ladder.speeds == {SLOW: pytest.approx(0.5, rel=0.03)} and p.aside and p.wanted() == (0,)
    p.probe(1.0, 1.0)
    await p.job.run(40)
    assert not p.aside


async def test_under_replace_node_no_node_is_wanted_away_for_a_device_of_which_nothing_is_known(tmp_path):
    p = await taken_over(tmp_path, action="ReplaceNode", planner=nothing)
    await p.job.run(400)
    assert p.job.ladder.request is None


async def test_under_replace_node_the_node_of_a_slow_device_is_wanted_away_though_of_another_one_nothing_is_known(
    tmp_path,
):
    p = await taken_over(tmp_path, action="ReplaceNode", planner=nothing)
    for step in range(300):
        p.job.ladder.stepped(Measured(step, 10.0, 0.0, ()), [with_fields(straggler(2.0, 0), trainer="trainer-0")])
        await asyncio.sleep(0)
    assert p.job.ladder.request.node == "node-0"


async def test_another_pod_has_no_device_that_an_earlier_coordinator_has_set_aside(tmp_path):
    p = await taken_over(tmp_path)
    p.job.enter(p.job.record.layout, AGAIN)
    assert p.wanted() == () and p.job.ladder.speeds == {}


def test_only_a_device_that_would_work_in_the_jobs_own_layout_has_been_set_aside(tmp_path):
    job = make_job(tmp_path, parallelism=ParallelConfig(pipeline=2), trainers=3)
    own = layout_of(job, agents(3))
    assert own.standby == (Device(2, 0),) and set_aside(job, own) == frozenset()
    (first,) = own.replicas
    swapped = replace(first.stages[1], devices=(Device(2, 0),))
    found = Layout((replace(first, stages=(first.stages[0], swapped)),), standby=(Device(1, 0),))
    assert set_aside(job, found) == {Device(1, 0)}


# --- in the whole coordinator ----------------------------------------------------------------------------------------


async def test_a_device_goes_on_standby_and_comes_back_by_its_probes_in_the_whole_coordinator(tmp_path):
    batch = replace(make_job(tmp_path).batch, max_sequence_tokens=128)
    job = make_job(tmp_path, stop_steps=128, batch=batch, stragglers=StragglerConfig(action="Migrate"))
    async with training(job) as lead:
        state = lead.state
        state.ladder.beside, state.ladder.planner, state.ladder.judge = at_once, planner(job), as_planned
        await run_steps(lead, ONSET)
        await changed(lead, factor=3.0)
        assert state.session.record.layout.standby == (SLOW,)
        assert state.add_probes(StandbyProbes(2, "trainer-1")).devices == (0,)
        assert state.add_probes(StandbyProbes(2, "trainer-0")).devices == ()
        with pytest.raises(Stale):  # a probe of the world in which the device had a seat
            state.add_probes(StandbyProbes(1, "trainer-1", ((0, 0.001),)))
        for seconds in (0.003, 0.001, 0.001):
            assert not [e for e in state.events.latest() if e.reason == "StragglerRecovered"]
            state.add_probes(StandbyProbes(2, "trainer-1", ((0, seconds),)))
        assert [e.message for e in state.events.latest() if e.reason == "StragglerRecovered"]
        await changed(lead)
        assert state.session.record.layout.standby == () and len(state.session.world.seats) == 2


def planner(job):
    """While a device is slow, a layout without it is faster; while none is, that with all."""
    whole = layout_of(job, agents(2))

    def planned(job, vocabulary, layout, speeds, least_gain) -> Options:
        better = replace(whole, replicas=whole.replicas[:1], standby=(SLOW,)) if speeds else whole
        return Options(
            layout, dict(speeds), 2.0, 1.0, (Option("Groups", better, 1.0, 0.1),) if better != layout else ()
        )

    return planned


async def changed(lead, factor: float = 1.0) -> None:
    """Runs steps until the layout changes."""
    session = lead.state.session
    while not session.move:
        assert session.book.open < 100
        await run_steps(lead, 1, factor)
    if session.move.saves:
        step = session.move.step
        assert session.directive(step).end == "Moved"
        await saved_and_moved(lead, step, session.record.generation + 1)
    else:
        await moved_to(lead, session.move.step)
