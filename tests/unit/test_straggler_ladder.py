"""The coordinator on the ladder, in virtual steps: when it changes the layout, when it asks for a node, and when it does not."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from coxswain.config import ParallelConfig, StragglerConfig
from coxswain.ladder.decide import decide
from coxswain.ladder.values import LEAST_GAIN, Option, Options
from coxswain.layout import Device, Layout, Replica, Stage
from coxswain.stragglers.values import Cause
from coxswain.wire import NodeRequest
from coxswain_coordinator.api.report import job_report
from coxswain_coordinator.capacity import capacity_fault, devices_of
from coxswain_coordinator.stragglers.ladder import MEASURED_STEPS, Ladder
from coxswain_coordinator.stragglers.offers import costs_of, offers, runs
from coxswain_coordinator.stragglers.words import Straggler
from coxswain_coordinator.world.formation import at_checkpoint, next_generation, world_of
from tests.unit.coordinator_fakes import make_job
from tests.unit.coordinator_lead import begun, holds, moved_to, one_replica, register, training
from tests.unit.coordinator_samples import agents
from tests.unit.test_coordinator_speeds import ONSET, run

pytestmark = pytest.mark.looptime

SECONDS = 10.0  # of a step while trainer 1 is slow
SLOW = Device(1, 0)


def offered(job, vocabulary, layout: Layout, speeds, least_gain) -> Options:
    """While one is slow, a layout with it on standby is a fifth faster; while none is, that with all devices."""
    if not speeds:
        whole = next_generation(job, 1, "me", agents(2), (), at_checkpoint(job, None)).layout
        return Options(layout, {}, 8.0, 6.0, (Option("Groups", whole, 6.0, 5.0),) if layout.standby else ())
    aside = replace(layout, replicas=layout.replicas[:1], standby=(SLOW,))
    return Options(layout, dict(speeds), SECONDS, 6.0, () if layout.standby else (Option("Groups", aside, 8.0, 5.0),))


@dataclass
class Job:
    """Trainers with a device each; changes of layout come at once."""

    folder: Any
    action: str = "Migrate"
    planner: Any = offered
    trainers: int = 2
    joins: bool = False
    factor: float = 2.0
    slow: bool = True
    step: int = 0
    onset: int = 0
    generation: int = 0
    asked: list[tuple[Layout, str]] = field(default_factory=list)
    events: list[tuple[str, str]] = field(default_factory=list)
    held: asyncio.Event | None = None

    def __post_init__(self) -> None:
        batch = replace(make_job(self.folder).batch, max_sequence_tokens=128)
        stragglers = StragglerConfig(action=self.action)
        self.job = make_job(self.folder, stragglers=stragglers, batch=batch, trainers=self.trainers)
        self.inputs: list[tuple[Any, ...]] = []  # of plans: vocabulary, layout, speeds, least gain
        self.ladder = Ladder(
            self.job, lambda *request: self.asked.append(request), lambda *event: self.events.append(event),
            self.beside, self.planner, lambda: self.joins,
        )  # fmt: skip
        self.enter()

    @property
    def plans(self) -> int:
        return len(self.inputs)

    async def beside(self, planner, *args):
        self.inputs.append(args[1:])
        if self.held:
            await self.held.wait()
        return planner(*args)

    def enter(self, layout: Layout | None = None, members=None, size: int | None = None) -> None:
        """The next world begins at the next step."""
        self.generation += 1
        members = members or agents(self.trainers)
        start = at_checkpoint(self.job, None)
        record = next_generation(self.job, self.generation, "me", members, (), start, layout, size)
        self.record = replace(record, first_step=self.step)
        nodes = [f"node-{index}" for index in range(len(record.trainers))]
        self.ladder.enter(self.record, world_of(self.record, members, 320), nodes)

    def lose(self, *lost: int, layout: Layout | None = None) -> None:
        self.ladder.leave()
        self.enter(layout, [agent for i, agent in enumerate(agents(self.trainers)) if i not in lost])

    async def run(self, steps: int, changes: bool = True) -> None:
        for _ in range(steps):
            working = {seat.device for seat in self.record.layout.ranks()}
            found = [straggler(self.factor, self.onset)] if self.slow and SLOW in working else []
            self.ladder.stepped(self.step, SECONDS if found else 8.0, found)
            self.step += 1
            for _ in range(4):
                await asyncio.sleep(0)
            if changes and self.asked and self.asked[-1][0] != self.record.layout:
                self.ladder.leave()
                layout = self.asked[-1][0]
                here = {device.trainer for device in devices_of(layout)}
                self.enter(layout, [agent for i, agent in enumerate(agents(self.trainers)) if i in here])


def straggler(slowdown: float, since: int) -> Straggler:
    return Straggler("trainer-1", 0, "node-1", slowdown, since, 1.0, Cause.DEVICE, 1, 0.5)


async def test_a_straggler_that_costs_more_than_the_change_leads_to_one_change_that_says_gain_and_cost(tmp_path):
    j = Job(tmp_path)
    await j.run(2)
    assert (j.plans, j.asked) == (1, [])
    await j.run(1)  # the third slow step: 3 x 2 s are more than 5 s
    assert len(j.asked) == 1
    await j.run(60)
    ((layout, why),) = j.asked
    assert layout.standby == (SLOW,) and devices_of(layout) == {Device(0, 0), SLOW}
    assert why == (
        "because of trainer-1 device 0: 1 x tp1pp1 is predicted to save 2.000 of 10.000 s of each step, for 5.0 s once; "
        "trainer-1 device 0 goes on standby: not probed, until its pod or the job's size is another one"
    )


async def test_an_event_states_the_measured_gain_beside_the_predicted_one_once_sixteen_steps_are_measured(tmp_path):
    j = Job(tmp_path)
    while not j.asked:
        await j.run(1)
    await j.run(MEASURED_STEPS - 1)
    assert j.events == []
    await j.run(10)
    ((reason, message),) = j.events
    assert reason == "LayoutMeasured"
    assert message == (
        "the layout that changed because of trainer-1 device 0: a step takes 8.000 s and took 10.000 s; it gains 2.000 s, "
        "predicted were 2.000 s"
    )


@pytest.mark.parametrize("action", ["None", "Warn", "Rebalance"])
async def test_an_action_below_migrate_never_plans_a_layout(tmp_path, action):
    j = Job(tmp_path, action=action)
    await j.run(60)
    j.slow = False
    j.lose(1)
    await j.run(60)
    assert (j.plans, j.asked, j.ladder.request) == (0, [], None)


@pytest.mark.parametrize("how", ["lost", "restarted", "replaced", "recovered"])
async def test_what_was_planned_for_a_world_that_is_over_or_for_other_speeds_is_dropped(tmp_path, how):
    j = Job(tmp_path, held=asyncio.Event())
    await j.run(10)
    assert j.plans == 1
    if how == "lost":
        j.ladder.leave()
    elif how == "restarted":  # the same pods and layout
        j.enter()
        await j.run(1)
    elif how == "replaced":
        j.enter(members=[replace(a, pod=f"{a.pod}-again") for a in agents(2)])
    else:
        j.slow = False
        await j.run(1)
    j.held.set()
    for _ in range(4):
        await asyncio.sleep(0)
    assert j.asked == [] and j.plans == 1


async def test_a_layout_with_a_device_on_standby_is_kept_as_long_as_nothing_is_known_of_the_device(tmp_path):
    j = Job(tmp_path)
    await j.run(10)
    j.slow = False
    await j.run(200)
    assert len(j.asked) == 1 and j.record.layout.standby == (SLOW,)


async def test_another_pod_brings_devices_that_are_well_and_the_whole_layout_back(tmp_path):
    j = Job(tmp_path)
    await j.run(10)
    j.slow = False
    j.enter(j.record.layout, [replace(a, pod=f"{a.pod}-again") for a in agents(2)])
    await j.run(40)
    assert [bool(layout.standby) for layout, _ in j.asked] == [True, False]
    assert j.asked[1][1].startswith("because of trainer-1 device 0: 2 x tp1pp1") and "standby" not in j.asked[1][1]


async def test_one_plan_is_made_at_a_time_and_steps_do_not_wait_for_it(tmp_path):
    j = Job(tmp_path, planner=nothing, held=asyncio.Event())
    await j.run(5)
    j.factor = 3.0
    await j.run(5)
    assert (j.plans, j.step) == (1, 10)
    j.held.set()
    await j.run(2)
    assert j.plans == 2


async def test_a_device_that_is_slow_now_and_then_changes_layouts_ever_more_rarely(tmp_path):
    j = Job(tmp_path)
    whole = j.record.layout
    for _ in range(40):
        j.slow, j.onset = True, j.step
        await j.run(12)
        j.slow = False
        await j.run(12)
        if j.record.layout != whole:
            j.enter(whole)  # as after a trainer that joins: the job's own layout again
    assert 1 <= len(j.asked) <= 4


async def test_a_planner_that_fails_leaves_training_alone_and_says_so_once(tmp_path, caplog):
    def fails(*args):
        raise ZeroDivisionError("of seconds")

    j = Job(tmp_path, planner=fails)
    await j.run(20)
    j.factor = 3.0
    await j.run(20)
    assert (j.asked, j.plans) == ([], 2)
    lines = [r.getMessage() for r in caplog.records if "no layout is planned" in r.getMessage()]
    assert len(lines) == 1 and lines[0].endswith("ZeroDivisionError: of seconds")


# --- losses ----------------------------------------------------------------------------------------------------------

LEFT = Layout((Replica((Stage((Device(0, 0),), 0, 1), Stage((Device(2, 0),), 1, 2))),))
LOST = Device(1, 0)


def left(job, vocabulary, layout: Layout, speeds, least_gain) -> Options:
    """Of trainers 0 and 2 as a pipeline: a tenth of a percent faster. Nothing else is."""
    faster = layout != LEFT and devices_of(layout) == devices_of(LEFT)
    return Options(layout, dict(speeds), 8.0, 6.0, (Option("Groups", LEFT, 7.992, 0.04),) if faster else ())


def three(folder, **changes) -> Job:
    """Three trainers of which none is slow, after four steps."""
    return Job(folder, planner=left, trainers=3, slow=False, **changes)


async def test_after_a_loss_any_gain_that_reaches_its_cost_leads_to_one_change_that_says_which_trainer_was_lost(
    tmp_path,
):
    j = three(tmp_path)
    await j.run(4)
    assert j.plans == 0
    j.lose(1)
    own = j.record.layout
    await j.run(4)
    assert [asked[1:] for asked in j.inputs] == [(own, {LOST: 0.0}, 0.0)] and j.asked == []
    await j.run(60)
    ((layout, why),) = j.asked
    assert layout == LEFT == j.record.layout
    assert why == (
        "because of the loss of trainer-1: 1 x tp1pp2 is predicted to save 0.008 of 8.000 s of each step, for 0.0 s once"
    )
    ((reason, message),) = j.events
    assert reason == "LayoutMeasured" and message.startswith(
        "the layout that changed because of the loss of trainer-1: "
    )
    assert [asked[1:] for asked in j.inputs[1:]] == [(LEFT, {LOST: 0.0}, LEAST_GAIN)], "a search has chosen this one"
    assert j.ladder.request is None


async def test_the_first_plan_after_a_loss_is_made_while_the_world_forms_and_decided_on_behind_its_first_step(
    tmp_path, caplog
):
    j = three(tmp_path)
    j.lose(1)
    for _ in range(4):
        await asyncio.sleep(0)
    assert (j.plans, j.asked, caplog.records) == (1, [], [])
    await j.run(5)
    assert len(j.asked) == 1 and not caplog.records


async def test_nothing_stays_of_a_loss_once_the_trainer_is_back(tmp_path):
    j = three(tmp_path)
    j.lose(1)
    await j.run(20)
    assert j.ladder.speeds == {LOST: 0.0} and j.plans == 2
    j.asked.clear()
    j.enter()
    await j.run(60)
    assert (j.ladder.speeds, j.plans, j.asked) == ({}, 2, [])
    j.slow, j.onset = True, j.step
    await j.run(1)
    assert j.inputs[2][2:] == ({SLOW: j.ladder.speeds[SLOW]}, LEAST_GAIN)


@pytest.mark.parametrize("held", [False, True], ids=["before a plan", "while one is made"])
async def test_no_layout_is_changed_while_a_trainer_has_registered_that_the_next_world_takes_in(tmp_path, held):
    j = three(tmp_path)
    j.held = asyncio.Event() if held else None
    j.joins = not held
    j.lose(1)
    await j.run(held)
    j.joins = True
    if j.held:
        j.held.set()
    await j.run(40)
    assert (j.plans, j.asked) == (int(held), [])
    j.joins = False
    await j.run(1)
    assert (j.plans, len(j.asked)) == (1, 1)


async def test_a_plan_for_the_devices_left_is_dropped_once_the_trainer_is_back_in_a_world(tmp_path):
    j = three(tmp_path, held=asyncio.Event())
    j.lose(1)
    await j.run(10)
    j.enter()
    j.held.set()
    await j.run(10)
    assert (j.plans, j.asked) == (1, [])


async def test_a_loss_during_a_change_is_planned_for_from_the_world_that_follows_it(tmp_path):
    j = three(tmp_path)
    j.lose(1)
    while not j.asked:
        await j.run(1, changes=False)
    j.lose(1, 2)
    await j.run(MEASURED_STEPS + 1, changes=False)
    assert (len(j.asked), j.events) == (1, [])
    assert j.inputs[-1][1:] == (j.record.layout, {LOST: 0.0, Device(2, 0): 0.0}, 0.0)


@pytest.mark.parametrize("size", [2, 3])
async def test_a_trainer_that_a_job_has_given_up_or_has_not_had_yet_is_not_lost(tmp_path, size):
    j = three(tmp_path)
    two = agents(2)
    j.enter(members=two, size=2)
    await j.run(20)
    j.enter(members=two, size=size)
    await j.run(20)
    assert (j.plans, j.ladder.speeds) == (0, {})


async def test_a_new_coordinator_takes_what_a_job_shall_have_and_has_not_for_lost(tmp_path):
    j = three(tmp_path)
    j.ladder = Ladder(j.job, lambda *request: None, lambda *event: None, j.beside, left)
    j.lose(2)
    await j.run(1)
    assert (j.ladder.speeds, j.plans) == ({Device(2, 0): 0.0}, 1)


async def test_the_speed_of_a_slow_device_is_that_of_its_pod_and_a_lost_one_has_none(tmp_path):
    j = Job(tmp_path, planner=nothing, trainers=3)
    assert j.ladder.speeds_of({0: "pod-0", 1: "pod-1"}) == {}
    j.lose(2)
    await j.run(3)
    assert j.ladder.speeds_of({0: "pod-0", 1: "pod-1", 2: "pod-2"}) == {SLOW: j.ladder.speeds[SLOW]}
    assert j.ladder.speeds_of({0: "pod-0", 1: "pod-1-again"}) == j.ladder.speeds_of({0: "pod-0"}) == {}


async def test_a_slow_device_beside_a_lost_one_is_named_beside_it(tmp_path):
    faster = Layout((Replica((Stage((Device(0, 0),), 0, 1), Stage((SLOW,), 1, 2))),))

    def both(job, vocabulary, layout, speeds, least_gain) -> Options:
        return Options(
            layout, dict(speeds), 10.0, 6.0, () if layout == faster else (Option("Groups", faster, 8.0, 5.0),)
        )

    j = Job(tmp_path, planner=both, trainers=3)
    j.lose(2)
    await j.run(10)
    assert j.asked[0][1].startswith("because of trainer-1 device 0 and the loss of trainer-2: 1 x tp1pp2 ")


@pytest.mark.parametrize("slow_steps", [1, 5], ids=["before a change", "behind one"])
async def test_after_a_checkpoint_is_loaded_what_is_known_counts_from_its_step_on(tmp_path, slow_steps):
    """Steps begin again at a lower number: an onset or a change in a step to come would delay the next change."""
    j = Job(tmp_path, slow=False)
    whole = j.record.layout
    await j.run(50)
    j.slow, j.onset = True, 50
    await j.run(slow_steps)
    assert len(j.asked) == (slow_steps == 5)
    j.asked.clear()
    j.step = j.onset = 0
    j.enter(whole)
    await j.run(20)
    assert len(j.asked) == 1 and j.step == 20


async def test_what_a_loss_costs_counts_through_the_worlds_that_follow_it(tmp_path):
    j = three(tmp_path)
    j.lose(1)
    await j.run(3)
    j.lose(1)
    await j.run(2)
    assert len(j.asked) == 1, "five steps in all"


# --- nodes -----------------------------------------------------------------------------------------------------------


def nothing(job, vocabulary, layout, speeds, least_gain) -> Options:
    """No other layout is faster."""
    return Options(layout, dict(speeds), SECONDS, 6.0)


async def test_a_node_is_wanted_away_once_it_has_cost_more_than_another_and_no_longer_once_it_is_well(tmp_path):
    j = Job(tmp_path, action="ReplaceNode", planner=nothing)
    await j.run(70)
    assert j.ladder.request is None
    await j.run(20)
    found = j.ladder.request
    assert (found.node, found.trainer) == ("node-1", "trainer-1")
    assert found.evidence == (
        "trainer-1 device 0 computes 1.98 x as long as its peers since step 0; it costs 4.000 s of each step"
    )
    j.slow = False
    await j.run(1)
    assert j.ladder.request is None


async def test_a_node_that_the_job_has_left_is_no_longer_wanted_away(tmp_path):
    j = Job(tmp_path, action="ReplaceNode", planner=nothing)
    await j.run(90)
    assert j.ladder.request
    j.enter(members=[replace(a, pod=f"{a.pod}-again") for a in agents(2)])
    assert j.ladder.request is None


async def test_no_node_is_wanted_away_under_migrate(tmp_path):
    j = Job(tmp_path, planner=nothing)
    await j.run(200)
    assert j.ladder.request is None and j.asked == []


# --- offers ----------------------------------------------------------------------------------------------------------


def cluster_job(folder, **batch: int):
    job = make_job(folder, trainers=2, devices_per_trainer=4)
    model = replace(job.model, layers=8)
    parallel = ParallelConfig(tokens_per_replica=256, pipeline=2, hardware="a100-80g")
    return replace(job, model=model, parallelism=parallel, batch=replace(job.batch, tokens_per_step=8192, **batch))


def layout_of(job) -> Layout:
    return next_generation(job, 1, "me", agents(2, devices=4), (), at_checkpoint(job, None)).layout


def test_offers_are_layouts_of_the_same_devices_on_which_the_longest_sequence_fits(tmp_path):
    short, long = cluster_job(tmp_path), cluster_job(tmp_path, max_sequence_tokens=1024)
    layout, speeds = layout_of(short), {Device(0, 1): 0.1}
    found = offers(short, 320, layout, speeds)
    assert found.layouts and found.stay > found.healthy
    for option in found.layouts:
        assert devices_of(option.layout) == devices_of(layout) and option.seconds < found.stay
        assert runs(short, layout, option.layout)
    assert not capacity_fault(long, layout)
    assert all(not capacity_fault(long, o.layout) for o in offers(long, 320, layout, speeds).layouts)
    few = replace(layout, replicas=layout.replicas[:3], standby=tuple(
        d for r in layout.replicas[3:] for s in r.stages for d in s.devices
    ))  # fmt: skip
    assert runs(short, layout, few) and not runs(long, layout, few)
    assert not runs(short, layout, replace(few, standby=()))


def stages_on(*stages: tuple[tuple[Device, ...], int, int], aside: tuple[Device, ...] = ()) -> Layout:
    """One replica."""
    return Layout((Replica(tuple(Stage(*stage) for stage in stages)),), aside)


A, B, C = Device(0, 0), Device(1, 0), Device(2, 0)
BOTH = stages_on(((A, B), 0, 2))


@pytest.mark.parametrize(
    ("layout", "changes", "longest", "engine_runs"),
    [
        (stages_on(((A,), 0, 1), ((B,), 1, 2)), {}, 64, True),
        (stages_on(((A,), 0, 2), aside=(B,)), {}, 64, True),
        (stages_on(((A, B), 0, 1), ((), 1, 2)), {}, 64, False),  # nothing computes the second stage
        (stages_on(((A,), 0, 2), ((B,), 2, 2)), {}, 64, False),  # it has no layers
        (stages_on(((A,), 0, 2)), {}, 64, False),  # a device is missing
        (stages_on(((A,), 0, 2), aside=(B, C)), {}, 64, False),  # one is not there
        (stages_on(((A,), 0, 2), aside=(C,)), {}, 64, False),
        (stages_on(((A,), 0, 2), aside=(B,)), {}, 512, False),  # a replica holds 256 tokens
        (stages_on(((A,), 0, 1), ((B,), 1, 2)), {"custom": "models.py:Model"}, 64, False),
        (stages_on(((A,), 0, 2), aside=(B,)), {"custom": "models.py:Model"}, 64, True),
    ],
)
def test_a_layout_is_offered_only_if_the_engine_runs_it_on_just_the_present_devices(
    tmp_path, monkeypatch, layout, changes, longest, engine_runs
):
    job = make_job(tmp_path, batch=replace(make_job(tmp_path).batch, max_sequence_tokens=longest))
    job = replace(job, model=replace(job.model, **changes))
    assert runs(job, BOTH, layout) is engine_runs
    one = Option("Groups", layout, 8.0, 5.0)
    monkeypatch.setattr(
        "coxswain_coordinator.stragglers.offers.options_for", lambda *_, **__: Options(BOTH, {}, 9.0, 6.0, (one,))
    )
    assert offers(job, 320, BOTH, {}).layouts == ((one,) if engine_runs else ())


@pytest.mark.parametrize(
    ("changes", "widest"), [({}, 4), ({"optimizer": "Muon"}, 1), ({"custom": "models.py:Model"}, 1)]
)
def test_the_planner_counts_all_devices_as_well_and_no_tensor_groups_where_the_engine_has_none(
    tmp_path, changes, widest
):
    job = cluster_job(tmp_path)
    job = replace(job, optimizer=replace(job.optimizer, kind=changes.get("optimizer", "AdamW")))
    job = replace(job, model=replace(job.model, custom=changes.get("custom", job.model.custom)))
    costs = costs_of(job, 320, layout_of(job))
    cluster = costs.cluster
    assert (cluster.max_tensor, cluster.sequence, cluster.global_batch) == (widest, 256, 32)
    assert [(node.name, len(node.devices)) for node in cluster.nodes] == [("trainer-0", 4), ("trainer-1", 4)]
    assert all(device.slowdown == 1.0 for node in cluster.nodes for device in node.devices)
    few = replace(job, batch=replace(job.batch, tokens_per_step=128))
    assert (costs_of(few, 320, layout_of(job)).cluster.global_batch, costs_of(few, 320, layout_of(job)).cluster.sequence) == (
        4 * len(layout_of(job).replicas), 128
    )  # fmt: skip


@pytest.mark.parametrize("each", [1, 2, 8])
@pytest.mark.parametrize("lost", [0, 1, 2], ids=["first", "middle", "last"])
@pytest.mark.parametrize("changes", [{}, {"optimizer": "Muon"}, {"custom": "models.py:Model"}], ids=str)
def test_offers_after_a_loss_are_faster_layouts_of_just_the_devices_that_are_left(tmp_path, each, lost, changes):
    """Of three trainers; one whole replica is left of those with two stages, and the devices of the others stand by."""
    job = replace(cluster_job(tmp_path), trainers=3, devices_per_trainer=each)
    custom, kind = changes.get("custom", job.model.custom), changes.get("optimizer", "AdamW")
    job = replace(job, model=replace(job.model, custom=custom), optimizer=replace(job.optimizer, kind=kind))
    left = [Device(t, d) for t in range(3) if t != lost for d in range(each)]
    whole = Layout((Replica((Stage((left[0],), 0, 8),)),), tuple(left[1:]))
    speeds = {Device(lost, d): 0.0 for d in range(each)}
    found = offers(job, 320, whole, speeds, 0.0)
    assert found.layouts and (found.current, found.speeds) == (whole, speeds)
    for option in found.layouts:
        assert devices_of(option.layout) == set(left) and option.seconds < found.stay < float("inf")
        degrees = {len(s.devices) for r in option.layout.replicas for s in r.stages}
        assert degrees == {1} or not changes
    never = offers(job, 320, whole, {}, 0.0)
    assert never.speeds == {} and (never.layouts == found.layouts or lost == 2), "one that was never there is no other"


def test_a_gain_below_what_a_search_is_worth_is_offered_after_a_loss_alone(tmp_path, monkeypatch):
    asked = list[float]()
    monkeypatch.setattr(
        "coxswain_coordinator.stragglers.offers.options_for",
        lambda *_, least_gain: asked.append(least_gain) or Options(BOTH, {}, 9.0, 6.0),
    )
    job = make_job(tmp_path)
    offers(job, 320, BOTH, {}, 0.0)
    offers(job, 320, BOTH, {})
    assert asked == [0.0, LEAST_GAIN]


# --- the whole coordinator -------------------------------------------------------------------------------------------


async def at_once(planner, *args):
    return planner(*args)


@pytest.mark.parametrize("action", ["Migrate", "Rebalance"])
async def test_a_confirmed_straggler_leads_to_one_planned_change_under_migrate_and_to_none_under_rebalance(
    tmp_path, action
):
    batch = replace(make_job(tmp_path).batch, max_sequence_tokens=128)
    job = make_job(tmp_path, stop_steps=64, batch=batch, stragglers=StragglerConfig(action=action))
    async with training(job) as lead:
        ladder, session = lead.state.ladder, lead.state.session

        def planned(job, vocabulary, layout, speeds, least_gain) -> Options:
            return Options(layout, dict(speeds), 2.0, 1.0, (Option("Layers", one_replica(), 1.5, 0.5),))

        ladder._beside, ladder._planner = at_once, planned
        await run(lead, ONSET)
        while not session.move and session.book.open < ONSET + 20:
            await run(lead, 1, 3.0)
        if action == "Rebalance":
            assert session.move is None
            return
        step = session.move.step
        assert session.move.saves is False and ONSET < step < ONSET + 20
        await moved_to(lead, step)
        session = lead.state.session
        assert (session.record.layout, session.book.open, session.record.live.step) == (one_replica(), step, step)
        event = lead.state.events.latest()[-1]
        assert event.reason == "LayoutChanged" and "because of trainer-1 device 0: 1 x tp1pp2 is predicted to save" in (
            event.message
        )
        assert lead.state.failures == 0 and not lead.state.changes.why


@pytest.mark.parametrize(
    "broken",
    ["coxswain_coordinator.stragglers.ladder.decide", "coxswain.stragglers.detector.Detector.observe",
     "coxswain_coordinator.stragglers.watch.StragglerWatch.planned"],
)  # fmt: skip
async def test_an_error_in_what_watches_slow_devices_is_logged_once_and_training_goes_on(
    tmp_path, monkeypatch, caplog, broken
):
    def fails(*args):
        raise ZeroDivisionError("of seconds")

    job = make_job(tmp_path, stop_steps=64, stragglers=StragglerConfig(action="Migrate"))
    async with training(job) as lead:
        ladder, session = lead.state.ladder, lead.state.session
        ladder._beside, ladder._planner = at_once, offered
        await run(lead, ONSET)
        monkeypatch.setattr(broken, fails)
        await run(lead, 20, 3.0)
        assert session.book.open == ONSET + 20 and not lead.work.done()
        assert session.move is None and lead.state.failures == 0
    lines = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert lines == [
        "slow devices: ZeroDivisionError: of seconds; nothing is done about them in this step, and training goes on"
    ]


async def test_an_error_as_the_ladder_decides_on_a_plan_leaves_it_able_to_decide_later(tmp_path, monkeypatch, caplog):
    def fails(view):
        if view.options:
            raise ZeroDivisionError("of seconds")
        return decide(view)

    j = Job(tmp_path)
    monkeypatch.setattr("coxswain_coordinator.stragglers.ladder.decide", fails)
    await j.run(1)
    monkeypatch.undo()
    await j.run(20)
    said = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert len(j.asked) == 1 and len(said) == 1 and said[0].startswith("slow devices: ZeroDivisionError: of seconds")


@pytest.mark.parametrize("broken", ["watch.places_of", "watch.replica_speeds", "ladder.devices_of"])
async def test_an_error_as_a_world_is_entered_leaves_no_speeds_of_the_world_before(tmp_path, monkeypatch, broken):
    def fails(*args):
        raise ZeroDivisionError("of seconds")

    job = make_job(tmp_path, stop_steps=64, stragglers=StragglerConfig(action="Rebalance"))
    job = replace(job, stragglers=StragglerConfig(action="Migrate" if "ladder" in broken else "Rebalance"))
    async with training(job) as lead:
        await run(lead, ONSET)
        lead.state.ladder._beside, lead.state.ladder._planner = at_once, nothing
        while not lead.state.stragglers.speeds:
            await run(lead, 1, 3.0)
        step = lead.state.session.book.open
        lead.state.mark_world_lost("rank 1 ended")
        monkeypatch.setattr(f"coxswain_coordinator.stragglers.{broken}", fails)
        register(lead, *holds(lead, step))
        await begun(lead, 2)
        await run(lead, 2)
        assert not lead.work.done() and lead.state.session.book.open == step + 2
        assert "ladder" in broken or not lead.state.stragglers.speeds


async def test_a_world_that_fails_before_its_requested_change_keeps_the_layout_that_it_had(tmp_path):
    job = make_job(tmp_path, batch=replace(make_job(tmp_path).batch, max_sequence_tokens=128))
    async with training(job) as lead:
        await lead.close(0, 1)
        before = lead.state.session.record.layout
        lead.state.request_layout(one_replica(), "trainer-1 is slow")
        lead.state.mark_world_lost("rank 1 ended")
        register(lead, *holds(lead, 2))
        await begun(lead, 2)
        assert lead.state.session.record.layout == before and not lead.state.changes.why


async def test_the_report_names_the_node_that_the_ladder_wants_away(tmp_path):
    async with training(make_job(tmp_path)) as lead:
        assert job_report(lead.state).replace_node is None
        lead.state.ladder.request = NodeRequest("node-1", "trainer-1", "slow")
        assert job_report(lead.state).replace_node == NodeRequest("node-1", "trainer-1", "slow")
