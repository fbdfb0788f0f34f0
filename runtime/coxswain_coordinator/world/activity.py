"""What a job does at this moment: the metric `coxswain_activity`. Pure."""

from __future__ import annotations

from typing import Any, Literal, get_args

from coxswain_coordinator.state.job_state import JobState
from coxswain_coordinator.state.session import Session
from coxswain_coordinator.world.saves import last_save, save_before, without

Activity = Literal["waiting", "indexing", "starting", "step", "evaluation", "save"]


def activity_of(state: JobState) -> Activity | None:
    """None: the job has ended. A save counts while ranks wait for it, not while steps go on beside it."""
    if state.finished is not None:
        return None
    if state.index_progress.index is None:
        return "indexing" if state.index_progress.shares else "waiting"
    session = state.session
    return "waiting" if session is None or session.lost else _of_world(session)


def _of_world(session: Session) -> Activity:
    """An evaluation counts with the step that it follows: ranks report both at once."""
    if (step := last_save(session)) is not None:
        return "save" if without(session, step) else "waiting"
    if save_before(session, session.book.missing_ranks()) is not None:
        return "save"
    if not session.started:
        return "starting"
    if session.waits:
        return "waiting"
    plan = session.open_plan()
    return "evaluation" if plan and plan.evaluation else "step"


def show_activity(gauge: Any, state: JobState) -> None:
    """Lets each scrape ask: 1 for what is under way, 0 for the rest."""
    for activity in get_args(Activity):
        gauge.labels(activity).set_function(lambda activity=activity: float(activity_of(state) == activity))
