"""Failure rules: what the job's policy says about each loss, and what follows for the counters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from coxswain.exits import Exit
from coxswain_operator.reconcile import attempts, incarnations, shared_causes
from coxswain_operator.reconcile.context import Context
from coxswain_operator.reconcile.member_failures import MemberFailure, detect_failure
from coxswain_operator.reconcile.result import Termination
from coxswain_operator.reconcile.spec import Rule, RuleAction
from coxswain_operator.reconcile.status import JobStatus
from coxswain_operator.views import Event

MAX_EVENTS = 5  # losses of one pass that get an Event each


@dataclass(frozen=True, slots=True)
class Verdict:
    failure: MemberFailure
    rule: str
    action: RuleAction
    own: bool = False  # by one of the job's own rules
    repeats: bool = False  # its cause is counted with another member

    @property
    def counted(self) -> bool:
        """What the cluster or a person did to a pod is never counted, whatever rule decides about it; a shared cause once."""
        return self.action in ("RestartTrainer", "RestartJob") and not (self.failure.disrupted or self.repeats)

    @property
    def whole_job(self) -> bool:
        return self.action in ("RestartJob", "RestartJobIgnoringLimit")


def verdicts(ctx: Context) -> tuple[Verdict, ...]:
    """One for each lost member."""
    found = (detect_failure(ctx, member) for member in ctx.members)
    judged = [judge(loss, ctx.spec.failure_policy.rules) for loss in found if loss]
    decided = [v for v in judged if v.own or not v.failure.only_by_rule]
    repeated = shared_causes.repeated(ctx, [v.failure for v in decided if v.counted])
    return tuple(_escalated(ctx, dataclasses.replace(v, repeats=v.failure.member in repeated)) for v in decided)


def _escalated(ctx: Context, verdict: Verdict) -> Verdict:
    """A pod that keeps failing after its replacements restarts the whole job from its checkpoint.

    Not a loader: it holds no state of the world that another start could repair.
    """
    if verdict.failure.member.startswith("loader-"):
        return verdict
    entry = ctx.numbers.of(verdict.failure.member)
    if not (verdict.counted and incarnations.keeps_failing(entry, ctx.now) and verdict.action == "RestartTrainer"):
        return verdict
    return Verdict(verdict.failure, "Escalation", "RestartJob")


# Behind the job's own rules. The first that matches decides.
BUILT_IN: tuple[tuple[str, Callable[[MemberFailure], bool], RuleAction], ...] = (
    ("StopMoved", lambda loss: loss.reason in ("StoppedUnasked", "StopRaised"), "RestartJobIgnoringLimit"),
    ("Disruption", lambda loss: loss.disrupted, "RestartTrainerIgnoringLimit"),
    ("UserFault", lambda loss: loss.exit_code == Exit.USER_FAULT, "Fail"),
)


def judge(loss: MemberFailure, rules: tuple[Rule, ...]) -> Verdict:
    """No rule judges a planned exit. Else the first match: of the job's rules, of BUILT_IN, at last a counted replacement."""
    if loss.planned:
        return Verdict(loss, loss.reason, "RestartJobIgnoringLimit")
    for rule in rules:
        if matches(rule, loss):
            return Verdict(loss, rule.name, rule.action, own=True)
    for name, holds, action in BUILT_IN:
        if holds(loss):
            return Verdict(loss, name, action)
    return Verdict(loss, "Default", "RestartTrainer")


def matches(rule: Rule, loss: MemberFailure) -> bool:
    """Everything that the rule names must hold; a rule that names nothing matches nothing."""
    tests = []
    if rule.on_exit_codes:
        inside = loss.exit_code in rule.on_exit_codes.values
        tests.append(loss.exit_code is not None and inside == (rule.on_exit_codes.operator == "In"))
    if rule.on_pod_conditions:
        tests.append(bool(_conditions_of(loss) & {(c.type, c.status) for c in rule.on_pod_conditions}))
    if rule.on_node_conditions:
        of_node = loss.pod.node_conditions if loss.pod else frozenset[tuple[str, str]]()
        tests.append(bool(of_node & {(c.type, c.status) for c in rule.on_node_conditions}))
    if rule.on_reasons:
        tests.append(bool(loss.reasons.intersection(rule.on_reasons)))
    return bool(tests) and all(tests)


def _conditions_of(loss: MemberFailure) -> frozenset[tuple[str, str]]:
    """A pod that vanished or is being deleted counts as disrupted even where the condition was never seen."""
    own = loss.pod.conditions if loss.pod else frozenset[tuple[str, str]]()
    return own | {("DisruptionTarget", "True")} if loss.disrupted else own


def find_fatal(ctx: Context, found: Sequence[Verdict], counting: bool) -> Termination | None:
    """The end that the losses of this pass bring, if they do. Not `counting`: only rules that say Fail."""
    for verdict in found:
        if verdict.action == "Fail":
            return _fail_termination(verdict)
    limit, counted = ctx.spec.failure_policy.max_restarts, count(found)
    if counting and counted and ctx.status.restarts.counted + counted > limit:
        last = next(v for v in found if v.counted)
        text = f"{last.failure.message}; restart {limit + 1} would exceed failurePolicy.maxRestarts ({limit})"
        return _termination("RestartLimitExceeded", text, last)
    return None


def _fail_termination(verdict: Verdict) -> Termination:
    fault = verdict.failure.fault
    if fault is not None:
        return _termination(fault.reason, fault.message, verdict)  # without a member: all of them report it
    return _termination("FailurePolicy", f"{verdict.failure.message}; rule {verdict.rule} says Fail", verdict)


def _termination(reason: str, message: str, verdict: Verdict) -> Termination:
    loss = verdict.failure
    return Termination("Failed", reason, message, verdict.rule, loss.exit_code, loss.pod.node if loss.pod else "")


def count(found: Sequence[Verdict]) -> int:
    """A restart of the whole job counts once, however many pods asked for it."""
    if any(v.whole_job for v in found):
        return int(any(v.counted for v in found))
    return sum(v.counted for v in found)


def record_restarts(ctx: Context, found: tuple[Verdict, ...]) -> JobStatus:
    """The status after the losses: counters and new numbers. Deleting the old pods follows from the numbers."""
    counted = count(found)
    unplanned = sum(not v.failure.planned for v in found)
    ignored = 0 if counted and any(v.whole_job for v in found) else unplanned - counted
    old = ctx.status.restarts
    status = replace(ctx.status, restarts=replace(old, counted=old.counted + counted, ignored=old.ignored + ignored))
    whole = next((v for v in found if v.whole_job), None)
    if whole is None:
        spared = {v.failure.member for v in found if not v.counted}
        return incarnations.next_incarnation(status, {v.failure.member for v in found}, ctx.now, spared=spared)
    return _next_attempt(ctx, status, whole)


def _next_attempt(ctx: Context, status: JobStatus, verdict: Verdict) -> JobStatus:
    """Replaces all members; the gang may have another size. Nothing but the back-off bounds restarts that do not count."""
    delayed, failed = not verdict.failure.planned, status.restarts.counted > ctx.status.restarts.counted
    status = incarnations.renew_all(status, ctx.now, delayed, failed)
    cause = _termination(verdict.failure.reason, verdict.failure.message, verdict)
    return attempts.unsettled(attempts.next_attempt(status, cause, ctx.now))


def failure_events(found: tuple[Verdict, ...]) -> tuple[Event, ...]:
    """One for each loss; of many only the first ones and their number."""
    events = [_failure_event(v) for v in found[:MAX_EVENTS]]
    more = len(found) - len(events)
    rest = (
        (Event(events[-1].reason, f"{more} more members failed in the same pass", events[-1].warning),) if more else ()
    )
    return (*events, *rest)


def _failure_event(verdict: Verdict) -> Event:
    loss = verdict.failure
    if loss.planned:
        return Event("Resumed" if loss.reason == "Resumed" else "Scaled", loss.message)
    node = loss.lost_node
    text = "; ".join(filter(None, (loss.message, node, f"{verdict.rule}: {verdict.action}")))
    return Event("NodeLost" if node else "PodDisrupted" if loss.disrupted else "WorkerRestarted", text, True)
