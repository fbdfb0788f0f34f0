"""Reconcile: one pure function from a look at the cluster to the actions of one pass. One policy, one file."""

from __future__ import annotations

import dataclasses

from msgspec.structs import replace

from coxswain_operator.children.scheduling import pod_group
from coxswain_operator.reconcile import (
    deadlines,
    events,
    failure,
    finish,
    gang,
    incarnations,
    progress,
    queueing,
    sources,
    suspend,
)
from coxswain_operator.reconcile.conditions import conditions
from coxswain_operator.reconcile.situation import Situation, generation, look
from coxswain_operator.reconcile.status import JobStatus, due_at, read_status, to_manifest
from coxswain_operator.reconcile.step import Step
from coxswain_operator.reconcile.times import stamp
from coxswain_operator.reconcile.values import Decision, Observed, WakeAt, WriteStatus
from coxswain_operator.settings import Settings

__all__ = ["Decision", "Observed", "Settings", "reconcile"]


def reconcile(observed: Observed, now: float, settings: Settings | None = None) -> Decision:
    """What to do now. Terminal stays terminal; the status is written before anything that it accounts for is done."""
    s = look(observed, now, settings or Settings())
    if s.status.ended:
        return finish.afterwards(s)
    s = dataclasses.replace(s, status=progress.reported(incarnations.seen(s.status, s.pods), s.report))
    return conclude(s, decide(s))


def decide(s: Situation) -> Step:
    """The policies in their order: ends, then suspension, then the gang."""
    suspending = suspend.wanted(s)
    ending = (
        finish.refused(s) or finish.completed(s) or deadlines.exceeded(s) or failure.fatal(s, counting=not suspending)
    )
    if ending is not None:
        return finish.ended(s, ending)
    if suspending:
        return suspend.suspended(s)
    if s.config is None:  # what runs goes on; nothing is created or replaced
        state = s.state_of_gang if s.pods else "Queued"
        return Step(state, s.status, s.faults[0].reason, s.faults[0].message)
    return gang.kept(s, s.config)


def conclude(s: Situation, step: Step) -> Decision:
    """Turns a step into actions: one status write, deletes, creates, calls, events, and when to look again."""
    old, (told, mark) = read_status(s.observed.job), events.told(s)
    new = replace(
        progress.counted(step.status, s),
        conditions=conditions(s, step),
        event_sequence=events.mark_after(old, step.status, mark),
        observed_generation=generation(s.observed.job),
    )
    due = due_at(old, new, s.now)
    wakes = (*step.wakes, *deadlines.wakes(s), due)
    return Decision(
        (
            *(_write(s, new) if due <= s.now else ()),
            *sources.statuses(s),
            *step.deletes,
            *step.creates,
            *queueing.left(s.observed.pods, "" if step.state in ("Suspending", "Suspended") else _group(s)),
            *step.calls,
            *told,  # what the coordinator saw came before what follows from it
            *step.happenings,
            *events.transitions(old, new),
            *(WakeAt(t) for t in sorted(set(wakes)) if s.now < t < float("inf")),
        )
    )


def _group(s: Situation) -> str:
    """Of the pods of this start, if they are queued."""
    return pod_group(s.observed.job, s.numbers.everyone.number)


def _write(s: Situation, status: JobStatus) -> tuple[WriteStatus]:
    meta = s.observed.job["metadata"]
    plain = to_manifest(replace(status, updated_at=stamp(s.now)))
    return (WriteStatus("TrainingJob", meta["name"], plain, str(meta.get("resourceVersion", ""))),)
