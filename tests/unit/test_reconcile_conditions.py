"""Conditions and events of one pass: what users see of a job in each situation, and since when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coxswain.names import EVENT_REASONS
from coxswain.wire import Fault, JobEvent, JobReport
from coxswain_operator.reconcile import completion, deadlines, events, pending, reconcile
from coxswain_operator.reconcile.actions import RequeueAt, WriteStatus, requeues
from coxswain_operator.reconcile.conditions import conditions
from coxswain_operator.reconcile.result import PolicyResult, Termination
from coxswain_operator.reconcile.status import Condition, Incarnation, JobStatus
from coxswain_operator.reconcile.times import stamp
from coxswain_operator.views import Event, PodView
from tests.unit.fake_cluster import report
from tests.unit.reconcile_scenes import COORDINATOR, GANG, LOADER, NOW, TRAINER, Scene, condition, ended

RUNNING = report("Running", 50)
FAULT = Fault("StoreUnavailable", "503")
EARLIER = {"conditions": [condition(t, "False", reason="Earlier") for t in ("DataReady", "CheckpointFresh")]}
SAVED = {
    "conditions": [condition("CheckpointFresh", "True", reason="Saved")],
    "lastCheckpoint": {"step": 40, "uri": "file:///runs/demo/manifests/step-0000000040.json", "time": "then"},
}
EVERY_TEN: dict[str, Any] = {"checkpoint": {"uri": "file:///runs/demo", "everySteps": 10}}
TRAINED = {"conditions": [condition("Succeeded", "Unknown", reason="Running")]}
DEGRADED = {"conditions": [condition("Degraded", "True", reason="Restarting")]}
FEWER = {"trainers": {"desired": 1, "asked": 2}}
ONE = {"trainer": "trainer-1", "device": 1, "node": "b", "slowdown": "2.00", "since": "then", "cause": "Device"}
SLOW = {"stragglers": [{**ONE, "action": "moved"}]}
TWO_SLOW = {"stragglers": [
    {"trainer": "trainer-0", "device": 0, "slowdown": "3.10", "since": "then", "cause": "Node"}, ONE,
]}  # fmt: skip


def saved(step: int) -> Scene:
    return Scene(GANG, report("Running", 50, checkpoint_step=step), spec=EVERY_TEN)


@pytest.mark.parametrize(
    ("type_", "scene", "state", "reason", "facts"),
    [
        ("Succeeded", Scene(GANG), "Completed", "StopReached", ("True", "Completed", "StopReached: why")),
        ("Succeeded", Scene(GANG), "Failed", "Error", ("False", "Failed", "Error: why")),
        ("Succeeded", Scene(GANG), "Running", "", ("Unknown", "Running", "why")),
        ("Succeeded", Scene(GANG), "Suspended", "Suspended", ("Unknown", "Suspended", "why")),
        ("Validated", Scene(GANG), "Running", "", ("True", "Resolved", "")),
        ("Validated", Scene(GANG, spec={"mixRef": {"name": "gone"}}), "Completed", "", ("True", "Resolved", "")),
        ("Progressing", Scene(GANG), "Starting", "R" * 129, ("False", "R" * 128, "why")),
        ("DataReady", Scene(GANG), "Starting", "", ("Unknown", "NotIndexed", "")),
        ("DataReady", Scene(GANG, status=EARLIER), "Starting", "", ("False", "Earlier", "")),
        ("DataReady", Scene(GANG, report("Waiting"), status=EARLIER), "Starting", "", ("False", "Earlier", "")),
        ("DataReady", Scene(GANG, report("Indexing", waiting_for="code")), "Indexing", "", ("False", "Indexing", "code")),
        ("DataReady", Scene(GANG, RUNNING, status=EARLIER), "Running", "", ("True", "Indexed", "")),
        ("PodsReady", Scene(GANG), "Running", "", ("True", "AllPodsReady", "")),
        ("PodsReady", Scene(GANG), "Completed", "", ("False", "JobEnded", "")),
        ("PodsReady", Scene(GANG), "Suspending", "", ("False", "Suspended", "")),
        ("PodsReady", Scene(GANG[:3]), "Starting", "", ("False", "PodsNotReady", "not ready: trainer-1")),
        ("PodsReady", Scene((*GANG[:3], replace(TRAINER, phase="Pending", waiting="ErrImagePull", ready=False))),
         "Starting", "", ("False", "PodsNotReady", "not ready: trainer-1; trainer-1: ErrImagePull")),
        ("PodsReady", Scene((), asked=3), "Starting", "",
         ("False", "PodsNotReady", "not ready: coordinator, loader-0, trainer-0, trainer-1, trainer-2")),
        ("PodsReady", Scene((), asked=4), "Starting", "",
         ("False", "PodsNotReady", "not ready: coordinator, loader-0, trainer-0, trainer-1, trainer-2 ...")),
        ("Progressing", Scene(GANG), "Running", "", ("True", "Training", "why")),
        ("Progressing", Scene(GANG), "Running", "Scaling", ("False", "Scaling", "why")),
        ("Progressing", Scene(GANG), "Starting", "", ("False", "Starting", "why")),
        ("Degraded", Scene(GANG, RUNNING), "Running", "", ("False", "AsExpected", "")),
        ("Degraded", Scene(GANG, report("Running", fault=FAULT)), "Running", "", ("True", "StoreUnavailable", "503")),
        ("Degraded", Scene(GANG, report("Failed", fault=FAULT)), "Failed", "", ("False", "AsExpected", "")),
        ("Degraded", Scene(GANG), "Restarting", "", ("False", "AsExpected", "")),
        ("Degraded", Scene(GANG, status=TRAINED), "Restarting", "", ("True", "Restarting", "why")),
        ("Degraded", Scene(GANG, status=DEGRADED), "Unschedulable", "", ("True", "Restarting", "why")),
        ("Degraded", Scene(GANG, status=DEGRADED), "Running", "", ("False", "AsExpected", "")),
        ("Degraded", Scene(GANG, status=FEWER), "Running", "",
         ("True", "CapacityLost", "runs with 1 of 2 trainers: there was no room for more")),
        ("Degraded", Scene(GANG, status=FEWER), "Completed", "", ("False", "AsExpected", "")),
        ("Degraded", Scene(GANG, status=SLOW), "Running", "",
         ("True", "Straggler", "device 1 of trainer-1 (b) computes 2.00 times as long as planned since then (Device); moved")),
        ("Degraded", Scene(GANG, status=TWO_SLOW), "Running", "",
         ("True", "Straggler", "device 0 of trainer-0 computes 3.10 times as long as planned since then (Node); and 1 more")),
        ("Degraded", Scene(GANG, status=SLOW), "Starting", "", ("False", "AsExpected", "")),
        ("Degraded", Scene(GANG, status=SLOW), "Completed", "", ("False", "AsExpected", "")),
        ("Degraded", Scene(GANG, status={**TRAINED, **SLOW}), "Restarting", "", ("True", "Restarting", "why")),
        ("Degraded", Scene(GANG, status={**FEWER, **SLOW}), "Running", "",
         ("True", "CapacityLost", "runs with 1 of 2 trainers: there was no room for more")),
        ("Degraded", Scene(GANG, report("Running", fault=FAULT), status=SLOW), "Running", "",
         ("True", "StoreUnavailable", "503")),
        ("Suspended", Scene(GANG), "Running", "", ("False", "NotSuspended", "")),
        ("Suspended", Scene(GANG), "Suspending", "", ("Unknown", "Suspending", "why")),
        ("Suspended", Scene(GANG), "Suspended", "", ("True", "Suspended", "why")),
        ("CheckpointFresh", Scene(GANG), "Running", "", ("Unknown", "NotReported", "")),
        ("CheckpointFresh", Scene(GANG, status=EARLIER), "Running", "", ("False", "Earlier", "")),
        ("CheckpointFresh", Scene(GANG, report("Waiting", checkpoint_step=-1), status=SAVED), "Restarting", "",
         ("True", "Saved", "")),
        ("CheckpointFresh", Scene(GANG, report("Indexing", checkpoint_step=-1), status=SAVED), "Indexing", "",
         ("True", "Saved", "")),
        ("CheckpointFresh", Scene(GANG, report("Indexing", checkpoint_step=-1)), "Indexing", "",
         ("False", "NoCheckpoint", "no checkpoint yet")),
        ("CheckpointFresh", saved(-1), "Running", "", ("False", "NoCheckpoint", "no checkpoint yet")),
        ("CheckpointFresh", saved(30), "Running", "", ("True", "Saved", "")),
        ("CheckpointFresh", saved(29), "Running", "",
         ("False", "Stale", "21 steps since the last checkpoint; everySteps is 10")),
        ("CheckpointFresh", Scene(GANG, report("Running", 0)), "Running", "", ("True", "Saved", "")),
    ],
)  # fmt: skip
def test_each_condition_says_what_the_state_means_for_it(
    type_: str, scene: Scene, state: str, reason: str, facts: tuple[str, str, str]
) -> None:
    context = scene.context()
    (found,) = (c for c in conditions(context, PolicyResult(state, context.status, reason, "why")) if c.type == type_)
    assert (found.status, found.reason, found.message) == facts


@pytest.mark.parametrize(("before", "since"), [("False", 1000.0), ("True", NOW), ("", NOW)])
def test_a_transition_time_is_that_of_the_last_change_of_the_status(before: str, since: float) -> None:
    scene = Scene(GANG, status={"conditions": [condition("Suspended", before)] if before else []})
    context = scene.context()
    found = next(c for c in conditions(context, PolicyResult("Running", context.status)) if c.type == "Suspended")
    assert found.last_transition_time == stamp(since)


@pytest.mark.parametrize("generation", [None, 7])
def test_a_status_names_the_generation_that_it_is_about(generation: int | None) -> None:
    scene = Scene(GANG)
    observed = scene.observed
    if generation is not None:
        observed.job["metadata"]["generation"] = generation
    (write,) = reconcile(observed, NOW).of(WriteStatus)
    assert isinstance(write, WriteStatus)
    found = {write.status["observedGeneration"], *(c["observedGeneration"] for c in write.status["conditions"])}
    assert found == {generation or 1}


def test_only_times_to_come_wake_a_pass_each_once_and_in_their_order() -> None:
    times = (NOW + 2, NOW + 1, NOW, NOW - 1, float("inf"), NOW + 2)
    assert requeues(times, NOW) == (RequeueAt(NOW + 1), RequeueAt(NOW + 2))


def test_faults_of_a_job_are_named_together_and_a_long_message_is_cut() -> None:
    scene = Scene(GANG, spec={"mixRef": {"name": "gone"}, "parallelismRef": {"name": "gone"}})
    context = scene.context()
    found = conditions(context, PolicyResult("Queued", context.status, "", "x" * 2000))
    texts = {c.type: (c.status, c.reason, c.message) for c in found}
    fault = context.faults[0]
    assert texts["Validated"] == ("False", fault.reason, "; ".join(f.message for f in context.faults))
    assert len(texts["Succeeded"][2]) == 1024
    assert [f.reason for f in context.faults] == ["MixNotFound", "PolicyNotFound"]
    (write,) = scene.decide().of(WriteStatus)
    shown = next(c for c in write.status["conditions"] if c["type"] == "Progressing")
    assert (shown["reason"], shown["message"]) == ("MixNotFound", fault.message)


def status(**conditions: str) -> JobStatus:
    """With these conditions; an underscore: none."""
    given = (Condition(type=t, status=s, reason="r", message="m") for t, s in conditions.items() if s != "_")
    return JobStatus(conditions=tuple(given), ready="2/2")


@pytest.mark.parametrize(
    ("type_", "old", "new", "found"),
    [
        ("Validated", "_", "True", [("Validated", "everything that the job names exists and fits together")]),
        ("Validated", "False", "True", [("Validated", "everything that the job names exists and fits together")]),
        ("Validated", "True", "True", []),
        ("Validated", "True", "False", []),
        ("PodsReady", "False", "True", [("GangStarted", "all pods are ready, 2/2 trainers")]),
        ("PodsReady", "True", "True", []),
        ("Suspended", "Unknown", "True", [("Suspended", "m")]),
        ("Suspended", "True", "True", []),
        ("Suspended", "True", "False", [("Resumed", "pods are created again")]),
        ("Suspended", "Unknown", "False", []),
        ("Suspended", "True", "Unknown", []),
    ],
)
def test_a_condition_that_turns_is_an_event(type_: str, old: str, new: str, found: list[tuple[str, str]]) -> None:
    turned = events.transitions(status(**{type_: old}), status(**{type_: new}))
    assert turned == tuple(Event(reason, message) for reason, message in found)


def test_a_job_that_ends_in_the_pass_that_finds_it_valid_is_not_said_to_be_valid() -> None:
    assert events.transitions(status(Validated="False"), status(Validated="True", Succeeded="False")) == ()


OTHER = JobEvent(3, 1.0, "Mine", "3")
SAID = tuple(JobEvent(n, 1.0, reason, f"{n}") for n, reason in enumerate(("CheckpointSaved", "Completed", "Scaled")))


@pytest.mark.parametrize(
    ("answer", "before", "published", "mark"),
    [
        (None, 1, [], 1),
        (report(), None, [], None),
        (report(events=SAID), None, ["0", "2"], 2),  # Completed is the operator's own
        (report(events=SAID), 0, ["2"], 2),
        (report(events=SAID[:2]), 1, [], 1),
        (report(events=(*SAID, OTHER)), 1, ["2"], 3),  # there are as many Events as reasons, and of these no end
    ],
)
def test_events_of_a_coordinator_are_published_after_the_last_published_one(
    answer: JobReport | None, before: int | None, published: list[str], mark: int | None
) -> None:
    found, last = events.coordinator_events(Scene(GANG, answer, status={"eventSequence": before}).context())
    assert ([event.message for event in found], last) == (published, mark)


OPERATORS = (
    "Validated", "GangStarted", "Suspended", "Resumed", "Completed", "Failed", "NodeLost", "PodDisrupted", "FailedDelete",
    "FailedUpdate",
)  # fmt: skip


@pytest.mark.parametrize("reason", sorted(EVENT_REASONS))
def test_a_reason_that_the_operator_finds_itself_is_not_published_a_second_time_by_the_coordinators_word(
    reason: str,
) -> None:
    """The operator sees the node, the coordinator only a pod that is silent."""
    said = report(events=(JobEvent(4, 1.0, reason, "said"),))
    found, last = events.coordinator_events(Scene(GANG, said, status={"eventSequence": 3}).context())
    assert ([event.reason for event in found], last) == ([] if reason in OPERATORS else [reason], 4)


def test_the_mark_of_events_goes_with_its_coordinator() -> None:
    replaced = JobStatus(incarnations=(Incarnation(name="coordinator", number=1),))
    other = JobStatus(incarnations=(Incarnation(name="trainer-1", number=1),))
    assert events.last_published(JobStatus(), replaced, 7) is None
    assert events.last_published(JobStatus(), other, 7) == 7


def waiting(number: int, reason: str = "ErrImagePull", **more: Any) -> PodView:
    pod = replace(TRAINER, index=number, phase="Pending", waiting=reason, waiting_message=f"of {reason}")
    return replace(pod, **more)


@pytest.mark.parametrize(
    ("pods", "text"),
    [
        (GANG, ""),
        ((waiting(1),), "trainer-1: ErrImagePull: of ErrImagePull"),
        ((waiting(1, deleting=True), waiting(2, phase="Failed")), ""),
        ((waiting(1), waiting(2), waiting(3)), "trainer-1 and 2 more: ErrImagePull: of ErrImagePull"),
        ((waiting(1, unscheduled_reason="Unschedulable", unscheduled="full"),), "trainer-1: Unschedulable: full"),
        ((waiting(1, unscheduled_reason="Unschedulable"),), "trainer-1: Unschedulable"),
        ((waiting(1, unscheduled_reason="Unschedulable", group="demo-1"),), "trainer-1: Unschedulable"),  # it was admitted
        (tuple(waiting(n, r) for n, r in enumerate("abc")), "trainer-0: a: of a; trainer-1: b: of b; trainer-2: c: of c"),
        (tuple(waiting(n, r) for n, r in enumerate("abcd")),
         "trainer-0: a: of a; trainer-1: b: of b; trainer-2: c: of c; ..."),
    ],
)  # fmt: skip
def test_what_pods_wait_for_is_said_once_for_each_reason(pods: tuple[PodView, ...], text: str) -> None:
    assert pending.describe(pods) == text


BARE = replace(TRAINER, phase="Pending", ready=False, created=NOW - 60, scheduled=NOW - 30,
               conditions=frozenset({("PodReadyToStartContainers", "False")}))  # fmt: skip


@pytest.mark.parametrize(
    ("pod", "hint", "looks"),
    [
        (BARE, True, set()),
        (replace(BARE, scheduled=NOW - 29), False, {NOW + 1}),
        (replace(BARE, created=0.0), True, set()),  # unknown
        (replace(BARE, scheduled=0.0), False, set()),
        (replace(BARE, phase="Running"), False, set()),
        (replace(BARE, conditions=frozenset({("PodReadyToStartContainers", "True")})), False, set()),
    ],
)
def test_a_node_that_prepares_nothing_for_half_a_minute_is_a_reason(
    pod: PodView, hint: bool, looks: set[float]
) -> None:
    context = Scene((pod,), spec={"checkpoint": {"uri": "pvc://runs/demo"}}).context()
    assert context.pods["trainer-1"].waiting == ("NotPrepared" if hint else "")
    assert (
        "is there PersistentVolumeClaim runs, Secret demo-token" in context.pods["trainer-1"].waiting_message
    ) is hint
    assert {RequeueAt(t) for t in looks} <= set(Scene((pod,)).decide().of(RequeueAt))
    assert pending.requeue_times((pod,)) - {NOW} == looks


@pytest.mark.parametrize("late", [0, 900])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_pod_that_has_just_found_its_node_is_prepared_in_time_although_the_servers_clock_is_behind(
    replaced: bool, late: float
) -> None:
    """By an hour. A rule on NotPrepared would replace each new pod at once, until the limit of restarts."""
    asked, found = NOW - late - 10, NOW - 9  # by the operator's clock, which an autoscaler may take long to follow
    pod = replace(BARE, incarnation=int(replaced), created=asked - 3600, scheduled=found - 3600)
    number = [{"name": "trainer-1", "number": 1, "since": stamp(asked)}]
    status = {"startTime": stamp(asked)} if not replaced else {"startTime": stamp(NOW - 7200), "incarnations": number}
    for now, hint in ((NOW, ""), (found + 29, ""), (found + 30, "NotPrepared")):
        scene = Scene((pod,), status=status, now=now)
        assert scene.context().pods["trainer-1"].waiting == hint
    assert RequeueAt(found + 30) in Scene((pod,), status=status).decide().of(RequeueAt)


@pytest.mark.parametrize(
    ("limit", "active", "suspended", "wake"),
    [
        (100, 0, ("False", NOW - 60), NOW + 40),
        (100, 30, ("False", NOW - 60), NOW + 10),  # of before the suspension
        (100, 0, ("False", NOW - 99.5), NOW + 1),
        (100, 0, ("True", NOW - 60), None),
        (None, 0, ("False", NOW - 60), None),
    ],
)
def test_a_pass_follows_when_the_deadline_is_due(
    limit: int | None, active: int, suspended: tuple[str, float], wake: float | None
) -> None:
    given = {"conditions": [condition("Suspended", *suspended)], "activeSeconds": active, "startTime": stamp(NOW - 500)}
    scene = Scene(GANG, spec={"activeDeadlineSeconds": limit} if limit else {}, status=given)
    assert deadlines.requeue_times(scene.context()) == ((wake,) if wake else ())


@pytest.mark.parametrize(("start", "active"), [(NOW - 60, 40), (NOW - 20, 20), (NOW + 20, 0)])
def test_active_time_begins_with_the_later_of_start_and_resumption(start: float, active: float) -> None:
    given = {"conditions": [condition("Suspended", "False", NOW - 40)], "startTime": stamp(start)}
    assert deadlines.active_seconds(Scene(GANG, status=given).context()) == active  # or the clock was set back
    assert deadlines.active_seconds(Scene(GANG, status={**given, "conditions": []}).context()) == 0


@pytest.mark.parametrize("latest", range(4))
def test_a_pod_is_late_after_its_creation_its_node_the_jobs_start_and_its_number(latest: int) -> None:
    """The API server's clock may be behind the operator's."""
    created, scheduled, start, since = (NOW - 10 if latest == place else NOW - 100 for place in range(4))
    number = {"name": "trainer-1", "number": 0, "since": stamp(since)}
    context = Scene(status={"startTime": stamp(start), "incarnations": [number]}).context()
    assert deadlines.starts_by(context, replace(TRAINER, created=created, scheduled=scheduled)) == NOW - 10 + 900


def test_a_pod_that_does_not_start_is_looked_at_when_it_is_late() -> None:
    late = replace(TRAINER, phase="Pending", created=NOW - 59)
    scene = Scene((*GANG[:3], late), spec={"startTimeoutSeconds": 60})
    assert RequeueAt(NOW + 1) in scene.decide().of(RequeueAt)


@pytest.mark.parametrize(
    ("answer", "reason", "message"),
    [
        (None, "StopReached", ""),
        (report("Completed", 100), "StopReached", "at step 100"),
        (report("Completed", 100, reason="DataExhausted"), "DataExhausted", "at step 100"),
        (report("Completed", 100, checkpoint_step=99), "", ""),
    ],
)
def test_a_coordinator_that_left_with_0_completes_its_job_once_all_is_saved(
    answer: JobReport | None, reason: str, message: str
) -> None:
    found = completion.completed(Scene((ended(0, COORDINATOR),), answer).context())
    assert found == (Termination("Completed", reason, message) if reason else None)


@pytest.mark.parametrize(("mix", "steps", "raised"), [("mix", 100, True), ("mix", 1, True), ("gone", 100, False)])
def test_a_stop_that_was_raised_is_known_while_the_job_is_valid(mix: str, steps: int, raised: bool) -> None:
    answer = report("Completed", steps, steps=steps, reason="StopReached")
    scene = Scene((ended(0, COORDINATOR),), answer, spec={"mixRef": {"name": mix}, "stop": {"steps": 101}})
    text = f"stop was raised from {steps} to 101 steps while the job ran"
    assert completion.unfinished(scene.context()) == (("StopRaised", text) if raised else None)


@pytest.mark.parametrize(("rule", "suffix"), [("mine", " (rule mine)"), ("Default", ""), ("", "")])
@pytest.mark.parametrize(("state", "deleted", "looks"), [("Completed", 0, (NOW + 15,)), ("Failed", 4, ())])
def test_the_end_of_a_job_names_its_rule_and_ends_the_pods_of_a_failure(
    rule: str, suffix: str, state: str, deleted: int, looks: tuple[float, ...]
) -> None:
    own = {"name": "mine", "action": "Fail", "onExitCodes": {"operator": "In", "values": [9]}}
    going = replace(LOADER, name="going", deleting=True)
    context = Scene((*GANG, going, replace(COORDINATOR, name="old", phase="Failed")),
                    spec={"failurePolicy": {"rules": [own]}}).context()  # fmt: skip
    found = completion.terminate(context, Termination(state, "Error", "it failed", rule))
    assert found.events == (Event(state, f"Error: it failed{suffix}", warning=state == "Failed"),)
    assert (len(found.deletes), found.requeue_times) == (deleted, looks)
    assert found.status.completion_time == stamp(NOW)
