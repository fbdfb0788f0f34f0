"""The status: when it is written, what a report puts into it, and the histories that it holds."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace as changed

from coxswain.api.datasource import DataSourceStatus
from coxswain.api.trainingjob import Checkpoint, FailurePolicy, OnCondition, TrainingJobSpec
from coxswain.api.trainingjob_status import TrainingJobStatus
from coxswain.wire import Fault, JobEvent, JobReport, PredictedLayout, SourceReport, StragglerReport, StrategyReport
from coxswain_operator.reconcile import attempts, incarnations, progress, sources
from coxswain_operator.reconcile.actions import RequeueAt, WriteStatus
from coxswain_operator.reconcile.result import Termination
from coxswain_operator.reconcile.spec import read_spec
from coxswain_operator.reconcile.status import (
    Condition,
    Incarnation,
    JobStatus,
    LastCheckpoint,
    LayoutStatus,
    Straggler,
    Trainers,
    due_at,
    read_status,
    to_manifest,
)
from coxswain_operator.reconcile.times import seconds, stamp
from coxswain_operator.views import Manifest, PodView
from tests.unit.fake_cluster import report
from tests.unit.reconcile_scenes import COORDINATOR, GANG, NOW, TRAINER, Scene, condition, ended

NEVER, AT_ONCE = float("inf"), 0.0
RUNNING = Condition(type="Succeeded", status="Unknown", reason="Running")
WRITTEN = JobStatus(updated_at=stamp(NOW), conditions=(RUNNING,))
FURTHER = changed(WRITTEN, progress=progress.apply_report(WRITTEN, report("Running", 1)).progress)


@pytest.mark.parametrize(
    ("new", "passed", "due"),
    [
        (WRITTEN, 100, NEVER),
        (FURTHER, 0, NOW + 15),
        (FURTHER, 100, NOW + 15),
        (FURTHER, -1, AT_ONCE),  # the clock was set back
        (changed(WRITTEN, last_checkpoint=LastCheckpoint(step=1, uri="", time="")), 0, NOW + 5),
        (changed(WRITTEN, conditions=(changed(RUNNING, message="waits"),)), 0, NOW + 5),
        (changed(WRITTEN, conditions=(changed(RUNNING, status="True"),)), 0, AT_ONCE),
        (changed(WRITTEN, seen="coordinator"), 0, NOW + 15),
        (changed(FURTHER, trainers=Trainers(ready=1), ready="1/2", replicas=1), 0, NOW + 15),
        (changed(WRITTEN, trainers=Trainers(desired=1)), 0, AT_ONCE),
        (changed(WRITTEN, attempt=1), 0, AT_ONCE),
    ],
)
def test_progress_and_counts_are_written_every_15_seconds_messages_every_5_and_all_else_at_once(
    new: JobStatus, passed: float, due: float
) -> None:
    assert due_at(WRITTEN, new, NOW + passed) == due


@pytest.mark.parametrize(("waited", "delay"), [(0, 15), (14, 15), (22, 22), (60, 60)])
def test_counts_of_a_start_that_takes_long_are_written_ever_more_rarely(waited: float, delay: float) -> None:
    waits = Condition(type="PodsReady", status="False", reason="PodsNotReady", last_transition_time=stamp(NOW - waited))
    old = changed(WRITTEN, conditions=(RUNNING, waits))
    more = changed(old, seen="coordinator", conditions=(RUNNING, changed(waits, message="not ready: loader-0")))
    assert due_at(old, more, NOW + 1) == NOW + delay
    assert due_at(old, changed(old, conditions=(RUNNING, changed(waits, status="True"))), NOW + 1) == AT_ONCE


@pytest.mark.parametrize(("waited", "active", "delay"), [(30, 30, 30), (86400, 86400, 60), (86400, 0, 5)])
def test_what_a_start_waits_for_is_said_within_a_minute_also_after_days_and_at_once_after_a_suspension(
    waited: float, active: float, delay: float
) -> None:
    """PodsReady has been False since before the suspension, or for all the time in a queue that has admitted the job."""
    waits = Condition(type="PodsReady", status="False", reason="PodsNotReady", last_transition_time=stamp(NOW - waited))
    old = changed(WRITTEN, conditions=(RUNNING, waits), active_since=stamp(NOW - active))
    said = changed(old, conditions=(changed(RUNNING, message="QuotaExceeded"), waits))
    assert due_at(old, said, NOW + 1) == NOW + delay
    assert due_at(old, changed(old, ready="1/2", replicas=1), NOW + 1) == NOW + max(15, delay)


def test_the_time_of_a_suspension_delays_nothing_that_a_queue_says_of_the_resumed_job() -> None:
    """It is not active yet."""
    waits = Condition(type="PodsReady", status="False", reason="Suspended", last_transition_time=stamp(0))
    resumed = Condition(type="Suspended", status="False", reason="NotSuspended", last_transition_time=stamp(NOW - 2))
    old = changed(WRITTEN, conditions=(RUNNING, waits, resumed))
    assert due_at(old, changed(old, conditions=(changed(RUNNING, message="waits"), waits, resumed)), NOW) == NOW + 5


@pytest.mark.parametrize(("field", "text"), [("slowdown", "3.00"), ("action", "gets less work")])
def test_what_is_said_of_a_slow_device_is_written_every_five_seconds(field: str, text: str) -> None:
    slow = Straggler(trainer="trainer-1", device=0, slowdown="2.00", since=stamp(NOW), cause="Device")
    old = changed(WRITTEN, stragglers=(slow,))
    assert due_at(old, changed(old, stragglers=(changed(slow, **{field: text}),)), NOW) == NOW + 5


@pytest.mark.parametrize(("age", "writes"), [(14, 0), (15, 1)])
def test_progress_is_written_in_its_second_and_looked_for_then(age: float, writes: int) -> None:
    first = Scene(GANG, report("Running", 1)).decide().of(WriteStatus)[0].status
    decision = Scene(GANG, report("Running", 2), status=first, now=NOW + age).decide()
    assert len(decision.of(WriteStatus)) == writes
    assert (RequeueAt(NOW + 15) in decision.of(RequeueAt)) is not bool(writes)


def test_times_are_whole_seconds_in_utc_and_none_is_the_year_1970() -> None:
    assert stamp(NOW + 0.9) == "1970-01-01T00:33:20Z"
    assert [seconds(text) for text in (stamp(NOW), "", None)] == [NOW, 0.0, 0.0]


@pytest.mark.parametrize("loss", [-1e300, 1e16, 3.4e38, 2.5])
def test_a_loss_of_any_size_and_a_long_uri_are_a_status_that_the_api_takes(loss: float) -> None:
    uri = f"s3://runs/{'x' * 1014}/manifests/step-0000000100.json"
    said = report("Running", 100, loss=loss, evaluation_loss=loss, checkpoint_uri=uri)
    (write,) = Scene(GANG, said).decide().of(WriteStatus)
    status = TrainingJobStatus.model_validate(write.status)
    assert status.progress is not None and float(str(status.progress.loss)) == pytest.approx(loss, rel=1e-3)
    assert status.last_checkpoint is not None and status.last_checkpoint.uri == uri


LOST = Termination("", "Error", "x" * 2000, "mine", 7, "gpu-7")


def test_a_job_remembers_its_last_ten_attempts_and_how_each_ended() -> None:
    status = attempts.open_attempt(JobStatus(), NOW)
    for number in range(1, 12):
        status = attempts.next_attempt(status, LOST, NOW + number)
    assert [a.number for a in status.attempts] == list(range(2, 12))
    ended = status.attempts[-2]
    assert (ended.start, ended.end) == (stamp(NOW + 10), stamp(NOW + 11))
    assert (ended.cause, ended.rule, ended.exit_code, ended.node) == (f"Error: {'x' * 1017}", "mine", 7, "gpu-7")


def test_an_attempt_is_opened_once_and_none_is_closed_where_none_is_open() -> None:
    saved = JobStatus(last_checkpoint=LastCheckpoint(step=0, uri="", time=""))
    opened = attempts.open_attempt(saved, NOW)
    assert attempts.open_attempt(opened, NOW + 1) is opened
    assert opened.attempts[0].resumed_step == 0
    assert attempts.open_attempt(JobStatus(), NOW).attempts[0].resumed_step is None
    assert attempts.close_attempt(JobStatus(), LOST, NOW) == JobStatus()
    plain = attempts.close_attempt(opened, Termination("", "Error", ""), NOW).attempts[0]
    assert (plain.rule, plain.exit_code, plain.node) == (None, None, None)


def test_delays_double_up_to_a_minute_and_only_for_the_member_that_fails() -> None:
    status, now, delays = JobStatus(), NOW, []
    for _ in range(9):
        status = incarnations.next_incarnation(status, {"trainer-1"}, now)
        entry = incarnations.numbers(status).of("trainer-1")
        delays.append(entry.delay_seconds)
        assert "failures" not in msgspec.to_builtins(entry), "the delay says it"
        now = incarnations.starts_at(entry)
    assert delays == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    assert incarnations.numbers(status).of("trainer-0").number == 0


@pytest.mark.parametrize("losses", list(itertools.product((True, False), repeat=6)))
def test_a_member_keeps_failing_once_three_of_its_pods_in_a_row_failed_however_many_others_were_disrupted(
    losses: tuple[bool, ...],
) -> None:
    status = JobStatus()
    for place, fails in enumerate(losses):
        now = NOW + 100 * place
        status = incarnations.next_incarnation(status, {"trainer-1"}, now, spared=set() if fails else {"trainer-1"})
        entry = incarnations.numbers(status).of("trainer-1")
        assert incarnations.keeps_failing(entry, now) == (sum(losses[: place + 1]) >= 3)
        status = msgspec.json.decode(msgspec.json.encode(status), type=JobStatus)
    assert not incarnations.keeps_failing(incarnations.numbers(status).of("trainer-1"), NOW + 2000)
    assert incarnations.numbers(status).of("trainer-1").delay_seconds == 16, "all of them wait"


def test_a_row_of_failures_ends_with_a_pod_that_works_for_long() -> None:
    status, now = JobStatus(), NOW
    for fails in (True, True, False):
        status = incarnations.next_incarnation(status, {"a"}, now, spared=set() if fails else {"a"})
    for _ in range(2):
        now += 700
        status = incarnations.next_incarnation(status, {"a"}, now, spared={"a"})
    for expected in (False, False, True):
        status = incarnations.next_incarnation(status, {"a"}, now)
        assert incarnations.keeps_failing(incarnations.numbers(status).of("a"), now) == expected


def test_pods_that_a_suspension_a_scale_or_a_retry_replaces_have_not_failed() -> None:
    """Three replacements of a failed pod come before the whole job's, however soon after such a start."""
    status = incarnations.next_incarnation(JobStatus(), {"a"}, NOW)
    for pods in range(2):
        started = incarnations.renew_all(status, NOW + pods)
        assert not incarnations.keeps_failing(incarnations.numbers(started).of("a"), NOW + pods)
        status = started
        for expected in (False, False, True):
            status = incarnations.next_incarnation(status, {"a"}, NOW + pods)
            assert incarnations.keeps_failing(incarnations.numbers(status).of("a"), NOW + pods) == expected


@pytest.mark.parametrize(
    ("fails", "worked", "number", "delay"),
    [("trainer-0", 599, 3, 2), ("trainer-0", 600, 3, 0), ("trainer-1", 599, 4, 4), ("trainer-1", 600, 4, 0)],
)
def test_a_delay_is_forgotten_after_ten_minutes_of_work(fails: str, worked: float, number: int, delay: int) -> None:
    status = JobStatus()
    for _ in range(3):
        status = incarnations.next_incarnation(status, {"trainer-1"}, NOW)
    status = incarnations.next_incarnation(status, {fails}, NOW + 2 + worked)
    entry = incarnations.numbers(status).of("trainer-1")
    assert (entry.number, entry.delay_seconds) == (number, delay)


@pytest.mark.parametrize(("how", "delay"), [({}, 0), ({"delayed": True}, 1), ({"delayed": False}, 0)])
def test_all_members_get_a_number_above_the_highest_and_no_entry_of_their_own(how: dict[str, bool], delay: int) -> None:
    status = JobStatus()
    assert incarnations.renew_all(status, NOW) is status  # it had no pods
    for members in ({"trainer-1"}, {"trainer-1"}, {"trainer-0"}):
        status = incarnations.next_incarnation(changed(status, seen="coordinator"), members, NOW)
    (common,) = incarnations.renew_all(status, NOW).incarnations
    assert (common.name, common.number, common.delay_seconds) == ("all", 3, 0)
    again = incarnations.renew_all(changed(status, incarnations=(common,)), NOW, **how)
    assert [(e.number, e.delay_seconds) for e in again.incarnations] == [(4, delay)]
    assert again.seen == ""


BEFORE = JobStatus(
    world_generation=4,
    layout=LayoutStatus(hash="sha256:0", summary="old"),
    last_checkpoint=LastCheckpoint(step=5, uri="file:///old", time=stamp(NOW)),
)


@pytest.mark.parametrize("answer", [None, *(report(phase, 7) for phase in ("Waiting", "Indexing", "Starting"))])
def test_a_coordinator_that_does_not_train_yet_leaves_the_progress_as_it_was(answer: JobReport | None) -> None:
    assert progress.apply_report(BEFORE, answer) is BEFORE


@pytest.mark.parametrize(
    ("answer", "step", "percent", "idle", "eta"),
    [
        (report("Running", 7, steps=8, eta_seconds=9, idle_fraction=0.25), 7, "87.5", "25.0", 9),
        (report("Running", -1, eta_seconds=-1), 0, "0.0", "5.0", 0),
        (report("Running", 7, steps=0), 7, "0.0", "5.0", 60),
    ],
)
def test_progress_is_in_decimals_and_never_negative(
    answer: JobReport, step: int, percent: str, idle: str, eta: int
) -> None:
    found = progress.apply_report(BEFORE, answer).progress
    assert found is not None and (found.step, found.percent, found.eta_seconds) == (step, percent, eta)
    assert (found.idle_percent, found.loss, found.tokens_per_second) == (idle, "2.5000", "1000")


@pytest.mark.parametrize(
    ("step", "percent"),
    [(604_800, "100.0"), (604_799, "99.9"), (604_196, "99.9"), (604_195, "99.8"), (604, "0.0"), (605, "0.1")],
)
def test_a_run_of_a_week_is_not_whole_before_its_last_step(step: int, percent: str) -> None:
    """A tenth of a percent is ten minutes of it."""
    found = progress.apply_report(BEFORE, report("Running", step, steps=604_800)).progress
    assert found is not None and found.percent == percent


def test_a_coordinator_that_has_seen_no_step_leaves_the_rate_of_the_run() -> None:
    before = progress.apply_report(BEFORE, report("Running", 7))
    after = progress.apply_report(before, report("Completed", 9, tokens_per_second=0.0)).progress
    assert after is not None and (after.step, after.tokens_per_second) == (9, "1000")
    slow = progress.apply_report(before, report("Running", 9, tokens_per_second=1.0)).progress
    none = progress.apply_report(JobStatus(), report("Running", 9, tokens_per_second=0.0)).progress
    assert slow is not None and none is not None
    assert (slow.tokens_per_second, none.tokens_per_second) == ("1", "0")


def test_the_loss_on_held_out_documents_stays_while_a_new_coordinator_has_seen_none() -> None:
    before = progress.apply_report(BEFORE, report("Running", 7, evaluation_loss=2.25, evaluation_step=4))
    for answer, loss in ((report("Running", 8), "2.2500"), (report("Running", 9, evaluation_loss=2.0), "2.0000")):
        after = progress.apply_report(before, answer).progress
        assert after is not None and after.evaluation_loss == loss


@pytest.mark.parametrize("known", [False, True])
def test_a_report_without_checkpoint_layout_and_loss_keeps_those_of_before(known: bool) -> None:
    nothing: dict[str, Any] = {"checkpoint_step": -1, "layout_hash": "", "loss": None}
    after = progress.apply_report(BEFORE, report("Running", 0, **({} if known else nothing)))
    assert after.last_checkpoint is not None and after.layout is not None and after.progress is not None
    assert (after.last_checkpoint.step, after.layout.hash) == ((0, "sha256:1") if known else (5, "sha256:0"))
    assert (after.progress.loss, after.world_generation) == ("2.5000" if known else None, 1)


SLOW = StragglerReport("trainer-1", 2, "node-b", 2.0, 7, NOW, "Device", "rebalanced")


def test_slow_devices_are_named_the_first_five_and_none_once_all_are_well() -> None:
    after = progress.apply_report(BEFORE, report("Running", 9, stragglers=(SLOW, *(changed(SLOW, device=3),) * 6)))
    assert after.stragglers and len(after.stragglers) == 5
    assert to_manifest(after)["stragglers"][0] == {
        "trainer": "trainer-1", "device": 2, "node": "node-b", "slowdown": "2.00", "since": stamp(NOW), "sinceStep": 7,
        "cause": "Device", "action": "rebalanced",
    }  # fmt: skip
    assert "stragglers" not in to_manifest(progress.apply_report(after, report("Running", 10)))


@pytest.mark.parametrize(("now_slow", "at_once"), [({"slowdown": 2.1}, False), ({"device": 3}, True)])
def test_another_slow_device_is_written_at_once_and_another_slowdown_with_the_progress(
    now_slow: dict[str, Any], at_once: bool
) -> None:
    first = Scene(GANG, report("Running", 1, stragglers=(SLOW,))).decide().of(WriteStatus)[0]
    assert isinstance(first, WriteStatus)
    later = report("Running", 2, stragglers=(changed(SLOW, **now_slow),))
    assert bool(Scene(GANG, later, status=first.status, now=NOW + 1).decide().of(WriteStatus)) is at_once


@pytest.mark.parametrize(
    ("pod", "ready", "replicas"),
    [
        (TRAINER, 2, 2),
        (replace(TRAINER, ready=False), 1, 2),
        (replace(TRAINER, deleting=True), 1, 2),
        (replace(TRAINER, phase="Failed"), 1, 1),
        (replace(TRAINER, incarnation=1), 1, 2),  # not the current one
    ],
)
def test_trainers_that_are_there_and_ready_are_counted(pod: PodView, ready: int, replicas: int) -> None:
    scene = Scene((*GANG[:3], pod))
    after = progress.count_pods(scene.context().status, scene.context())
    assert (after.ready, after.trainers.ready, after.replicas) == (f"{ready}/2", ready, replicas)
    assert after.selector == "coxswain.dev/job-uid=u,coxswain.dev/role=trainer"


def test_an_absent_status_is_that_of_a_job_that_has_done_nothing() -> None:
    nothing = {"counted": 0, "ignored": 0}, {"ready": 0, "desired": 0, "asked": 0}
    assert to_manifest(read_status({})) == {
        "observedGeneration": 0, "conditions": [], "attempt": 0, "worldGeneration": 0, "trainers": nothing[1],
        "replicas": 0, "selector": "", "ready": "", "incarnations": [], "seen": "", "restarts": nothing[0],
        "attempts": [], "activeSeconds": 0, "updatedAt": "",
    }  # fmt: skip
    assert to_manifest(Condition(type="Succeeded", status="True", reason="Completed")) == {
        "type": "Succeeded", "status": "True", "reason": "Completed", "message": "", "lastTransitionTime": "",
        "observedGeneration": 0,
    }  # fmt: skip
    assert to_manifest(Incarnation(name="all", number=0)) == {"name": "all", "number": 0}
    assert not read_status({}).ended and read_status({}).state == ""


def test_what_reconcile_reads_has_the_apis_defaults() -> None:
    spec, policy, api = read_spec({}), read_spec({}).failure_policy, TrainingJobSpec.model_fields
    assert spec.trainers.count == 1
    assert spec.checkpoint.every_steps == Checkpoint.model_fields["every_steps"].default
    assert policy.max_restarts == FailurePolicy().max_restarts
    assert policy.rules == tuple(FailurePolicy().rules)
    for name in ("suspend", "active_deadline_seconds", "start_timeout_seconds", "ttl_seconds_after_finished"):
        assert getattr(spec, name) == api[name].default
    (rule,) = read_spec({"spec": {"failurePolicy": {"rules": [
        {"name": "mine", "action": "Fail", "onPodConditions": [{"type": "Ready"}]},
    ]}}}).failure_policy.rules  # fmt: skip
    assert rule.on_pod_conditions is not None
    assert rule.on_pod_conditions[0].status == OnCondition(type="Ready").status
    assert (rule.on_exit_codes, rule.on_node_conditions, rule.on_reasons) == (None, None, None)


FOUND = SourceReport("code", "code", 3, 40, 5, 6, 7, 8, 0, "sha256:1")


def indexed(source: Manifest | None, now: float, found: SourceReport = FOUND) -> tuple[WriteStatus, ...]:
    """The writes about the source `code`, which has this status."""
    scene = Scene((COORDINATOR,), report("Running", 1, sources=(found,)), now=now)
    context = scene.context()
    context.observed.sources[0]["status"] = source
    return sources.statuses(context)


def test_a_sources_status_is_written_when_it_says_something_new_and_keeps_its_transition_time() -> None:
    (first,) = indexed(None, NOW)
    assert (first.kind, first.name, first.status["tokens"]) == ("DataSource", "code", "40")
    assert first.status["lengths"] == {"p50": 5, "p90": 6, "p99": 7, "max": 8}
    DataSourceStatus.model_validate(first.status)
    assert indexed(first.status, NOW + 9) == ()
    assert indexed(None, NOW, changed(FOUND, source="another")) == ()
    (second,) = indexed(first.status, NOW + 9, changed(FOUND, documents=4))
    assert second.status["conditions"] == first.status["conditions"]
    unready = {"conditions": [{"type": "Other"}, condition("Ready", "False")]}
    (third,) = indexed(unready, NOW + 9)
    assert third.status["conditions"][0]["lastTransitionTime"] == stamp(NOW + 9)


FOREIGN = condition("PolicyChecked", "True")


def test_a_condition_that_another_controller_keeps_in_a_status_is_no_reason_to_write_it_again() -> None:
    """The server keeps it, since another field manager owns it: each pass would find a status that is not its own."""
    scene = Scene(GANG, report("Running", 10))
    (write,) = scene.decide().of(WriteStatus)
    assert isinstance(write, WriteStatus)
    known = {**write.status, "conditions": [*write.status["conditions"], FOREIGN]}
    assert replace(scene, status=known).decide().of(WriteStatus) == ()
    (source,) = indexed(None, NOW)
    assert indexed({**source.status, "conditions": [FOREIGN, *source.status["conditions"]]}, NOW + 9) == ()


# --- mode Auto ---------------------------------------------------------------------------------------------------------

CHOSEN = StrategyReport(PredictedLayout("2 x tp1pp1", 0.5, 100), (PredictedLayout("1 x tp1pp2", 0.75, 50),))


def test_a_strategy_is_in_the_status_with_its_alternatives_and_the_measured_time_beside_the_predicted_one() -> None:
    after = to_manifest(progress.apply_report(BEFORE, report("Running", 7, strategy=CHOSEN, step_seconds=0.6125)))
    assert after["strategy"] == {
        "layout": "2 x tp1pp1",
        "predictedStepSeconds": "0.500",
        "alternatives": [{"layout": "1 x tp1pp2", "predictedStepSeconds": "0.750"}],
    }
    assert after["progress"]["stepSeconds"] == "0.613"


def test_a_strategy_stays_when_the_job_has_ended_and_goes_with_mode_fixed() -> None:
    chosen = progress.apply_report(BEFORE, report("Running", 7, strategy=CHOSEN, step_seconds=0.5))
    ended = progress.apply_report(chosen, report("Completed", 9))
    assert ended.strategy == chosen.strategy
    assert ended.progress is not None
    assert ended.progress.step_seconds == "0.500"
    assert "strategy" not in to_manifest(progress.apply_report(chosen, report("Running", 8)))


def test_measured_times_of_steps_alone_are_no_reason_to_write_the_status_at_once() -> None:
    first, second = (
        progress.apply_report(WRITTEN, report("Running", 1, strategy=CHOSEN, step_seconds=s)) for s in (0.5, 0.6)
    )
    assert AT_ONCE < due_at(first, second, NOW) < NEVER


def test_a_time_that_cannot_be_written_is_the_nearest_that_can() -> None:
    assert [stamp(s) for s in (-1e300, 1e300)] == ["1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z"]


LONG, HUGE = "x" * 5000, 1e300
ENDLESSLY_SLOW = StragglerReport("trainer-1", 0, "n", HUGE, 7, 1000.0, "Node", LONG)
WEIGHED = PredictedLayout(LONG, HUGE)


@pytest.mark.parametrize(
    "said",
    [
        {"layout_summary": LONG},
        {"loss": HUGE, "evaluation_loss": -HUGE, "step_seconds": HUGE},
        {"loss": float("nan"), "tokens_per_second": float("inf")},
        {"tokens_per_second": HUGE, "idle_fraction": HUGE, "eta_seconds": 10**30},
        {"strategy": StrategyReport(WEIGHED, (WEIGHED,) * 8)},
        {"stragglers": (ENDLESSLY_SLOW,) * 9},
        {"stragglers": (StragglerReport(LONG, 10**30, LONG, HUGE, -1, HUGE, LONG), ENDLESSLY_SLOW)},
        {"strategy": StrategyReport(WEIGHED, (WEIGHED,) * 20)},
        {"checkpoint_time": HUGE, "checkpoint_step": 10**30, "checkpoint_uri": LONG},
        {"checkpoint_time": -HUGE},
        {"generation": 10**30, "steps": 10**30, "tokens": 10**30, "layout_hash": LONG},
        {"generation": -1, "steps": -1, "tokens": -1},
        {"events": (JobEvent(10**30, HUGE, "CheckpointSaved", LONG), JobEvent(7, HUGE, "CheckpointSaved", LONG))},
        {"waiting_for": LONG, "slow": LONG},
        {"fault": Fault(LONG, LONG)},
        {"fault": Fault("", "")},
    ],
    ids=", ".join,
)
def test_whatever_a_report_says_the_server_takes_the_status(said: dict[str, Any]) -> None:
    (write,) = Scene(GANG, report("Running", 10, **said)).decide().of(WriteStatus)
    TrainingJobStatus.model_validate(write.status)
    assert write.status["progress"]["step"] == 10


@pytest.mark.parametrize("said", ["", LONG])
def test_whatever_a_worker_writes_as_its_fault_the_server_takes_the_status(said: str) -> None:
    text = msgspec.json.encode(Fault(said, said)).decode()
    (write,) = Scene((*GANG[:3], ended(2, message=text))).decide().of(WriteStatus)
    TrainingJobStatus.model_validate(write.status)
    assert read_status({"status": write.status}).state == "Failed"


@pytest.mark.parametrize(("delayed", "delay"), [(False, 0), (True, 8)])
def test_of_restarts_of_all_pods_only_one_for_a_failure_waits_for_the_back_off(delayed: bool, delay: int) -> None:
    failing = Incarnation(name=incarnations.ALL_MEMBERS, number=3, since=stamp(NOW - 10), delay_seconds=4)
    status = JobStatus(seen="coordinator", incarnations=(failing,))
    (common,) = incarnations.renew_all(status, NOW, delayed).incarnations
    assert (common.number, common.delay_seconds) == (4, delay)
