"""How far the job is, from the coordinator's report into the status: decimals as strings.

What the server does not take is shortened: a status that is refused stops every pass over the job.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from coxswain import wire
from coxswain.api.common import MAX_INTEGER
from coxswain.names import LABEL_JOB_UID, LABEL_ROLE
from coxswain.wire import JobReport, StrategyReport
from coxswain_operator.reconcile.context import Context
from coxswain_operator.reconcile.status import (
    JobStatus,
    LastCheckpoint,
    LayoutStatus,
    PredictedLayout,
    Progress,
    Straggler,
    StrategyStatus,
)
from coxswain_operator.reconcile.times import stamp

MAX_STRAGGLERS = 5  # in the status; all are in the coordinator's metrics
MAX_ALTERNATIVES = 8
MAX_TEXT, MAX_URI, MAX_NODE, MAX_HASH, MAX_NAME = 1024, 2048, 253, 128, 63  # characters


def apply_report(status: JobStatus, report: JobReport | None) -> JobStatus:
    """Progress, checkpoint, layout and world of the latest report; kept as they were without one."""
    if report is None or report.phase in ("Waiting", "Indexing", "Starting"):
        return status
    checkpoint = status.last_checkpoint
    if report.checkpoint_step >= 0:
        checkpoint = LastCheckpoint(
            step=_whole(report.checkpoint_step),
            uri=report.checkpoint_uri[:MAX_URI],
            time=stamp(report.checkpoint_time),
        )
    layout = status.layout
    if report.layout_hash:
        layout = LayoutStatus(hash=report.layout_hash[:MAX_HASH], summary=report.layout_summary[:MAX_TEXT])
    return replace(
        status,
        progress=_progress(report, status.progress),
        last_checkpoint=checkpoint,
        layout=layout,
        strategy=_strategy(report.strategy) if report.phase == "Running" else status.strategy,
        stragglers=tuple(map(_straggler, filter(_is_trainer, report.stragglers[:MAX_STRAGGLERS]))) or UNSET,
        world_generation=_whole(report.generation),
    )


def _whole(number: int) -> int:
    return min(max(0, number), MAX_INTEGER)


def _is_trainer(found: wire.StragglerReport) -> bool:
    role, _, index = found.trainer.partition("-")
    return role == "trainer" and index.isdecimal() and index.isascii() and len(found.trainer) <= MAX_NAME


def _straggler(found: wire.StragglerReport) -> Straggler:
    return Straggler(
        trainer=found.trainer,
        device=_whole(found.device),
        node=found.node[:MAX_NODE],
        slowdown=_decimal(found.slowdown, 2),
        since=stamp(found.since),
        since_step=_whole(found.since_step),
        cause=found.cause[:MAX_NAME],
        action=found.action[:MAX_TEXT],
    )


def _progress(report: JobReport, before: Progress | None) -> Progress:
    step = _whole(report.step)
    tenths = (
        1000 * step // report.steps if report.steps else 0
    )  # of a percent, never rounded up: the last steps take hours
    known = report.tokens_per_second > 0  # not of a coordinator that has seen no step: the run's own rate stays
    return Progress(
        step=step,
        steps=_whole(report.steps),
        percent=_decimal(tenths / 10, 1),
        tokens=str(_whole(report.tokens)),
        loss=None if report.loss is None else _decimal(report.loss, 4),
        evaluation_loss=_evaluation_loss(report, before),
        tokens_per_second=_decimal(report.tokens_per_second, 0)
        if known or before is None
        else before.tokens_per_second,
        idle_percent=_decimal(100 * report.idle_fraction, 1),
        eta_seconds=_whole(report.eta_seconds),
        step_seconds=_step_seconds(report, before),
    )


def _step_seconds(report: JobReport, before: Progress | None) -> str | None:
    """Stays as it was while a new coordinator has seen no step."""
    if not report.step_seconds:
        return before.step_seconds if before else None
    return _decimal(report.step_seconds, 3)


def _strategy(report: StrategyReport | None) -> StrategyStatus | UnsetType:
    """What mode Auto has chosen; unset where nothing is reported."""
    if report is None:
        return UNSET
    chosen = _predicted(report.chosen)
    return StrategyStatus(
        layout=chosen.layout,
        predicted_step_seconds=chosen.predicted_step_seconds,
        alternatives=tuple(map(_predicted, report.alternatives[:MAX_ALTERNATIVES])),
    )


def _predicted(layout: wire.PredictedLayout) -> PredictedLayout:
    return PredictedLayout(layout=layout.summary[:MAX_TEXT], predicted_step_seconds=_decimal(layout.seconds, 3))


def _decimal(value: float, digits: int) -> str:
    """With so many digits behind the point; of a loss that diverges a power of ten."""
    return f"{value:.{digits}f}" if abs(value) < 1e16 else f"{value:.{digits}e}"


def _evaluation_loss(report: JobReport, before: Progress | None) -> str | None:
    """Stays as it was while a new coordinator has seen no evaluation."""
    if report.evaluation_loss is None:
        return before.evaluation_loss if before else None
    return _decimal(report.evaluation_loss, 4)


def count_pods(status: JobStatus, ctx: Context) -> JobStatus:
    """Trainer pods for people and for the scale subresource."""
    trainers = [p for p in ctx.observed.pods if p.role == "trainer" and p.is_active]
    ready = sum(ctx.pods.get(p.member) is p and p.ready and not p.deleting for p in trainers)
    uid = ctx.observed.job["metadata"]["uid"]
    return replace(
        status,
        trainers=replace(status.trainers, ready=ready),
        ready=f"{ready}/{status.trainers.desired}",
        replicas=len(trainers),
        selector=f"{LABEL_JOB_UID}={uid},{LABEL_ROLE}=trainer",
    )
