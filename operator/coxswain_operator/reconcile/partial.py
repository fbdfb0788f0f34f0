"""Partial admission: Kueue admits minCount to count trainers, and as many pods are then created.

Kueue makes no such Workload of pods by itself, since it sees only those that exist. The operator makes it before them; with its
pods the group is then one like any other. An eviction is another start, which asks for all trainers again: the pods of a group
all name its size, and the next admission may have another one. A deactivated Workload holds the starts behind it back as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace as replace_fields

from msgspec.structs import replace

from coxswain_operator.children import PodPlan
from coxswain_operator.children.common import CONTENT
from coxswain_operator.children.scheduling import has_minimum, pod_group
from coxswain_operator.children.workload import workload
from coxswain_operator.reconcile import incarnations
from coxswain_operator.reconcile.actions import Create, LeaveQueue
from coxswain_operator.reconcile.context import Context
from coxswain_operator.reconcile.resize import Resize
from coxswain_operator.reconcile.status import JobStatus
from coxswain_operator.views import AdmissionView, Event

LOOK_SECONDS = 3.0  # between two looks at the Workloads of a job: no watch says that one is admitted
LONGEST_LOOK_SECONDS = 30.0  # of a job that waits for long
LOOK_SHARE = 0.05  # of the time that it has waited, within these
DEACTIVATED = "Workload {} is deactivated: set its spec.active to true, or suspend and resume the job"


@dataclass(frozen=True, slots=True)
class Turn:
    """What Kueue has decided about this start. `waits`: no pods are created in this pass."""

    status: JobStatus
    waits: bool = False
    message: str = ""
    creates: tuple[Create, ...] = ()
    calls: tuple[LeaveQueue, ...] = ()
    events: tuple[Event, ...] = ()


def evicted(ctx: Context) -> Resize | None:
    """Another start, of a group that had been admitted and no longer is."""
    found = _workload(ctx, ctx.status)
    if found is None or found.trainers is not None or not _has_pods(ctx, found.name):
        return None
    text = f"the queue has taken its place back: {found.message}".removesuffix(": ")
    return Resize(0, 0, "Preempted", text)


def turn(ctx: Context, status: JobStatus, plan: PodPlan) -> Turn:
    """The Workload first; then, with as many trainers as it admits, the pods."""
    if ctx.observed.admissions is None or not has_minimum(plan.job):
        return Turn(status)
    # Whatever nodes are in quarantine now: another Workload would stand at the end of the queue.
    found, wanted = _workload(ctx, status), workload(replace_fields(plan, avoid=()), ctx.spec.trainers.count)
    if _has_pods(ctx, wanted["metadata"]["name"]):
        return Turn(status)
    if deactivated := sorted(w.name for w in ctx.observed.admissions if not w.active):
        return _waiting(ctx, status, DEACTIVATED.format(deactivated[0]))
    if found is None:
        return _waiting(ctx, status, "", creates=(Create(wanted),))
    too_many = found.trainers is not None and found.trainers > ctx.spec.trainers.count
    if (found.trainers is None or too_many) and found.content != wanted["metadata"]["annotations"][CONTENT]:
        return _waiting(ctx, status, "", calls=(LeaveQueue(found.name),))
    if found.trainers is None:
        return _waiting(ctx, _sized(status, ctx.spec.trainers.count), found.message)
    return Turn(_sized(status, found.trainers), status.trainers.desired != found.trainers, events=_events(ctx, found))


def requeue_times(ctx: Context, turn: Turn) -> tuple[float, ...]:
    """When to look again for its admission."""
    if not turn.waits:
        return ()
    waited = ctx.now - ctx.status.unready_since
    return (ctx.now + min(LONGEST_LOOK_SECONDS, max(LOOK_SECONDS, LOOK_SHARE * waited)),)


def _waiting(
    ctx: Context, status: JobStatus, why: str, creates: tuple[Create, ...] = (), calls: tuple[LeaveQueue, ...] = ()
) -> Turn:
    return Turn(status, True, f"waits in its queue{why and f': {why}'}", creates, calls)


def _sized(status: JobStatus, trainers: int) -> JobStatus:
    return replace(status, trainers=replace(status.trainers, desired=trainers))


def _events(ctx: Context, found: AdmissionView) -> tuple[Event, ...]:
    """Once, in the pass that settles the size."""
    asked, admitted = ctx.spec.trainers.count, found.trainers or 0
    if ctx.status.trainers.desired == admitted:
        return ()
    text = f"the queue admits {admitted} of {asked} trainers; the next start asks for all of them again"
    return (Event("Scaled", text),)


def _workload(ctx: Context, status: JobStatus) -> AdmissionView | None:
    """That of this start."""
    name = pod_group(ctx.observed.job, incarnations.numbers(status).default.number)
    return next((w for w in ctx.observed.admissions or () if w.name == name), None)


def _has_pods(ctx: Context, group: str) -> bool:
    return any(p.group == group for p in ctx.observed.pods)
