"""The counters of pods: which number is current, which comes next, and when it may start.

Nearly all members have the same number: it is stored once, under ALL_MEMBERS; only exceptions have entries.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from msgspec import UNSET
from msgspec.structs import replace

from coxswain_operator.reconcile.ranges import decode, encode
from coxswain_operator.reconcile.status import Incarnation, JobStatus
from coxswain_operator.reconcile.times import seconds, stamp

ALL_MEMBERS = "all"
HEALTHY_SECONDS = 600  # a pod that runs this long resets the back-off
LONGEST_DELAY_SECONDS = 60
MANY = 3  # replacements in a row, behind which one more failure is the whole job's


@dataclass(frozen=True, slots=True)
class Numbers:
    """The current entry of every member."""

    default: Incarnation
    exceptions: dict[str, Incarnation]

    def of(self, member: str) -> Incarnation:
        return self.exceptions.get(member, self.default)


def numbers(status: JobStatus) -> Numbers:
    entries = {e.name: e for e in status.incarnations}
    return Numbers(entries.pop(ALL_MEMBERS, Incarnation(name=ALL_MEMBERS, number=0)), entries)


def mark_seen(status: JobStatus, members: Collection[str]) -> JobStatus:
    """Remembers whose current pods have been there, so that a pod which vanishes is known to have been."""
    known = decode(status.seen)
    return status if known.issuperset(members) else replace(status, seen=encode(known.union(members)))


def next_incarnation(
    status: JobStatus, members: Collection[str], now: float, delayed: bool = True, spared: Collection[str] = ()
) -> JobStatus:
    """The next number for these members. `delayed`: with the back-off of failures. `spared`: those whose loss is not counted."""
    found = numbers(status)
    changed = {m: _next(replace(found.of(m), name=m), now, delayed, m not in spared) for m in members}
    kept = {name: _forget_delay(e, now) for name, e in found.exceptions.items()}
    unseen = encode(decode(status.seen).difference(members))
    return replace(status, incarnations=_entries(found.default, kept | changed), seen=unseen)


def renew_all(status: JobStatus, now: float, delayed: bool = False, failed: bool = False) -> JobStatus:
    """An unused number for all members, if any had a pod or a number of its own. `delayed`: with the back-off of failures.

    `failed`: a failure that counts is the cause.
    """
    found = numbers(status)
    if not (status.seen or found.exceptions):
        return status
    following = _next(found.default, now, delayed, failed)
    highest = max((e.number for e in found.exceptions.values()), default=0)
    number = max(following.number, highest + 1)
    return replace(status, incarnations=(replace(following, number=number),), seen="")


def starts_at(entry: Incarnation) -> float:
    return seconds(entry.since) + entry.delay_seconds


def may_start(entry: Incarnation, now: float) -> bool:
    """Whether its delay is over. One that begins in the future stems from before the clock was set back, and would not end."""
    return not seconds(entry.since) <= now < starts_at(entry)


def unsettled(entry: Incarnation, now: float) -> bool:
    """A pod of this number cannot have run for long yet. A number without `since` is settled."""
    return now - starts_at(entry) < HEALTHY_SECONDS


def keeps_failing(entry: Incarnation, now: float) -> bool:
    """It replaces the third pod in a row, or a later one, that failed and never ran for long."""
    return _failures(entry) >= MANY and unsettled(entry, now)


def _failures(entry: Incarnation) -> int:
    return _in_row(entry) if entry.failures is UNSET else entry.failures


def _in_row(entry: Incarnation) -> int:
    """How many pods in a row never ran for long, as its delay says (`_next`); MANY for all beyond."""
    return min(MANY, 1 + entry.delay_seconds)


def _entries(default: Incarnation, exceptions: dict[str, Incarnation]) -> tuple[Incarnation, ...]:
    common = (default,) if default.number else ()
    return (*common, *(exceptions[name] for name in sorted(exceptions)))


def _next(entry: Incarnation, now: float, delayed: bool, failed: bool) -> Incarnation:
    """The first replacement is immediate, the second comes after 1 s, the third after 2, then 4, 8 ... seconds.

    Not `delayed`: it was asked for, so it is immediate, and no failure is remembered. Failures are named where they are
    fewer than the replacements.
    """
    again = delayed and unsettled(entry, now)
    delay = min(LONGEST_DELAY_SECONDS, max(1, 2 * entry.delay_seconds)) if again else 0
    following = Incarnation(name=entry.name, number=entry.number + 1, since=stamp(now), delay_seconds=delay)
    failures = (delayed and failed) + (_failures(entry) if again else 0)
    return following if failures >= _in_row(following) else replace(following, failures=failures)


def _forget_delay(entry: Incarnation, now: float) -> Incarnation:
    """Drops the delay of a pod that has run for long: that keeps a status small."""
    return entry if unsettled(entry, now) else Incarnation(name=entry.name, number=entry.number)
