"""Starts that are half placed: some pods hold nodes, others find none, or a quota refuses them. All nodes are freed, and taken
again after a back-off.

Otherwise two jobs that each hold half of what both need would wait for each other for ever.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from msgspec import UNSET
from msgspec.structs import replace

from coxswain_operator.backoff import doubled
from coxswain_operator.reconcile import attempts, incarnations, pending, resize, room
from coxswain_operator.reconcile.context import Context
from coxswain_operator.reconcile.status import GangStatus, JobStatus
from coxswain_operator.reconcile.times import seconds, stamp
from coxswain_operator.views import Event

REASON: Final = "GangReleased"
SPREAD = 0.25  # of startTimeoutSeconds, at most, is added to it: jobs of one age do not give up together
FIRST_DELAY_SECONDS = 30
LONGEST_DELAY_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Release:
    """The nodes of all pods become free now, for `delay` seconds at least."""

    delay: float
    message: str


def plan_release(ctx: Context) -> Release | None:
    """A release that is due now; None: no member waits for room, no pod holds one, or there is time left."""
    due = _due(ctx)
    if due is None or ctx.now < due or not (placed := _placed(ctx)):
        return None
    delay = _delay(ctx)
    waiting = "; ".join(
        filter(None, (pending.describe(filter(pending.lacks_node, ctx.pods.values())), room.refusal(ctx)))
    )
    text = f"{placed} of {len(ctx.members)} pods held nodes while others found none within startTimeoutSeconds"
    limit = ctx.spec.start_timeout_seconds
    return Release(delay, f"{text} ({limit}): released them all; starts again in {delay:.0f} s; {waiting}")


def start_release(ctx: Context, status: JobStatus, release: Release) -> JobStatus:
    """Replaces all members without counting a restart. The next start asks for all trainers again."""
    gang = GangStatus(releases=_releases(ctx) + 1, until=stamp(ctx.now + release.delay))
    return replace(attempts.unsettled(incarnations.renew_all(status, ctx.now)), gang=gang)


def settled(ctx: Context, status: JobStatus) -> JobStatus:
    """Forgets the releases once every pod works."""
    return replace(status, gang=UNSET) if status.gang and ctx.all_serving else status


def is_held(status: JobStatus, now: float) -> bool:
    """The back-off lasts. One that ends too late stems from before the clock was set back."""
    left = seconds(status.gang.until) - now if status.gang else 0.0
    return 0 < left <= LONGEST_DELAY_SECONDS


def message(ctx: Context) -> str:
    """Why no pods exist; empty without a back-off."""
    if not ctx.status.gang or not is_held(ctx.status, ctx.now):
        return ""
    text = f"not all pods found nodes within startTimeoutSeconds ({ctx.spec.start_timeout_seconds})"
    return f"{text}: released the nodes of the others; starts again at {ctx.status.gang.until}"


def events(release: Release) -> tuple[Event, ...]:
    return (Event(REASON, release.message, warning=True),)


def requeue_times(ctx: Context) -> set[float]:
    """When a release is due, or a back-off over."""
    due = _due(ctx)
    return {
        *(() if due is None or not _placed(ctx) else (due,)),
        *((seconds(ctx.status.gang.until),) if ctx.status.gang else ()),
    }


def _due(ctx: Context) -> float | None:
    """None: no member waits for room, or the job trains."""
    late = [w.until for w in room.waiting(ctx)]
    if not late or resize.trains(ctx):
        return None
    return max(min(late), resize.patience(ctx)) + SPREAD * ctx.spec.start_timeout_seconds * _fraction(ctx, "deadline")


def _placed(ctx: Context) -> int:
    return sum(bool(p.node) and p.is_active for p in ctx.pods.values())


def _delay(ctx: Context) -> float:
    """Doubles with each release in a row; random between half of that and all of it."""
    longest = doubled(_releases(ctx) + 1, FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS)
    return float(round(longest * (1 + _fraction(ctx, "delay")) / 2))


def _fraction(ctx: Context, purpose: str) -> float:
    """From 0 to 1, by the job's uid and the number of its releases: a repeated pass decides the same."""
    digest = hashlib.sha256(f"{ctx.observed.job['metadata']['uid']}/{_releases(ctx)}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def _releases(ctx: Context) -> int:
    return ctx.status.gang.releases if ctx.status.gang else 0
