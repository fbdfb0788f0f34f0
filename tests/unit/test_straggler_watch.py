"""The coordinator's watch over stragglers, in virtual steps: what it probes, reports, and gives to planners."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from msgspec.structs import replace

from coxswain.config import StragglerConfig
from coxswain.ladder.speeds import STEP, bucket
from coxswain.layout import Device, Layout
from coxswain.membership.values import Sequence
from coxswain.plan.values import Slice, Task
from coxswain.planlog import Generation
from coxswain.stragglers.values import Cause
from coxswain.wire import StepPlan, StepReport
from coxswain_coordinator.steps import shares
from coxswain_coordinator.stragglers.figures import Numbers, places_of, step_of
from coxswain_coordinator.stragglers.speeds import replica_speeds
from coxswain_coordinator.stragglers.watch import StragglerWatch, thresholds_of
from coxswain_coordinator.stragglers.words import Straggler
from coxswain_coordinator.world.formation import at_checkpoint, next_generation, world_of
from tests.unit.coordinator_fakes import make_job
from tests.unit.coordinator_samples import SHAPES, agents

HEALTHY = 20  # steps, longer than a history
PROBE = 0.001  # seconds of a healthy device


class Gauge:
    def __init__(self) -> None:
        self.series: dict[tuple[object, ...], float] = {}

    def labels(self, *names: object) -> Gauge:
        self.names = names
        return self

    def set(self, value: float) -> None:
        self.series[self.names] = value

    def clear(self) -> None:
        self.series.clear()


@dataclass
class Cluster:
    """A job of some replicas of one rank each; devices of `slow` take so many times as long, (trainer, device)."""

    folder: object
    action: str = "Rebalance"
    trainers: int = 4
    slow: dict[int, float] = field(default_factory=dict)
    paused: set[int] = field(default_factory=set)  # trainers that take ten times as long in the next step alone
    answers: bool = True
    accelerators: bool = False
    seconds: float = 1.0  # of a step
    step: int = 0
    generation: int = 0

    def __post_init__(self) -> None:
        self.events: list[tuple[str, str, bool]] = []
        self.gauge, self.job = Gauge(), make_job(self.folder, trainers=self.trainers)
        self.probed: list[tuple[int, frozenset[int]]] = []
        config = StragglerConfig(action=self.action)
        clock, record = lambda: 100.0 + self.step, lambda *e: self.events.append(e)
        self.watch = StragglerWatch(config, clock, record, self.gauge, self.accelerators)
        self.enter(agents(self.trainers))

    def enter(self, members, layout: Layout | None = None) -> None:
        """The next world begins with the next step."""
        self.generation += 1
        record = next_generation(self.job, self.generation, "me", members, (), at_checkpoint(self.job, None), layout)
        self.record = replace(record, first_step=self.step)
        self.world = world_of(self.record, members, 320)
        self.watch.enter(self.record, self.world, [f"node-{n}" for n in range(len(record.trainers))], {})

    def run(self, steps: int) -> None:
        for _ in range(steps):
            asked = self.watch.take_probes()
            if asked:
                self.probed.append((self.step, asked))
            plan = plan_of(self.step, self.trainers, self.watch.speeds)
            reports = {s.rank: self._report(s.rank, s.device.trainer, plan, asked) for s in self.world.seats}
            self.watch.observe(plan, reports)
            self.paused.clear()
            self.step += 1

    def _report(self, rank: int, trainer: int, plan: StepPlan, asked: frozenset[int]) -> StepReport:
        factor = self.slow.get(trainer, 1.0)
        work = sum(t.seconds * (plan.speeds[rank] if plan.speeds else 1) for t in plan.tasks if rank in t.replicas)
        seconds = work * factor * (10 if trainer in self.paused else 1)
        found = StepReport(self.generation, self.step, rank, 1.0, 0, 1.0, 1e-3, self.seconds, seconds, 0.0, 0.0)
        return replace(found, probe_seconds=PROBE * factor) if self.answers and rank in asked else found

    @property
    def reasons(self) -> list[str]:
        return [reason for reason, *_ in self.events]


def plan_of(step: int, replicas: int, speeds: tuple[float, ...] = ()) -> StepPlan:
    """A second of work for each replica; a slow one takes longer by the plan."""
    tasks = tuple(
        Task(r, "pack", (r,), (Slice(r, r, 0, 8),), 1 / (speeds[r] if speeds else 1)) for r in range(replicas)
    )
    sequences = tuple(Sequence("docs", 0, r, 0, 8, 8) for r in range(replicas))
    return StepPlan(1, step, sequences, tasks, (), 8, "", 1.0, 1.0, speeds=speeds)


def slowed(folder, factor: float = 2.0, **changes) -> Cluster:
    """Trainer 1 has just become slow."""
    found = Cluster(folder, **changes)
    found.run(HEALTHY)
    found.slow[1] = factor
    return found


# --- what is done ----------------------------------------------------------------------------------------------------


def test_a_slow_device_is_probed_confirmed_named_and_planned_around_within_ten_steps(tmp_path):
    c = slowed(tmp_path)
    c.run(10)
    assert c.reasons == ["StragglerDetected"]
    ((_, words, warning),) = c.events
    assert words.startswith(
        "trainer-1 device 0 (node-1) computes 2.00 x as long as its work takes on peers, or took before"
    )
    assert warning and "since step 21" in words and "Rebalance: replica 1 is planned at speed 0.51" in words
    assert c.watch.speeds == (1.0, pytest.approx(0.5, rel=0.025), 1.0, 1.0)
    assert {1} < c.probed[-1][1], "a suspect is compared with healthy ranks in the same step"


def test_what_a_straggler_computes_stays_measured_by_its_work_once_plans_give_it_less(tmp_path):
    c = slowed(tmp_path)
    c.run(60)
    assert c.reasons == ["StragglerDetected"]
    assert c.watch.stragglers[0].slowdown == 2.0
    c.slow.clear()
    c.run(40)
    assert c.reasons == ["StragglerDetected", "StragglerRecovered"]
    assert (c.watch.speeds, c.watch.reports, c.gauge.series) == ((), (), {})


def test_a_device_on_standby_is_compared_with_its_own_first_probe(tmp_path):
    c = Cluster(tmp_path, slow={1: 1.08})  # for good: less than makes a straggler
    c.run(HEALTHY)
    assert 1 in c.probed[-1][1]
    whole = c.world.layout
    c.enter(agents(4), replace(whole, replicas=(*whole.replicas[:1], *whole.replicas[2:]), standby=(Device(1, 0),)))
    assert c.watch.slowdown_aside(Device(1, 0), 1.08 * PROBE) == pytest.approx(1.0)
    assert c.watch.slowdown_aside(Device(1, 0), 2.16 * PROBE) == pytest.approx(2.0)
    c.enter([replace(agent, pod=f"{agent.pod}-again") for agent in agents(4)], c.world.layout)
    assert np.isnan(c.watch.slowdown_aside(Device(1, 0), PROBE))


def test_the_times_of_64_steps_are_remembered_and_no_more(tmp_path):
    c = Cluster(tmp_path)
    c.run(100)
    assert sorted(c.watch.times) == list(range(36, 100))


def test_a_pause_of_one_step_fires_nothing(tmp_path):
    c = Cluster(tmp_path)
    c.run(HEALTHY)
    probed = len(c.probed)
    for _ in range(3):
        c.paused.add(2)
        c.run(10)
    assert (c.events, c.watch.speeds) == ([], ())
    assert len(c.probed) == probed + 3, "each pause is probed, and the probe finds nothing"


def test_on_accelerators_plans_heed_a_suspect_until_its_probe_has_answered(tmp_path):
    c = Cluster(tmp_path, accelerators=True)
    c.run(HEALTHY)
    c.paused.add(2)
    c.run(1)
    assert c.watch.speeds == (1.0, 1.0, pytest.approx(0.1, rel=0.05), 1.0) and c.events == []
    c.run(1)
    assert (c.watch.speeds, c.events) == ((), []), "the probe finds nothing"
    c = slowed(tmp_path, accelerators=True, answers=False)
    c.run(10)
    assert c.watch.speeds == (1.0, pytest.approx(0.5, rel=0.025), 1.0, 1.0) and c.events == []
    c.seconds = 0.9
    c.run(1)
    assert c.watch.speeds == (), "in short steps a pause is as long"


def test_an_answer_that_does_not_come_is_asked_for_again_and_without_it_no_device_is_a_straggler(tmp_path):
    c = slowed(tmp_path, answers=False)
    c.run(30)
    steps = [step for step, ranks in c.probed if 1 in ranks and step > HEALTHY]
    assert len(steps) >= 3 and min(np.diff(steps)) == 4
    assert c.events == []


def test_one_request_is_made_while_its_answer_is_under_way(tmp_path):
    c = slowed(tmp_path)
    before = len(c.probed)
    c.run(10)
    assert len(c.probed) - before <= 2


def test_the_next_request_may_follow_an_answer_at_once(tmp_path):
    c = Cluster(tmp_path, trainers=8)
    c.run(HEALTHY)
    before = len(c.probed)
    c.paused.add(2)
    c.run(1)
    c.paused.add(max(set(range(8)) - c.watch.probes))  # its probe, if it made one, would find nothing at once
    c.run(2)
    assert [step for step, _ in c.probed[before:]] == [HEALTHY + 1, HEALTHY + 2]


@pytest.mark.parametrize("action", ["None", "Warn", "Rebalance"])
def test_each_action_does_what_it_says_and_no_more(tmp_path, action):
    c = slowed(tmp_path, action=action)
    c.run(20)
    watched = action != "None"
    assert c.reasons == ["StragglerDetected"] * watched
    assert [r.trainer for r in c.watch.reports] == ["trainer-1"] * watched
    assert c.gauge.series == ({("trainer-1", "0", "node-1"): 2.0} if watched else {})
    assert bool(c.watch.speeds) == c.watch.plans_around == (action == "Rebalance")
    assert bool(c.probed) == watched


def test_a_report_has_the_five_slowest_with_place_time_cause_and_what_was_done(tmp_path):
    c = Cluster(tmp_path, trainers=16)
    c.run(HEALTHY)
    c.slow.update({n: 1.5 + n / 10 for n in range(7)})
    c.run(16)
    found = c.watch.reports
    assert [(r.trainer, r.slowdown) for r in found] == [(f"trainer-{n}", 1.5 + n / 10) for n in (6, 5, 4, 3, 2)]
    assert {(r.device, r.node, r.since_step, r.since, r.cause) for r in found[:1]} == {
        (0, "node-6", 21, 121.0, "Device")
    }
    assert found[0].action.startswith("Rebalance: replica 6 is planned at speed 0.48 from the next plans on")
    c.watch.planned([plan_of(40, 16), plan_of(41, 16, c.watch.speeds), plan_of(42, 16, c.watch.speeds)])
    assert c.watch.reports[0].action.endswith("from step 41 on")


# --- across worlds ---------------------------------------------------------------------------------------------------


def test_a_straggler_stays_one_in_the_next_world(tmp_path):
    c = slowed(tmp_path)
    c.run(12)
    c.enter(agents(4))
    assert c.watch.speeds[1] < 1 and [r.trainer for r in c.watch.reports] == ["trainer-1"]
    c.run(5)
    assert c.reasons == ["StragglerDetected"]


def test_the_speed_of_a_device_never_goes_to_the_device_of_another_pod_or_seat(tmp_path):
    c = slowed(tmp_path)
    c.run(12)
    replaced = [replace(a, pod=f"{a.pod}-again") if a.name == "trainer-1" else a for a in agents(4)]
    c.enter(replaced)
    assert (c.watch.speeds, c.watch.reports, c.gauge.series) == ((), (), {})


def test_a_world_that_cannot_be_watched_has_no_series_of_the_stragglers_of_the_one_before(tmp_path):
    c = slowed(tmp_path)
    c.run(10)
    assert c.gauge.series
    with pytest.raises(ValueError, match="shorter"):
        c.watch.enter(next_generation(c.job, 2, "me", agents(4), (), at_checkpoint(c.job, None)), c.world, [], {})
    assert (c.watch.reports, c.gauge.series) == ((), {})


def test_fewer_replicas_never_get_the_speeds_of_more(tmp_path):
    c = slowed(tmp_path)
    c.run(12)
    c.trainers = 2
    c.enter(agents(2))
    assert c.watch.speeds == (1.0, pytest.approx(0.5, rel=0.025))
    c.run(2)


def test_a_straggler_has_the_place_of_its_seat_from_the_first_plan_of_a_world_on(tmp_path):
    """Plans are committed before the first step is closed."""
    c = slowed(tmp_path)
    c.run(12)
    c.trainers = 1
    c.enter([agents(2)[1]])
    c.watch.planned([plan_of(c.step, 1, c.watch.speeds)])
    assert c.watch.reports[0].action.startswith("Rebalance: replica 0 is planned at speed 0.51 from step 32 on")


@pytest.mark.parametrize("action", ["Warn", "Rebalance"])
def test_no_straggler_is_reported_with_a_step_to_come_where_a_checkpoint_is_loaded(tmp_path, action):
    c = slowed(tmp_path, action=action)
    c.run(12)
    c.watch.planned([plan_of(c.step, 4, c.watch.speeds)])
    c.step = 8
    c.enter(agents(4))
    for _ in range(3):
        (found,) = c.watch.reports
        assert found.since_step == 8 and "step" not in found.action
        c.run(1)


def test_a_rank_without_a_report_has_no_figures_and_changes_nothing(tmp_path):
    c = slowed(tmp_path)
    c.run(12)
    plan = plan_of(c.step, 4, c.watch.speeds)
    reports = {s.rank: c._report(s.rank, s.rank, plan, frozenset()) for s in c.world.seats}
    del reports[1]
    c.watch.observe(plan, reports)
    assert [r.trainer for r in c.watch.reports] == ["trainer-1"]


# --- the pure parts --------------------------------------------------------------------------------------------------


def test_work_is_the_plans_seconds_at_speed_one_for_every_member_of_a_ring_times_its_stages_share(tmp_path):
    world = Cluster(tmp_path, trainers=2).world
    ring = Task(0, "ring", (0, 1), (Slice(0, 0, 0, 3), Slice(1, 0, 3, 6)), 4.0)  # at speed 0.5: 2 s of work each
    plan = replace(plan_of(7, 2, (0.5, 1.0)), tasks=(ring, Task(1, "pack", (1,), (Slice(1, 1, 0, 8),), 1.0)))
    reports = {r: StepReport(1, 7, r, 1.0, 0, 1.0, 1e-3, 9.0, 3.0, 0.25, 0.0) for r in range(2)}
    found = step_of(plan, reports, world.seats, {1: 0.5})
    assert found.work.tolist() == [2.0, 1.5]
    assert (found.compute.tolist(), found.host.tolist(), found.number) == ([3.0, 3.0], [0.25, 0.25], 7)
    assert found.longest.tolist() == [8.0, 8.0]


def test_places_say_which_pod_node_stage_and_shape_each_rank_has(tmp_path):
    job = make_job(tmp_path, trainers=2)
    parallel = replace(job.parallelism, layout=SHAPES)
    record = next_generation(
        replace(job, parallelism=parallel), 1, "me", agents(2, devices=2), (), at_checkpoint(job, None)
    )
    pods = Numbers()
    assert pods["another"] == 0
    found = places_of(record, ["node-a", ""], pods)
    assert [(p.trainer, p.device, p.node) for p in found] == [(1, 0, 0), (1, 1, 0), (2, 0, 1), (2, 1, 1)]
    assert [(p.replica, p.stage, p.tensor, p.kind) for p in found] == [
        (0, 0, 0, "1/2"), (0, 0, 1, "1/2"), (0, 1, 0, "1/1"), (1, 0, 0, "2/1"),
    ]  # fmt: skip
    assert isinstance(record, Generation) and sorted(shares(record.layout, job.model)) == [0, 1, 2, 3]


def test_a_replica_is_as_fast_as_its_slowest_rank(tmp_path):
    job = make_job(tmp_path, trainers=2)
    shaped = replace(job, parallelism=replace(job.parallelism, layout=SHAPES))
    record = next_generation(shaped, 1, "me", agents(2, devices=2), (), at_checkpoint(job, None))
    found = replica_speeds(np.array([1.2, 1.0, 3.0, 1.0]), record.layout.ranks(), ())
    assert found == (pytest.approx(1 / 3, rel=0.025), 1.0)
    assert replica_speeds(np.ones(4), record.layout.ranks(), found) == ()


@pytest.mark.parametrize("slowdown", [1.02, 1.1, 1.5, 2.0, 4.0, 12.5])
def test_a_rounded_speed_is_within_a_fortieth_and_small_changes_do_not_change_it(slowdown):
    power = bucket(slowdown, 0)
    assert power >= 1
    assert slowdown < 1.03 or STEP**power == pytest.approx(slowdown, rel=0.026)
    assert {bucket(slowdown * f, power) for f in (0.99, 1.01)} == {power}
    assert bucket(slowdown * 1.1, power) > power
    assert bucket(1.0, power) == 0


def test_a_slow_rank_with_few_layers_slows_its_replica_only_as_far_as_it_holds_up_the_stages(tmp_path):
    c = slowed(tmp_path)
    c.watch.enter(c.record, c.world, [f"node-{n}" for n in range(4)], {1: 0.75})
    work = c._report
    c._report = lambda rank, trainer, plan, asked: (
        found := work(rank, trainer, plan, asked),
        replace(found, compute_seconds=found.compute_seconds * (0.75 if rank == 1 else 1.0)),
    )[1]
    c.run(12)
    assert c.watch.stragglers[0].slowdown == 2.0
    assert c.watch.speeds[1] == pytest.approx(1 / 1.5, rel=0.026)


def test_thresholds_follow_the_job(tmp_path):
    found = thresholds_of(StragglerConfig(action="Warn", threshold_percent=40, window_steps=5))
    assert (found.enter, found.leave, found.probe, found.window) == (1.4, 1.2, pytest.approx(1.3), 5)
    assert found.unknown == 1.4 and thresholds_of(StragglerConfig()).unknown == 1.25


def test_a_whole_node_is_said_to_be_slow():
    found = Straggler("trainer-1", 0, "", 2.0, 5, 1.0, Cause.NODE, 0, None)
    assert (found.name, found.report.cause) == ("trainer-1 device 0", "Node")
    assert found.action == "Warn: it is named and nothing else is done"
