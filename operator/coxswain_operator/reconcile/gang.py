"""Which pods should exist now: the difference to those that do."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from coxswain.config import JobConfig
from coxswain_operator.children import PodPlan
from coxswain_operator.reconcile import (
    attempts,
    belongings,
    deadlines,
    failure,
    incarnations,
    resize,
    stranded,
    suspend,
    waiting,
)
from coxswain_operator.reconcile.ranges import decoded
from coxswain_operator.reconcile.situation import Situation
from coxswain_operator.reconcile.status import JobStatus
from coxswain_operator.reconcile.step import Step
from coxswain_operator.reconcile.times import stamp
from coxswain_operator.reconcile.values import CreatePod, Delete


def kept(s: Situation, config: JobConfig) -> Step:
    """A pass of a job that should run: replaces what is lost, creates what is missing."""
    found = failure.verdicts(s)
    size = None if any(v.whole_job for v in found) else resize.due(s, config)
    status = failure.restarted(s, found) if found else s.status
    status = resize.restarted(s, status, size) if size else _begun(s, status, config)
    others = belongings.difference(s, config, status)
    starting = status.attempt == s.status.attempt and not others.deletes
    return Step(
        state=s.state_of_gang,
        status=status,
        reason=resize.reason(s),
        message=_message(s),
        deletes=(*_stale_pods(s, status), *stranded.forced(s), *others.deletes),
        creates=(*others.creates, *(_missing_pods(s, status, config) if starting else ())),
        calls=resize.calls(s) or suspend.calls(s),
        happenings=(*failure.happenings(found), *(resize.happenings(size) if size else ())),
        wakes=(*_delays(s, status), *_starts(s), *stranded.wakes(s), *resize.wakes(s)),
    )


def _begun(s: Situation, status: JobStatus, config: JobConfig) -> JobStatus:
    """Opens the first attempt and settles the size of the gang; after a restart of the whole job the next pass does."""
    status = replace(attempts.opened(status, s.now), start_time=status.start_time or stamp(s.now))
    if status.attempt != s.status.attempt:
        return status
    asked = status.trainers.asked or s.spec.trainers.count
    return replace(status, trainers=replace(status.trainers, desired=config.trainers, asked=asked))


def _message(s: Situation) -> str:
    """Who waits for whom: the coordinator's words, the cluster's, and those of pods that cannot start."""
    refused = f"{s.observed.refused.reason}: {s.observed.refused.message}" if s.observed.refused else ""
    waits = s.report.waiting_for if s.report else ""
    return "; ".join(filter(None, (resize.message(s), refused, waits, waiting.told(s.pods.values()))))


def _stale_pods(s: Situation, status: JobStatus) -> Iterator[Delete]:
    """Pods of older incarnations, and of members that the gang no longer has."""
    numbers, members = incarnations.numbers(status), frozenset(s.members)
    for p in s.observed.pods:
        current = p.member in members and numbers.of(p.member).number == p.incarnation
        if not (current or p.deleting):
            yield Delete("Pod", p.name, p.uid)


def _missing_pods(s: Situation, status: JobStatus, config: JobConfig) -> Iterator[CreatePod]:
    """Current pods that do not exist, whose delay is over, and whose predecessor runs no more."""
    numbers, seen = incarnations.numbers(status), decoded(status.seen)
    plan = PodPlan(s.observed.job, config, s.settings, status.attempt, numbers.everyone.number)
    occupied = {p.member for p in s.observed.pods if p.live or numbers.of(p.member).number == p.incarnation}
    for member in s.members:
        if member not in occupied and member not in seen:
            entry = numbers.of(member)
            if incarnations.may_start(entry, s.now):
                yield CreatePod(plan, member, entry.number)


def _starts(s: Situation) -> set[float]:
    """When pods that do not start are late, and when their silence is worth a word."""
    return deadlines.starts(s) | waiting.wakes(s.pods.values(), s.now)


def _delays(s: Situation, status: JobStatus) -> set[float]:
    """When delayed pods may be created."""
    times = {incarnations.starts_at(entry) for entry in status.incarnations}
    return {t for t in times if t > s.now}
