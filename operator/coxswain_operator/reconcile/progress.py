"""How far the job is, from the coordinator's report into the status: decimals as strings."""

from __future__ import annotations

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from coxswain import wire
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


def apply_report(status: JobStatus, report: JobReport | None) -> JobStatus:
    """Progress, checkpoint, layout and world of the latest report; kept as they were without one."""
    if report is None or report.phase in ("Waiting", "Indexing", "Starting"):
        return status
    checkpoint = status.last_checkpoint
    if report.checkpoint_step >= 0:
        checkpoint = LastCheckpoint(
            step=report.checkpoint_step, uri=report.checkpoint_uri, time=stamp(report.checkpoint_time)
        )
    layout = status.layout
    if report.layout_hash:
        layout = LayoutStatus(hash=report.layout_hash, summary=report.layout_summary)
    return replace(
        status,
        progress=_progress(report, status.progress),
        last_checkpoint=checkpoint,
        layout=layout,
        strategy=_strategy(report.strategy) if report.phase == "Running" else status.strategy,
        stragglers=tuple(map(_straggler, report.stragglers[:MAX_STRAGGLERS])) or UNSET,
        world_generation=report.generation,
    )


def _straggler(found: wire.StragglerReport) -> Straggler:
    return Straggler(
        trainer=found.trainer,
        device=found.device,
        node=found.node,
        slowdown=f"{found.slowdown:.2f}",
        since=stamp(found.since),
        since_step=found.since_step,
        cause=found.cause,
        action=found.action[:1024],
    )


def _progress(report: JobReport, before: Progress | None) -> Progress:
    step = max(0, report.step)
    share = step / report.steps if report.steps else 0.0
    known = report.tokens_per_second > 0  # not of a coordinator that has seen no step: the run's own rate stays
    return Progress(
        step=step,
        steps=report.steps,
        percent=f"{100 * share:.1f}",
        tokens=str(report.tokens),
        loss=None if report.loss is None else _decimal(report.loss),
        evaluation_loss=_evaluation_loss(report, before),
        tokens_per_second=f"{report.tokens_per_second:.0f}" if known or before is None else before.tokens_per_second,
        idle_percent=f"{100 * report.idle_fraction:.1f}",
        eta_seconds=max(0, report.eta_seconds),
        step_seconds=_step_seconds(report, before),
    )


def _step_seconds(report: JobReport, before: Progress | None) -> str | None:
    """Stays as it was while a new coordinator has seen no step."""
    if not report.step_seconds:
        return before.step_seconds if before else None
    return f"{report.step_seconds:.3f}"


def _strategy(report: StrategyReport | None) -> StrategyStatus | UnsetType:
    """What mode Auto has chosen; unset where nothing is reported."""
    if report is None:
        return UNSET
    chosen = _predicted(report.chosen)
    return StrategyStatus(
        layout=chosen.layout,
        predicted_step_seconds=chosen.predicted_step_seconds,
        alternatives=tuple(map(_predicted, report.alternatives)),
    )


def _predicted(layout: wire.PredictedLayout) -> PredictedLayout:
    return PredictedLayout(layout=layout.summary, predicted_step_seconds=f"{layout.seconds:.3f}")


def _evaluation_loss(report: JobReport, before: Progress | None) -> str | None:
    """Stays as it was while a new coordinator has seen no evaluation."""
    if report.evaluation_loss is None:
        return before.evaluation_loss if before else None
    return _decimal(report.evaluation_loss)


def _decimal(value: float) -> str:
    """Of at most 32 characters, as the API takes them: a loss that grows without end must not stop the operator."""
    return f"{value:.4f}" if abs(value) < 1e16 else f"{value:.4e}"


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
