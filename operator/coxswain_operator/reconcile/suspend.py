"""Suspension: save a checkpoint, then run no pods. Also the stop at a step that an annotation asks for."""

from __future__ import annotations

from msgspec.structs import replace

from coxswain.exits import Exit
from coxswain.names import ANNOTATION_STOP_AT
from coxswain_operator.reconcile import deadlines, incarnations, stranded
from coxswain_operator.reconcile.situation import Situation
from coxswain_operator.reconcile.step import Step
from coxswain_operator.reconcile.times import seconds
from coxswain_operator.reconcile.values import CheckpointAndStop, Delete

DEADLINE_SECONDS = 600  # for the checkpoint; then the pods go without it


def wanted(s: Situation) -> bool:
    return s.spec.suspend or _stopped_at_step(s)


def stop_step(s: Situation) -> int | None:
    """The step that `cox run --until-step` put on the job; it binds until the annotation is taken away."""
    value = s.annotations.get(ANNOTATION_STOP_AT, "")
    return int(value) if value.isdecimal() else None


def _stopped_at_step(s: Situation) -> bool:
    """The step is reached and saved, and the coordinator has left because of it."""
    step, checkpoint = stop_step(s), s.status.last_checkpoint
    if step is None or checkpoint is None or checkpoint.step < step:
        return False
    left = s.coordinator is not None and s.coordinator.exit_code == Exit.STOPPED
    return left or s.status.is_("Suspended") or s.status.is_("Suspended", "Unknown")


def calls(s: Situation) -> tuple[CheckpointAndStop, ...]:
    """What a running job's coordinator has to know about a stop at a step."""
    step = stop_step(s)
    if step is None or s.observed.report is None:
        return ()
    return (CheckpointAndStop(f"stop at step {step}", step),)


def suspended(s: Situation) -> Step:
    """One pass towards, or in, suspension. New numbers are stored before the old pods go, so that their going is no loss."""
    status = deadlines.recorded(s)
    renewed = incarnations.renewed(status, s.now)
    if not s.observed.pods:
        status = replace(renewed, trainers=replace(status.trainers, desired=0, asked=0))
        return Step("Suspended", status, "Suspended", _saved(s))
    if s.coordinator is not None and s.coordinator.live and _has_begun(s) and s.now < _deadline(s):
        call = CheckpointAndStop("suspended")
        text = "waits for the checkpoint, then for the pods to leave"
        return Step("Suspending", status, "Suspending", text, calls=(call,), wakes=(_deadline(s),))
    gone = (*(Delete("Pod", p.name, p.uid) for p in s.observed.pods if not p.deleting), *stranded.forced(s))
    text = "waits for the pods to leave"
    return Step("Suspending", renewed, "Suspending", text, deletes=gone, wakes=stranded.wakes(s))


def _has_begun(s: Situation) -> bool:
    """Where no pod runs or has a node, as in a queue, there is nothing to save. Pods of the local cluster never have a node."""
    return any(p.node or p.phase == "Running" for p in s.observed.pods)


def _deadline(s: Situation) -> float:
    """Suspended is Unknown from the request on, so its last transition is the request's time."""
    condition = s.status.condition("Suspended")
    begun = seconds(condition.last_transition_time) if condition and condition.status == "Unknown" else s.now
    return begun + DEADLINE_SECONDS


def _saved(s: Situation) -> str:
    checkpoint = s.status.last_checkpoint
    return (
        f"saved before step {checkpoint.step}"
        if checkpoint
        else "no checkpoint exists: it will start from the beginning"
    )
