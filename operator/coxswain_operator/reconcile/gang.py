"""Which pods and other children should exist now: the difference to what does."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from coxswain.config import JobConfig
from coxswain_operator.children import CONTENT, children, pod
from coxswain_operator.cluster import Manifest
from coxswain_operator.reconcile import attempts, failure, incarnations, suspend
from coxswain_operator.reconcile.situation import Situation
from coxswain_operator.reconcile.status import JobStatus
from coxswain_operator.reconcile.step import Step
from coxswain_operator.reconcile.times import stamp
from coxswain_operator.reconcile.values import Create, Delete, PodView


def kept(s: Situation, config: JobConfig) -> Step:
    """A pass of a job that should run: replaces what is lost, creates what is missing."""
    found = failure.verdicts(s)
    status = failure.restarted(s, found) if found else s.status
    status = _begun(s, incarnations.first(status, s.members, s.now), config)
    deletes = (*_stale_pods(s, status), *_stale_children(s, config))
    return Step(
        state=s.state_of_gang,
        status=status,
        message=s.report.waiting_for if s.report else "",
        deletes=deletes,
        creates=(*_missing_children(s, config), *_missing_pods(s, status, config)),
        calls=suspend.calls(s),
        happenings=failure.happenings(found),
        wakes=tuple(_delays(s, status)),
    )


def _begun(s: Situation, status: JobStatus, config: JobConfig) -> JobStatus:
    """Opens the first attempt and settles the size of the gang; after a restart of the whole job the next pass does."""
    status = replace(attempts.opened(status, s.now), start_time=status.start_time or stamp(s.now))
    if status.attempt != s.status.attempt:
        return status
    return replace(status, trainers=replace(status.trainers, desired=config.trainers))


def _stale_pods(s: Situation, status: JobStatus) -> Iterator[Delete]:
    """Pods of older incarnations, and of members that the gang no longer has."""
    numbers = {e.name: e.number for e in status.incarnations if e.name in s.members}
    for p in s.observed.pods:
        if numbers.get(p.member) != p.incarnation and not p.deleting:
            yield Delete("Pod", p.name, p.uid)


def _missing_pods(s: Situation, status: JobStatus, config: JobConfig) -> Iterator[Create]:
    """Current pods that do not exist, whose delay is over, and whose predecessor runs no more."""
    if any(_stale_children(s, config)) or status.attempt != s.status.attempt:
        return  # a pod must not start from a ConfigMap that is about to be replaced
    occupied = {p.member for p in s.observed.pods if p.live or _is_current(p, status)}
    for entry in status.incarnations:
        free = entry.name in s.members and entry.name not in occupied
        if free and not entry.uid and incarnations.starts_at(entry) <= s.now:
            yield Create(pod(s.observed.job, config, s.settings, entry.name, entry.number, status.attempt))


def _is_current(p: PodView, status: JobStatus) -> bool:
    return any(e.name == p.member and e.number == p.incarnation for e in status.incarnations)


def _delays(s: Situation, status: JobStatus) -> Iterator[float]:
    """When to look again: delayed pods, and pods that have to run by then."""
    for entry in status.incarnations:
        if not entry.uid and incarnations.starts_at(entry) > s.now:
            yield incarnations.starts_at(entry)
    for p in s.observed.pods:
        due = p.created + s.spec.start_timeout_seconds
        if p.phase == "Pending" and due > s.now:
            yield due


def _wanted_children(s: Situation, config: JobConfig) -> tuple[Manifest, ...]:
    return children(s.observed.job, config, s.settings, s.observed.fresh_token)


def _missing_children(s: Situation, config: JobConfig) -> Iterator[Create]:
    present = {(c.kind, c.name) for c in s.observed.children}
    for manifest in _wanted_children(s, config):
        if (manifest["kind"], manifest["metadata"]["name"]) not in present:
            yield Create(manifest)


def _stale_children(s: Situation, config: JobConfig) -> Iterator[Delete]:
    """Children whose content has changed are made anew by the next pass. The Secret has no hash: its token never changes."""
    contents = {
        (m["kind"], m["metadata"]["name"]): m["metadata"]["annotations"].get(CONTENT, "")
        for m in _wanted_children(s, config)
    }
    for child in s.observed.children:
        stale = child.content != contents.get((child.kind, child.name), child.content)
        if stale and not child.deleting:
            yield Delete(child.kind, child.name, child.uid)
