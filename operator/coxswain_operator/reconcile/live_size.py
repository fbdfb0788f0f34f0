"""Another number of trainers without a restart: the coordinator moves, and pods come before or go after it.

The coordinator is asked while the job is observed, since its reply is a fact to decide on. Asking is idempotent: a pass that
repeats it, or an operator that starts again, learns the same.
"""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import replace

from coxswain.wire import JobReport
from coxswain_operator.reconcile import incarnations, room
from coxswain_operator.reconcile.context import Context
from coxswain_operator.reconcile.spec import read_spec
from coxswain_operator.reconcile.status import JobStatus, Trainers, read_status
from coxswain_operator.reconcile.times import seconds
from coxswain_operator.views import Event, Manifest, member_name

REGROW_SECONDS = 60  # that a job which started with too few trainers trains before it asks for the others again
LOOK_SECONDS = 2  # between two questions while the coordinator moves
_KUEUE = "Kueue"  # a group of plain pods has a fixed number: another number is another group


def wanted(job: Manifest, report: JobReport | None, now: float) -> int:
    """The number of trainers to ask the coordinator for; 0: none, since it has it, or cannot be asked."""
    if report is None or report.phase != "Running" or "deletionTimestamp" in job["metadata"]:
        return 0
    spec, status = read_spec(job), read_status(job)
    size, queueing = status.trainers, (job["spec"].get("scheduling") or {}).get("queueing") or {}
    if not size.desired or spec.suspend or status.ended or queueing.get("backend") == _KUEUE:
        return 0
    if size.asked != spec.trainers.count:
        return spec.trainers.count
    if size.desired < size.asked and now >= regrows_at(status):
        return size.asked
    # A coordinator that has started since knows the configured one; a question that was taken back is still its aim.
    return size.desired if size.configured or report.size not in (0, size.desired) else 0


def regrows_at(status: JobStatus) -> float:
    """When the others are asked for again: from then on their pods wait for room, and the scheduler repeats its tries."""
    return (seconds(status.attempts[-1].start) if status.attempts else 0.0) + REGROW_SECONDS


def is_possible(ctx: Context) -> bool:
    """The coordinator has taken the number that is asked for now."""
    question = ctx.observed.sizing
    return question is not None and question.reply is not None and question.reply.state != "Refused"


def is_open(ctx: Context) -> bool:
    """The coordinator was asked, and has not answered this once."""
    return ctx.observed.sizing is not None and ctx.observed.sizing.reply is None


def refusal(ctx: Context) -> str:
    question = ctx.observed.sizing
    refused = question is not None and question.reply is not None and question.reply.state == "Refused"
    return question.reply.message if refused and question and question.reply else ""


def settle(ctx: Context, status: JobStatus, configured: int) -> tuple[JobStatus, tuple[Event, ...]]:
    """The status with the size that pods shall have now: more at once, fewer once the coordinator has moved."""
    question, size = ctx.observed.sizing, status.trainers
    if question is None or question.reply is None or question.trainers == size.desired or not is_possible(ctx):
        return status, ()
    if question.trainers < size.desired and question.reply.state != "Done":
        return status, ()
    gone = {member_name("trainer", i) for i in range(question.trainers, size.desired)}
    status = incarnations.next_incarnation(status, gone, ctx.now, delayed=False) if gone else status
    text = f"from {size.desired} to {question.trainers} trainers, without a restart"
    return replace(status, trainers=resized(size, question.trainers, configured)), (Event("Scaled", text),)


def resized(size: Trainers, trainers: int, configured: int) -> Trainers:
    named = UNSET if configured == trainers else configured
    return replace(size, desired=trainers, asked=trainers, configured=named)


def message(ctx: Context) -> str:
    """What the coordinator waits for."""
    question = ctx.observed.sizing
    if question is None or question.reply is None or question.reply.state != "UnderWay":
        return ""
    reply = question.reply
    return f"trains with {reply.trainers} trainers, {question.trainers} are asked for: {reply.message}".removesuffix(
        ": "
    )


def requeue_times(ctx: Context) -> tuple[float, ...]:
    question, size = ctx.observed.sizing, ctx.status.trainers
    if question is not None and (question.reply is None or question.reply.state == "UnderWay"):
        return (ctx.now + LOOK_SECONDS,)
    return (regrows_at(ctx.status),) if size.desired < size.asked else ()


def without_room(ctx: Context) -> int:
    """Trainers that there is no room for, of a job that trains."""
    if ctx.report is None or ctx.report.phase != "Running":
        return 0
    return len(room.trainers(room.waiting(ctx)))
