"""Another number of trainers: asked for by the user, or forced by missing room. The gang starts anew from a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from coxswain.config import JobConfig
from coxswain_operator.cluster import Happening
from coxswain_operator.reconcile import attempts, deadlines, incarnations, waiting
from coxswain_operator.reconcile.situation import Situation
from coxswain_operator.reconcile.status import JobStatus
from coxswain_operator.reconcile.step import Ending
from coxswain_operator.reconcile.times import seconds
from coxswain_operator.reconcile.values import CheckpointAndStop

REASON = "Scaling"  # of Progressing, from the request until the coordinator has left
DEADLINE_SECONDS = 600  # for the checkpoint; then the gang starts anew without it


@dataclass(frozen=True, slots=True)
class Size:
    """How many trainers the next start has, and why. `desired` 0: as many as the spec then asks for."""

    desired: int
    asked: int
    reason: str
    message: str


def due(s: Situation, config: JobConfig) -> Size | None:
    """Start anew now, with this size. A job that trains is asked to save first and leaves by itself."""
    if s.scaled:
        return None if _saving(s) else Size(0, 0, "ScaleChanged", _change(s))
    return _shrunk(s, config)


def restarted(s: Situation, status: JobStatus, size: Size) -> JobStatus:
    """Everyone anew, without counting a restart."""
    status = incarnations.renewed(status, s.now)
    status = attempts.following(status, Ending("", size.reason, size.message, size.reason), s.now)
    return replace(status, trainers=replace(status.trainers, desired=size.desired, asked=size.asked))


def calls(s: Situation) -> tuple[CheckpointAndStop, ...]:
    return (CheckpointAndStop(f"scaled to {s.spec.trainers.count} trainers"),) if _saving(s) else ()


def wakes(s: Situation) -> tuple[float, ...]:
    return (_deadline(s),) if _saving(s) else ()


def reason(s: Situation) -> str:
    return REASON if _saving(s) else ""


def message(s: Situation) -> str:
    return f"{_change(s)}: waits for the checkpoint" if _saving(s) else ""


def happenings(size: Size) -> tuple[Happening, ...]:
    return (Happening("Scaled", size.message, warning=size.reason == "CapacityLost"),)


def _change(s: Situation) -> str:
    return f"from {s.status.trainers.desired} to {s.spec.trainers.count} trainers"


def _saving(s: Situation) -> bool:
    """There is progress to save, and a coordinator that can do it; one that does not answer this once may do so yet."""
    pod, report = s.coordinator, s.report
    if not s.scaled or pod is None or not pod.live or pod.deleting or s.now >= _deadline(s):
        return False
    if report is None:
        return pod.ready and s.status.state == "Running"
    return report.phase == "Running" or s.leaving


def _deadline(s: Situation) -> float:
    """Progressing turns False with the request, so that its transition tells when that was."""
    condition = s.status.condition("Progressing")
    asked = condition is not None and condition.reason == REASON
    return DEADLINE_SECONDS + (seconds(condition.last_transition_time) if condition and asked else s.now)


def _shrunk(s: Situation, config: JobConfig) -> Size | None:
    """Some trainers found no node within startTimeoutSeconds, and minCount of them did: better fewer than none."""
    trainers = [p for p in s.pods.values() if p.role == "trainer"]
    homeless = [p for p in trainers if waiting.homeless(p) and p.unscheduled_reason != waiting.GATED]
    placed = sum(bool(p.node) and p.live and not p.deleting for p in trainers)
    training = s.report is not None and s.report.phase == "Running"
    late = any(s.now >= deadlines.starts_by(s, p) for p in homeless)
    if not late or training or not config.min_trainers <= placed < config.trainers:
        return None
    limit = s.spec.start_timeout_seconds
    text = f"only {placed} of {config.trainers} trainers found a node within startTimeoutSeconds ({limit})"
    return Size(placed, s.spec.trainers.count, "CapacityLost", text)
