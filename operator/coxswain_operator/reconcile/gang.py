"""Which pods should exist now: the difference to those that do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from msgspec import UNSET
from msgspec.structs import replace

from coxswain_operator.children import PodPlan
from coxswain_operator.children.scheduling import pod_group
from coxswain_operator.reconcile import (
    attempts,
    child_diff,
    deadlines,
    failure_policy,
    force_delete,
    half_placed,
    incarnations,
    job_token,
    leftovers,
    live_size,
    node_request,
    partial,
    pending,
    quarantine,
    resize,
    room,
    suspend,
)
from coxswain_operator.reconcile.actions import CreatePod, Delete, EndQuarantine, LeaveQueue, Quarantine
from coxswain_operator.reconcile.context import QUEUED, Context
from coxswain_operator.reconcile.pinned import Start
from coxswain_operator.reconcile.result import PolicyResult
from coxswain_operator.reconcile.status import JobStatus
from coxswain_operator.reconcile.times import stamp
from coxswain_operator.views import Event

PINNED = "the pods go on as this attempt began, and the next attempt is refused until this is mended: "


@dataclass(frozen=True, slots=True)
class _Settled:
    """What the gang is after this pass, with its status in `turn`, and what was decided on the way."""

    turn: partial.Turn
    message: str = ""
    calls: tuple[LeaveQueue | Quarantine | EndQuarantine, ...] = ()
    events: tuple[Event, ...] = ()


def reconcile_gang(ctx: Context, start: Start, found: tuple[failure_policy.Verdict, ...]) -> PolicyResult:
    """A pass of a job that should run: replaces what is lost, creates what is missing. `found`: of each loss."""
    settled = _settled(ctx, start, found)
    turn, status = settled.turn, settled.turn.status
    held = half_placed.is_held(status, ctx.now)
    others = child_diff.diff_children(ctx, start, status)
    starting = status.attempt == ctx.status.attempt and not others.stale and not held and not turn.waits
    missing = tuple(_missing_pods(ctx, status, start)) if starting else ()
    token = job_token.creates(ctx, status, bool(missing), any(v.failure.unprepared for v in found))
    return PolicyResult(
        state=QUEUED if held or turn.waits else ctx.state_of_gang,
        status=status,
        reason=half_placed.REASON if held else resize.reason(ctx),
        message=settled.message or "; ".join(filter(None, (turn.message, _message(ctx)))),
        deletes=(
            *_stale_pods(ctx, status), *force_delete.force_deletes(ctx), *others.deletes, *leftovers.deletes(ctx),
            *(child_diff.lift_budget(ctx) if held else ()),
        ),
        creates=(*token, *others.creates, *turn.creates, *missing),
        calls=(*(resize.calls(ctx) or suspend.calls(ctx)), *settled.calls),
        events=settled.events,
        requeue_times=tuple(_requeue_times(ctx, turn)),
    )  # fmt: skip


def _settled(ctx: Context, start: Start, found: tuple[failure_policy.Verdict, ...]) -> _Settled:
    """Members are replaced first: only a pass without that looks at sizes, quarantines and the queue."""
    size = None if any(v.whole_job for v in found) else partial.evicted(ctx) or resize.plan_resize(ctx, start.config)
    if size:
        status = failure_policy.record_restarts(ctx, found) if found else half_placed.settled(ctx, ctx.status)
        status = job_token.settle(ctx, resize.start_resize(ctx, status, size))
        events = (*failure_policy.failure_events(found), *resize.resize_events(size))
        return _Settled(partial.Turn(status), events=events)
    if found:
        status = _begun(ctx, failure_policy.record_restarts(ctx, found), start)
        return _Settled(partial.Turn(status), events=failure_policy.failure_events(found))
    status = _begun(ctx, half_placed.settled(ctx, ctx.status), start)
    if release := half_placed.plan_release(ctx):
        status = half_placed.start_release(ctx, status, release)
        return _Settled(partial.Turn(status), release.message, events=half_placed.events(release))
    status, resized = live_size.settle(ctx, status, start.config.trainers)
    status, asked, moves = _quarantined(ctx, status, start)
    turn = partial.turn(ctx, status, _plan(ctx, status, start))
    events = (*resized, *turn.events, *asked.events, *moves)
    return _Settled(turn, calls=(*turn.calls, *asked.actions), events=events)


def _quarantined(
    ctx: Context, status: JobStatus, start: Start
) -> tuple[JobStatus, node_request.Answer, tuple[Event, ...]]:
    """What quarantines ask for: pods in place of those that wait for a node which is admitted again, and of trainers that
    leave theirs.
    """
    leaving = quarantine.left(ctx)
    if members := quarantine.readmitted(ctx) | leaving:
        status = incarnations.next_incarnation(status, members, ctx.now, spared=members)
        return status, node_request.Answer(), quarantine.events(leaving, ctx)
    asked = node_request.answer(ctx, _plan(ctx, status, start))
    return asked.recorded(node_request.settled(ctx, status)), asked, ()


def refuse(ctx: Context) -> PolicyResult:
    """A pass of a job whose specs allow no start: what runs goes on; nothing is created or replaced."""
    state, fault = ctx.state_of_gang if ctx.pods else QUEUED, ctx.faults[0]
    reason, text = fault.reason, fault.message
    if state == "Running":
        reason, text = "", f"the pods go on, and none is replaced until this is mended: {fault.message}"
    text = "; ".join(filter(None, (text, room.refusal(ctx))))
    return PolicyResult(state, ctx.status, reason, text, deletes=tuple(_stale_pods(ctx, ctx.status)))


def _begun(ctx: Context, status: JobStatus, start: Start) -> JobStatus:
    """Opens the first attempt and settles what the gang is; after a restart of the whole job the next pass does."""
    status = replace(attempts.open_attempt(status, ctx.now), start_time=status.start_time or stamp(ctx.now))
    if status.attempt != ctx.status.attempt:
        return status
    status = job_token.settle(ctx, status) if job_token.is_open(ctx) else status
    count, desired = ctx.spec.trainers.count, status.trainers.desired or start.config.trainers
    asked = count if count == desired else status.trainers.asked or count
    named = UNSET if start.config.trainers == desired else start.config.trainers
    size = replace(status.trainers, desired=desired, asked=asked, configured=named)
    return replace(status, trainers=size, pinned=start.pinned, stream_hash=start.config.stream_hash())


def _message(ctx: Context) -> str:
    """What the job waits for, by coordinator, cluster and pods that cannot start."""
    waits = ctx.report.waiting_for if ctx.report else ""
    slow = ctx.report.slow if ctx.report else ""
    invalid = f"{PINNED}{ctx.faults[0].message}" if ctx.faults else ""
    ours = (
        resize.message(ctx),
        live_size.message(ctx),
        half_placed.message(ctx),
        room.refusal(ctx),
        job_token.describe(ctx),
        leftovers.describe(ctx),
        force_delete.describe(ctx),
    )
    return "; ".join(filter(None, (*ours, waits, pending.describe(ctx.pods.values()), invalid, slow)))


def _stale_pods(ctx: Context, status: JobStatus) -> Iterator[Delete]:
    """Pods of older incarnations, and of members that the gang no longer has after this pass."""
    numbers, members = incarnations.numbers(status), frozenset(ctx.members_of(status))
    for p in ctx.observed.pods:
        current = p.member in members and numbers.of(p.member).number == p.incarnation
        if not (current or p.deleting):
            yield Delete("Pod", p.name, p.uid)


def _missing_pods(ctx: Context, status: JobStatus, start: Start) -> Iterator[CreatePod]:
    """Not of trainers that leave in this pass. Those that come with it follow in the next one."""
    numbers, plan, stay = incarnations.numbers(status), _plan(ctx, status, start), set(ctx.members_of(status))
    absent = (member for member in room.absent(ctx, numbers) if member in stay)
    return (CreatePod(plan, member, numbers.of(member).number) for member in absent)


def _plan(ctx: Context, status: JobStatus, start: Start) -> PodPlan:
    number, token = incarnations.numbers(status).default.number, str(status.token_secret or "")
    job, avoid = start.job_of_pods(ctx.observed.job), quarantine.avoided(ctx)
    settings, sets = start.settings_of_pods(ctx.settings), _pod_sets(ctx, pod_group(job, number))
    return PodPlan(job, start.config, settings, status.attempt, number, start.pinned.hash, token, avoid, sets)


def _pod_sets(ctx: Context, group: str) -> dict[str, str]:
    """As the pods of the group are called: those of an earlier release have no names of ours."""
    return {p.role: p.pod_set for p in ctx.observed.pods if p.group == group and p.pod_set}


def _requeue_times(ctx: Context, turn: partial.Turn) -> Iterator[float]:
    """When members may start again, pods are late, a hint is due, and a gang gives up or tries again, among others."""
    yield from (incarnations.starts_at(entry) for entry in turn.status.incarnations)
    yield from pending.requeue_times(ctx.pods.values())
    yield from deadlines.starts(ctx)
    for policy in child_diff, half_placed, force_delete, resize, live_size, quarantine, node_request:
        yield from policy.requeue_times(ctx)
    yield from partial.requeue_times(ctx, turn)
