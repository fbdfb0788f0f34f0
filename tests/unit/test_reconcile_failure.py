"""The failure rules as a table, and what losses lead to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from coxswain.wire import Fault, JobEvent
from coxswain_operator.pod_decoding import GONE as GONE_NODE
from coxswain_operator.reconcile.failure_policy import (
    Verdict,
    failure_events,
    find_fatal,
    judge,
    record_restarts,
    verdicts,
)
from coxswain_operator.reconcile.member_failures import MemberFailure
from coxswain_operator.reconcile.result import Termination
from coxswain_operator.reconcile.spec import Rule
from coxswain_operator.reconcile.status import JobStatus
from coxswain_operator.reconcile.times import stamp
from coxswain_operator.views import Event, PodView
from tests.unit.fake_cluster import report, report_text
from tests.unit.reconcile_scenes import COORDINATOR, GANG, LOADER, NOW, TRAINER, Scene, ended
from tests.unit.test_reconcile_lifecycle import passes, running


def rule(action: str = "Fail", **selectors: Any) -> Rule:
    return msgspec.convert({"name": "mine", "action": action, **selectors}, Rule)


def loss(code: int | None = 1, reason: str = "Error", disrupted: bool = False, **pod: Any) -> MemberFailure:
    view = PodView("demo-trainer-2-0", "u", "trainer", 2, 0, phase="Failed", exit_code=code, reason=reason, **pod)
    return MemberFailure("trainer-2", reason, "trainer-2: it failed", disrupted, code, view)


IN_2 = {"onExitCodes": {"operator": "In", "values": [2, 3]}}
NOT_IN_1 = {"onExitCodes": {"operator": "NotIn", "values": [1]}}
PRESSURE = {("MemoryPressure", "True")}

TABLE: dict[str, tuple[MemberFailure, Rule, bool]] = {
    "an exit code in the list matches In": (loss(2), rule(**IN_2), True),
    "an exit code that is not in the list does not match In": (loss(1), rule(**IN_2), False),
    "an exit code that is not in the list matches NotIn": (loss(137), rule(**NOT_IN_1), True),
    "no exit code at all matches neither In nor NotIn": (loss(None), rule(**NOT_IN_1), False),
    "a pod condition matches by type": (
        loss(conditions=frozenset({("DisruptionTarget", "True")})),
        rule(onPodConditions=[{"type": "DisruptionTarget"}]),
        True,
    ),
    "a pod condition that is False does not match": (
        loss(conditions=frozenset({("DisruptionTarget", "False")})),
        rule(onPodConditions=[{"type": "DisruptionTarget"}]),
        False,
    ),
    "a pod that vanished counts as disrupted": (
        MemberFailure("trainer-2", "Vanished", "gone", disrupted=True),
        rule(onPodConditions=[{"type": "DisruptionTarget"}]),
        True,
    ),
    "a container's reason matches": (loss(137, "OOMKilled"), rule(onReasons=["OOMKilled"]), True),
    "another reason does not": (loss(137, "Error"), rule(onReasons=["OOMKilled"]), False),
    "a condition of the node matches": (
        loss(node_conditions=frozenset(PRESSURE)),
        rule(onNodeConditions=[{"type": "MemoryPressure"}]),
        True,
    ),
    "a condition that the node lacks does not": (
        loss(node_conditions=frozenset({("DiskPressure", "True")})),
        rule(onNodeConditions=[{"type": "MemoryPressure"}]),
        False,
    ),
    "of two selectors one is not enough": (loss(2, "Error"), rule(**IN_2, onReasons=["OOMKilled"]), False),
    "a rule that names nothing matches nothing": (loss(1), rule(), False),
}


@pytest.mark.parametrize(("what", "mine", "holds"), TABLE.values(), ids=TABLE.keys())
def test_a_rule_matches_when_all_that_it_names_holds(what: MemberFailure, mine: Rule, holds: bool) -> None:
    assert (judge(what, (mine,)).rule == "mine") is holds


def test_the_first_rule_that_matches_wins() -> None:
    first, second = rule("RestartJob", **NOT_IN_1), rule("Fail", **IN_2)
    assert judge(loss(2), (first, second)).action == "RestartJob"


@pytest.mark.parametrize(
    ("what", "action"),
    [
        (loss(1), "RestartTrainer"),
        (loss(2), "Fail"),
        (loss(143, disrupted=True), "RestartTrainerIgnoringLimit"),
        (loss(2, disrupted=True), "RestartTrainerIgnoringLimit"),
        (MemberFailure("loader-0", "Vanished", "gone", disrupted=True), "RestartTrainerIgnoringLimit"),
    ],
)
def test_without_rules_only_the_users_fault_fails_and_disruptions_are_not_counted(
    what: MemberFailure, action: str
) -> None:
    assert judge(what, ()).action == action


IGNORED = {"name": "mine", "action": "RestartTrainerIgnoringLimit", "onExitCodes": {"operator": "In", "values": [1]}}


@pytest.mark.parametrize(
    ("delay", "worked", "lost", "rules", "rule"),
    [
        (2, 599, ended(1), [], "Escalation"),
        (2, 600, ended(1), [], "Default"),  # its last replacement worked for long
        (1, 599, ended(1), [], "Default"),
        (2, 599, ended(1, deleting=True), [], "Disruption"),
        (2, 599, ended(1), [{**IGNORED, "action": "RestartTrainer"}], "Escalation"),
        (2, 599, ended(1), [{**IGNORED, "action": "RestartJob"}], "mine"),
        (2, 599, ended(1), [IGNORED], "mine"),
    ],
)
def test_a_counted_failure_escalates_when_the_last_replacements_failed_soon(
    delay: int, worked: float, lost: PodView, rules: list[dict[str, Any]], rule: str
) -> None:
    number = {"name": "trainer-1", "number": 3, "since": stamp(NOW - worked - delay), "delaySeconds": delay}
    pods = (COORDINATOR, replace(lost, incarnation=3))
    scene = Scene(pods, spec={"failurePolicy": {"rules": rules}}, status={"incarnations": [number]})
    (verdict,) = verdicts(scene.context())
    assert (verdict.rule, verdict.whole_job) == (rule, rule == "Escalation" or "RestartJob" in str(rules))


def test_a_loader_that_keeps_failing_is_replaced_alone() -> None:
    number = {"name": "loader-0", "number": 5, "since": stamp(NOW - 60), "delaySeconds": 8}
    pods = (COORDINATOR, ended(1, replace(LOADER, incarnation=5)), *GANG[2:])
    (verdict,) = verdicts(Scene(pods, status={"incarnations": [number]}).context())
    assert (verdict.rule, verdict.action, verdict.counted) == ("Default", "RestartTrainer", True)


ALONE, WHOLE = Verdict(loss(), "r", "RestartTrainer"), Verdict(loss(), "r", "RestartJob")
WHOLE_IGNORED = Verdict(loss(), "r", "RestartJobIgnoringLimit")
GONE = Verdict(loss(disrupted=True), "Disruption", "RestartTrainerIgnoringLimit")
PLANNED = judge(replace(loss(3), planned=True), ())


@pytest.mark.parametrize(
    ("found", "counted", "ignored", "attempt"),
    [
        ((ALONE,), 1, 0, 0),
        ((ALONE,) * 4, 4, 0, 0),
        ((GONE,), 0, 1, 0),
        ((ALONE, GONE), 1, 1, 0),
        ((WHOLE,) * 4, 1, 0, 1),
        ((WHOLE, ALONE, GONE), 1, 0, 1),
        ((WHOLE_IGNORED, GONE), 0, 2, 1),
        ((Verdict(loss(disrupted=True), "mine", "RestartJob"),), 0, 1, 1),  # a drain is never counted
        ((WHOLE_IGNORED, ALONE), 1, 0, 1),
        ((PLANNED,), 0, 0, 1),
        ((PLANNED, GONE), 0, 1, 1),
    ],
)
def test_a_restart_of_the_whole_job_counts_once_however_many_pods_asked_for_it(
    found: tuple[Verdict, ...], counted: int, ignored: int, attempt: int
) -> None:
    status = record_restarts(Scene((COORDINATOR,), seen="coordinator").context(), found)
    assert (status.restarts.counted, status.restarts.ignored, status.attempt) == (counted, ignored, attempt)
    assert (status.trainers.desired, status.seen) == ((0, "") if attempt else (2, "coordinator"))
    delay = next((e.delay_seconds for e in status.incarnations if e.name == "all"), 0)
    assert delay == 0  # the first replacement is immediate


@pytest.mark.parametrize(("lost", "reasons"), [(1, []), (5, []), (6, ["1 more"]), (8, ["3 more"])])
def test_of_many_losses_the_first_five_are_events(lost: int, reasons: list[str]) -> None:
    found = failure_events((GONE,) * lost)
    assert len(found) == min(lost, 5) + len(reasons)
    assert [event.message[:6] for event in found[5:]] == reasons
    assert {(event.reason, event.warning) for event in found} == {("PodDisrupted", True)}


def test_the_event_of_the_rest_is_like_the_last_that_is_named() -> None:
    *_, rest = failure_events((PLANNED, *(GONE,) * 6))
    assert rest == Event("PodDisrupted", "2 more members failed in the same pass", True)


def test_an_event_says_what_was_lost_and_what_follows() -> None:
    assert failure_events((ALONE,))[0] == Event("WorkerRestarted", "trainer-2: it failed; r: RestartTrainer", True)
    assert failure_events((PLANNED,))[0] == Event("Scaled", "trainer-2: it failed")
    assert failure_events(()) == ()


FATAL = {"name": "fatal", "action": "Fail", "onExitCodes": {"operator": "In", "values": [9]}}
TOO_MANY = "restart 11 would exceed failurePolicy.maxRestarts (10)"
SAYS_WHY = '{"reason": "BadShard", "message": "shard 3 is torn"}'


@pytest.mark.parametrize(
    ("pod", "before", "counting", "end"),
    [
        (ended(1), 9, True, None),
        (ended(1), 10, True, ("RestartLimitExceeded", f"trainer-1: exit code 1; {TOO_MANY}", "Default", 1)),
        (ended(1), 10, False, None),
        (ended(1, deleting=True), 11, True, None),  # nothing is counted
        (ended(9), 0, True, ("FailurePolicy", "trainer-1: exit code 9; rule fatal says Fail", "fatal", 9)),
        (ended(9), 0, False, ("FailurePolicy", "trainer-1: exit code 9; rule fatal says Fail", "fatal", 9)),
        (ended(9, message=SAYS_WHY), 0, True, ("BadShard", "shard 3 is torn", "fatal", 9)),
    ],
)  # fmt: skip
def test_a_loss_ends_the_job_by_a_rule_or_by_the_limit(
    pod: PodView, before: int, counting: bool, end: tuple[str, str, str, int] | None
) -> None:
    status = {"restarts": {"counted": before, "ignored": 0}}
    scene = Scene((COORDINATOR, replace(pod, node="n")), spec={"failurePolicy": {"rules": [FATAL]}}, status=status)
    ctx = scene.context()
    found = find_fatal(ctx, verdicts(ctx), counting)
    assert found == (None if end is None else Termination("Failed", *end, "n"))


@pytest.mark.parametrize("fatal", ["loader-0", "trainer-0", "trainer-1"])
def test_of_losses_in_one_pass_one_that_a_rule_fails_ends_the_job_wherever_it_stands(fatal: str) -> None:
    pods = (COORDINATOR, *(ended(9 if p.member == fatal else 1, p) for p in GANG[1:]))
    ctx = Scene(pods, spec={"failurePolicy": {"rules": [FATAL]}}).context()
    found = find_fatal(ctx, verdicts(ctx), counting=True)
    assert found is not None and (found.rule, found.exit_code) == ("fatal", 9)
    assert found.message.startswith(f"{fatal}: exit code 9")


@pytest.mark.parametrize("reason", ["StartTimeout", "ErrImagePull"])
def test_a_rule_may_name_the_time_out_or_what_the_pod_waited_for(reason: str) -> None:
    pod = replace(TRAINER, phase="Pending", waiting="ErrImagePull", created=NOW - 900)
    rules = [{"name": "mine", "action": "Fail", "onReasons": [reason]}]
    (verdict,) = verdicts(Scene((COORDINATOR, pod), spec={"failurePolicy": {"rules": rules}}).context())
    assert verdict.rule == "mine"


async def test_a_failed_trainer_is_replaced_alone_and_counted() -> None:
    world = await running()
    world.end(world.pod("trainer-1"), 1)
    await passes(world)
    assert world.created[4:] == ["demo-trainer-1-1"]
    assert [p["metadata"]["name"] for p in world.deleted] == ["demo-trainer-1-0"]
    assert world.job["status"]["restarts"] == {"counted": 1, "ignored": 0}


@pytest.mark.parametrize(
    ("pod", "reason", "words"),
    [
        ({}, "PodDisrupted", "it went; Disruption"),
        ({"node_conditions": frozenset({("Ready", "True")})}, "PodDisrupted", "it went; Disruption"),
        ({"node_conditions": frozenset({("Ready", "Unknown")})}, "NodeLost", "it went; node n is not ready; Disruption"),
        ({"node_conditions": frozenset({("Ready", "False")})}, "NodeLost", "it went; node n is not ready; Disruption"),
        ({"node_conditions": GONE_NODE}, "NodeLost", "it went; node n is gone; Disruption"),
        ({"disruption": "DeletionByTaintManager"}, "NodeLost", "it went; node n is not ready; Disruption"),
        ({"disruption": "DeletionByTaintManager", "node_conditions": frozenset({("Ready", "True")})},
         "PodDisrupted", "it went; Disruption"),  # a taint that a person made
        ({"disruption": "DeletionByPodGC"}, "NodeLost", "it went; node n is gone; Disruption"),
        ({"disruption": "EvictionByEvictionAPI"}, "PodDisrupted", "it went; Disruption"),
        ({"disruption": "PreemptionByScheduler"}, "PodDisrupted", "it went; Disruption"),
    ],
)  # fmt: skip
def test_a_node_is_lost_when_it_is_gone_or_not_ready_and_else_its_pod_was_disrupted(
    pod: dict[str, Any], reason: str, words: str
) -> None:
    gone = MemberFailure("trainer-1", "Deleted", "it went", disrupted=True, pod=replace(TRAINER, node="n", **pod))
    (event,) = failure_events((Verdict(gone, "Disruption", "RestartTrainerIgnoringLimit"),))
    assert event == Event(reason, f"{words}: RestartTrainerIgnoringLimit", True)


async def test_a_disrupted_pod_is_replaced_uncounted_with_an_event() -> None:
    world = await running()
    world.end(world.pod("trainer-1"), 137, disrupted=True)
    await passes(world)
    assert world.job["status"]["restarts"] == {"counted": 0, "ignored": 1}
    assert [h.reason for h in world.events if h.warning] == ["PodDisrupted"]


async def test_the_first_failure_beyond_the_limit_ends_the_job_and_names_the_limit() -> None:
    world = await running(failurePolicy={"maxRestarts": 1})
    for state in ("Running", "Failed"):
        world.end(world.pod("trainer-1"), 1)
        await passes(world)
        world.run_all()
        await passes(world, 1)
        assert world.state == state
    assert world.condition("Progressing")["reason"] == "RestartLimitExceeded"
    assert "maxRestarts (1)" in world.condition("Succeeded")["message"]
    assert not [p for p in world.pods() if p["status"]["phase"] == "Running"]


async def test_a_users_fault_is_reported_with_the_coordinators_message() -> None:
    world = await running()
    fault = Fault("EmptySource", "source code has no documents")
    world.report_now = report("Failed", 0, fault=fault)
    world.end(world.pod("loader-0"), 2)  # asked to leave; its termination message is empty
    await passes(world, 2)
    assert world.state == "Running"  # not Restarting: nothing will be
    events = (JobEvent(1, 1.0, "IndexingStarted", "1 shares"),)
    world.end(world.pod("coordinator"), 2, report_text("Failed", fault=fault, events=events))
    await passes(world)
    assert world.condition("Succeeded")["message"] == "EmptySource: source code has no documents"
    assert [h.reason for h in world.events][-2:] == ["IndexingStarted", "Failed"]
    assert "rule" not in world.events[-1].message  # only a rule of the user's own is named


async def test_members_that_left_with_a_failed_coordinator_are_replaced_uncounted() -> None:
    world = await running()
    for pod in list(world.pods()):
        world.end(pod, 1)
    await passes(world)
    assert world.job["status"]["restarts"] == {"counted": 1, "ignored": 3}
    assert sorted(world.created[4:]) == [
        "demo-coordinator-1",
        "demo-loader-0-1",
        "demo-trainer-0-1",
        "demo-trainer-1-1",
    ]


async def test_a_rule_may_restart_the_whole_job_as_a_new_attempt() -> None:
    rules = [{"name": "all", "onExitCodes": {"operator": "In", "values": [9]}, "action": "RestartJob"}]
    world = await running(failurePolicy={"rules": rules})
    world.end(world.pod("trainer-1"), 9)
    await passes(world, 6)
    status = world.job["status"]
    assert (status["attempt"], status["restarts"]["counted"]) == (1, 1)
    assert [(a["number"], a.get("rule"), a.get("exitCode"), a.get("resumedStep")) for a in status["attempts"]] == [
        (0, "all", 9, None), (1, None, None, 10),
    ]  # fmt: skip
    assert {p["metadata"]["labels"]["coxswain.dev/attempt"] for p in world.pods()} == {"1"}


async def test_a_pod_that_does_not_start_in_time_is_replaced_and_counted() -> None:
    world = await running(startTimeoutSeconds=60)
    world.vanish(world.pod("trainer-1"))
    await passes(world)
    world.tick(61)
    await passes(world)
    assert world.pod("trainer-1")["metadata"]["name"] == "demo-trainer-1-2"
    assert world.job["status"]["restarts"] == {"counted": 1, "ignored": 1}


def test_the_restart_beyond_the_limit_is_named_by_the_loss_that_counts() -> None:
    """A loader has vanished too, which is never counted."""
    pods, seen = (COORDINATOR, GANG[2], ended(1)), "coordinator,loader:0,trainer:0-1"
    scene = Scene(pods, seen=seen, spec={"failurePolicy": {"maxRestarts": 0}})
    ctx = scene.context()
    found = find_fatal(ctx, verdicts(ctx), counting=True)
    assert found is not None and found.message.startswith("trainer-1: exit code 1")


@pytest.mark.parametrize("pod", [replace(TRAINER, deleting=True), None], ids=["deleted", "vanished"])
def test_a_pod_that_is_deleted_or_gone_matches_a_rule_of_disruptions_without_the_condition(pod: PodView | None) -> None:
    rule = {"name": "gone", "action": "Fail", "onPodConditions": [{"type": "DisruptionTarget"}]}
    pods = (*GANG[:3], *([pod] if pod else []))
    scene = Scene(pods, seen="trainer:1", spec={"failurePolicy": {"rules": [rule]}})
    assert [verdict.rule for verdict in verdicts(scene.context())] == ["gone"]


@pytest.mark.parametrize(("action", "named"), [("RestartJob", None), ("RestartJobIgnoringLimit", 0)])
def test_a_job_that_restarts_again_and_again_waits_longer_each_time_whether_or_not_that_counts(
    action: str, named: int | None
) -> None:
    """Under a rule that ignores the limit nothing else bounds how many pods a crash at the start costs."""
    rules, status, delays = {"failurePolicy": {"rules": [{"name": "mine", "action": action, **IN_2}]}}, JobStatus(), []
    for number in range(9):
        gang = tuple(replace(pod, incarnation=number) for pod in (*GANG[:3], ended(2)))
        stored = {"incarnations": msgspec.to_builtins(status)["incarnations"]} if number else {}
        context = Scene(gang, seen="coordinator,loader:0,trainer:0-1", spec=rules, status=stored).context()
        status = record_restarts(context, verdicts(context))
        (entry,) = status.incarnations
        delays.append(entry.delay_seconds)
        assert (entry.name, entry.number, msgspec.to_builtins(entry).get("failures")) == ("all", number + 1, named)
    assert delays == [0, 1, 2, 4, 8, 16, 32, 60, 60]


def test_a_restart_that_was_asked_for_waits_for_nothing_and_is_no_failure_of_its_pods() -> None:
    again = {"incarnations": [{"name": "all", "number": 1, "since": stamp(NOW - 50), "delaySeconds": 8}]}
    gang = (replace(COORDINATOR, incarnation=1),)
    context = Scene(gang, seen="coordinator", status=again).context()
    (entry,) = record_restarts(context, (PLANNED,)).incarnations
    assert (entry.number, entry.delay_seconds, entry.failures) == (2, 0, 0)
