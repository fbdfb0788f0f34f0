"""The counters of pods: which number is current, which comes next, and when it may start."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from coxswain_operator.reconcile.status import Incarnation, JobStatus
from coxswain_operator.reconcile.times import seconds, stamp
from coxswain_operator.reconcile.values import PodView

HEALTHY_SECONDS = 600  # a pod that lived this long starts the back-off anew
LONGEST_DELAY_SECONDS = 60


def seen(status: JobStatus, pods: dict[str, PodView]) -> JobStatus:
    """Remembers the uids of pods that are there, so that a pod which vanishes is known to have been."""
    entries = tuple(
        replace(e, uid=pods[e.name].uid) if e.name in pods and e.uid != pods[e.name].uid else e
        for e in status.incarnations
    )
    return replace(status, incarnations=entries)


def first(status: JobStatus, members: tuple[str, ...], now: float) -> JobStatus:
    """Gives every new member its number 0."""
    known = {e.name for e in status.incarnations}
    new = tuple(Incarnation(name=m, number=0, since=stamp(now)) for m in members if m not in known)
    return replace(status, incarnations=status.incarnations + new)


def following(status: JobStatus, members: Collection[str], now: float) -> JobStatus:
    """The next number for these members, with a growing delay for those that do not live long."""
    entries = tuple(_next(e, now) if e.name in members else e for e in status.incarnations)
    return replace(status, incarnations=entries)


def renewed(status: JobStatus, now: float) -> JobStatus:
    """The next number, without delay, for every member that has had a pod."""
    entries = tuple(
        Incarnation(name=e.name, number=e.number + 1, since=stamp(now)) if e.uid else e for e in status.incarnations
    )
    return replace(status, incarnations=entries)


def starts_at(entry: Incarnation) -> float:
    return seconds(entry.since) + entry.delay_seconds


def _next(entry: Incarnation, now: float) -> Incarnation:
    """The first replacement is immediate; then 1, 2, 4 ... seconds."""
    lived = now - starts_at(entry)
    calm = entry.number == 0 or lived >= HEALTHY_SECONDS
    delay = 0 if calm else min(LONGEST_DELAY_SECONDS, max(1, 2 * entry.delay_seconds))
    return Incarnation(name=entry.name, number=entry.number + 1, since=stamp(now), delay_seconds=delay)
