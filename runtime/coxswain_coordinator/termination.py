"""How a job ends. Pure: facts in, `Finished` out."""

from __future__ import annotations

from coxswain.config import JobConfig
from coxswain.exits import Exit
from coxswain.wire import CheckpointManifest, Fault, Finished, StopRequest
from coxswain_coordinator.state.session import Session


def failed(fault: Fault) -> Finished:
    return Finished(Exit.RETRYABLE if fault.retryable else Exit.USER_FAULT, fault.reason, fault.message)


def already_over(job: JobConfig, manifest: CheckpointManifest | None, data_ended: bool) -> Finished | None:
    """The end of a job whose newest checkpoint is its last one. `data_ended`: there, by the plan log."""
    if manifest is None:
        return None
    if manifest.step >= job.total_steps:
        return _completed("StopReached", manifest.step)
    return _completed("DataExhausted", manifest.step) if data_ended else None


def stopped_idle(
    stop: StopRequest | None, session: Session | None, manifest: CheckpointManifest | None
) -> Finished | None:
    """The end of a job that is stopped without a world: it keeps the newest checkpoint."""
    if stop is None or stop.at_step >= 0 or (session is not None and not session.lost):
        return None
    return _suspended(manifest.step if manifest else 0)


def end_of(session: Session) -> Finished:
    """The end that the session's directives announced, once it is saved."""
    assert session.ending is not None
    if session.ending.end == "Suspended":
        return _suspended(session.ending.step)
    return _completed("DataExhausted" if session.exhausted else "StopReached", session.ending.step)


def _completed(reason: str, step: int) -> Finished:
    return Finished(Exit.DONE, reason, f"completed {step} steps")


def _suspended(step: int) -> Finished:
    return Finished(Exit.STOPPED, "Suspended", f"suspended before step {step}")
