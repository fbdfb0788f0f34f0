"""The history of attempts: runs of the whole job, the last ten of them."""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import replace

from coxswain_operator.reconcile.result import Termination
from coxswain_operator.reconcile.status import Attempt, JobStatus
from coxswain_operator.reconcile.times import stamp

KEPT = 10


def open_attempt(status: JobStatus, now: float) -> JobStatus:
    """With an open attempt; the same status when it has one."""
    if status.attempts and status.attempts[-1].number == status.attempt:
        return status
    checkpoint = status.last_checkpoint
    new = Attempt(number=status.attempt, start=stamp(now), resumed_step=checkpoint.step if checkpoint else None)
    return replace(status, attempts=(*status.attempts, new)[-KEPT:])


def close_attempt(status: JobStatus, ending: Termination, now: float) -> JobStatus:
    """The open attempt ends now."""
    if not status.attempts:
        return status
    last = replace(
        status.attempts[-1],
        end=stamp(now),
        cause=f"{ending.reason}: {ending.message}"[:1024],
        rule=ending.rule or None,
        exit_code=ending.exit_code,
        node=ending.node or None,
    )
    return replace(status, attempts=(*status.attempts[:-1], last))


def unsettled(status: JobStatus, desired: int = 0, asked: int = 0) -> JobStatus:
    """The next start settles the size of the gang and what its pods are made of."""
    return replace(
        status, trainers=replace(status.trainers, desired=desired, asked=asked, configured=UNSET), pinned=None
    )


def next_attempt(status: JobStatus, ending: Termination, now: float) -> JobStatus:
    """The next attempt, opened at once."""
    return open_attempt(replace(close_attempt(status, ending, now), attempt=status.attempt + 1), now)
