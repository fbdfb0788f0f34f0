"""The end of a job: when it is Completed, what stays afterwards, and for how long."""

from __future__ import annotations

from msgspec.structs import replace

from coxswain.exits import Exit
from coxswain_operator.cluster import Happening
from coxswain_operator.reconcile import attempts, deadlines, queueing, stranded
from coxswain_operator.reconcile.situation import Situation
from coxswain_operator.reconcile.step import Ending, Step
from coxswain_operator.reconcile.times import seconds, stamp
from coxswain_operator.reconcile.values import Decision, Delete, PodView, WakeAt

LEAVE_SECONDS = 15  # that pods of a completed job have to leave by themselves


def completed(s: Situation) -> Ending | None:
    """The coordinator left with 0, and the last checkpoint exists."""
    pod, report = s.coordinator, s.report
    if pod is None or pod.live or pod.exit_code != Exit.DONE or unfinished(s):
        return None
    reason = report.reason if report and report.reason else "StopReached"
    return Ending("Completed", reason, f"at step {report.step}" if report else "")


def refused(s: Situation) -> Ending | None:
    """The cluster will never accept one of the job's children, such as a pod of an impossible template.

    One that it may accept later (a quota is used up) is waited for.
    """
    fault = s.observed.refused
    return Ending("Failed", fault.reason, fault.message) if fault and not fault.retryable else None


def unfinished(s: Situation) -> tuple[str, str] | None:
    """Why a coordinator's exit code 0 does not end the job: reason and message."""
    report = s.report
    if report is not None and report.checkpoint_step < report.step:
        return "FinalCheckpointMissing", "the coordinator left without the last checkpoint"
    wanted = s.config.stop_steps if s.config else 0
    if report is not None and report.reason == "StopReached" and 0 < report.steps < wanted:
        return "StopRaised", f"stop.steps was raised from {report.steps} to {wanted} while the job ran"
    return None


def ended(s: Situation, ending: Ending) -> Step:
    """The pass that ends the job: status first, then, if it failed, what still runs."""
    failed = ending.state == "Failed"
    status = replace(attempts.closed(s.status, ending, s.now), completion_time=stamp(s.now))
    own = ending.rule in {rule.name for rule in s.spec.failure_policy.rules}  # a built-in one tells people nothing
    rule = f" (rule {ending.rule})" if own else ""
    news = Happening(ending.state, f"{ending.reason}: {ending.message}{rule}", warning=failed)
    return Step(
        ending.state,
        status,
        ending.reason,
        ending.message,
        deletes=tuple(_delete(p) for p in _running(s)) if failed else (),
        happenings=(news,),
        wakes=() if failed else (s.now + LEAVE_SECONDS,),
    )


def afterwards(s: Situation) -> Decision:
    """Passes after the end: nothing is created, no status is written; dead pods stay for their logs until the job goes."""
    if s.now >= deadlines.expires(s):
        meta = s.observed.job["metadata"]
        return Decision((Delete("TrainingJob", s.name, meta["uid"]),))
    leave = seconds(s.status.completion_time or "") + (0 if s.status.state == "Failed" else LEAVE_SECONDS)
    due = tuple(_delete(p) for p in _running(s)) if s.now >= leave else ()
    times = [t for t in (leave, deadlines.expires(s), *stranded.wakes(s)) if s.now < t < float("inf")]
    return Decision((*due, *stranded.forced(s), *queueing.left(s.observed.pods), *(WakeAt(t) for t in times)))


def _running(s: Situation) -> tuple[PodView, ...]:
    return tuple(p for p in s.observed.pods if p.live and not p.deleting)


def _delete(pod: PodView) -> Delete:
    return Delete("Pod", pod.name, pod.uid)
