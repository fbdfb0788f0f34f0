"""Failure rules: what the job's policy says about each loss, and what follows for the counters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from coxswain.exits import Exit
from coxswain_operator.cluster import Happening
from coxswain_operator.reconcile import attempts, incarnations
from coxswain_operator.reconcile.losses import Loss, loss_of
from coxswain_operator.reconcile.situation import Situation
from coxswain_operator.reconcile.spec import Rule, RuleAction
from coxswain_operator.reconcile.status import JobStatus
from coxswain_operator.reconcile.step import Ending


@dataclass(frozen=True, slots=True)
class Verdict:
    loss: Loss
    rule: str
    action: RuleAction

    @property
    def counted(self) -> bool:
        return self.action in ("RestartTrainer", "RestartJob")

    @property
    def whole_job(self) -> bool:
        return self.action in ("RestartJob", "RestartJobIgnoringLimit")


def verdicts(s: Situation) -> tuple[Verdict, ...]:
    """One for each lost member."""
    found = (loss_of(s, member) for member in s.members)
    return tuple(judge(loss, s.spec.failure_policy.rules) for loss in found if loss)


# Behind the job's own rules. The first that matches decides.
BUILT_IN: tuple[tuple[str, Callable[[Loss], bool], RuleAction], ...] = (
    ("StopMoved", lambda loss: loss.reason in ("StoppedUnasked", "StopRaised"), "RestartJobIgnoringLimit"),
    ("Disruption", lambda loss: loss.disrupted, "RestartTrainerIgnoringLimit"),
    ("UserFault", lambda loss: loss.exit_code == Exit.USER_FAULT, "Fail"),
)


def judge(loss: Loss, rules: tuple[Rule, ...]) -> Verdict:
    """The first matching rule; else the built-in ones; else a counted restart."""
    for rule in rules:
        if matches(rule, loss):
            return Verdict(loss, rule.name, rule.action)
    for name, holds, action in BUILT_IN:
        if holds(loss):
            return Verdict(loss, name, action)
    return Verdict(loss, "Default", "RestartTrainer")


def matches(rule: Rule, loss: Loss) -> bool:
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
        tests.append(loss.reason in rule.on_reasons)
    return bool(tests) and all(tests)


def _conditions_of(loss: Loss) -> frozenset[tuple[str, str]]:
    """A pod that vanished or is being deleted counts as disrupted even where the condition was never seen."""
    own = loss.pod.conditions if loss.pod else frozenset[tuple[str, str]]()
    return own | {("DisruptionTarget", "True")} if loss.disrupted else own


def fatal(s: Situation, counting: bool = True) -> Ending | None:
    """The end that the losses of this pass bring, if they do. Not `counting`: only rules that say Fail."""
    found = verdicts(s)
    for verdict in found:
        if verdict.action == "Fail":
            return _failed_by(verdict)
    limit, counted = s.spec.failure_policy.max_restarts, count(found)
    if counting and counted and s.status.restarts.counted + counted > limit:
        last = next(v for v in found if v.counted)
        text = f"{last.loss.message}; restart {limit + 1} would exceed failurePolicy.maxRestarts ({limit})"
        return _ending("RestartLimitExceeded", text, last)
    return None


def _failed_by(verdict: Verdict) -> Ending:
    fault = verdict.loss.fault
    if fault is not None:
        return _ending(fault.reason, f"{verdict.loss.member}: {fault.message}", verdict)
    return _ending("FailurePolicy", f"{verdict.loss.message}; rule {verdict.rule} says Fail", verdict)


def _ending(reason: str, message: str, verdict: Verdict) -> Ending:
    loss = verdict.loss
    return Ending("Failed", reason, message, verdict.rule, loss.exit_code, loss.pod.node if loss.pod else "")


def count(found: tuple[Verdict, ...]) -> int:
    """A restart of the whole job counts once, however many pods asked for it."""
    if any(v.whole_job for v in found):
        return int(any(v.counted for v in found))
    return sum(v.counted for v in found)


def restarted(s: Situation, found: tuple[Verdict, ...]) -> JobStatus:
    """The status after the losses: counters and new numbers. Deleting the old pods follows from the numbers."""
    counted = count(found)
    ignored = 0 if counted and any(v.whole_job for v in found) else len(found) - counted
    old = s.status.restarts
    status = replace(s.status, restarts=replace(old, counted=old.counted + counted, ignored=old.ignored + ignored))
    whole = next((v for v in found if v.whole_job), None)
    if whole is None:
        return incarnations.following(status, {v.loss.member for v in found}, s.now)
    return _next_attempt(s, status, whole)


def _next_attempt(s: Situation, status: JobStatus, verdict: Verdict) -> JobStatus:
    """Everyone anew; the gang may have another size."""
    everyone = {e.name for e in status.incarnations if e.uid}
    status = incarnations.following(status, everyone, s.now)
    cause = _ending(verdict.loss.reason, verdict.loss.message, verdict)
    return replace(attempts.following(status, cause, s.now), trainers=replace(status.trainers, desired=0))


def happenings(found: tuple[Verdict, ...]) -> tuple[Happening, ...]:
    return tuple(
        Happening(
            "NodeLost" if v.loss.disrupted else "WorkerRestarted", f"{v.loss.message}; {v.rule}: {v.action}", True
        )
        for v in found
    )
