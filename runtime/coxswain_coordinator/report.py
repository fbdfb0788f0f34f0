"""The job as the operator and people see it: JobReport, and in words who waits for whom. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from coxswain.exits import Exit
from coxswain.wire import Fault, JobReport, SourceReport, StepLine
from coxswain_coordinator.checkpoints import manifest_key_of
from coxswain_coordinator.registry import join
from coxswain_coordinator.run import Run

Phase = Literal["Waiting", "Indexing", "Starting", "Running", "Completed", "Suspended", "Failed"]

TERMINATION_BYTES = 4096
"""What the kubelet keeps of a termination message."""


def job_report(run: Run) -> JobReport:
    session, manifest = run.session, run.manifest
    last = run.history.recent[-1] if run.history.recent else None
    step = session.book.open if session else (manifest.step if manifest else 0)
    end = session.end_step if session else run.job.total_steps
    seconds = step_seconds(run.history.recent)
    return JobReport(
        phase=phase_of(run),
        generation=run.generation,
        step=step,
        steps=run.job.total_steps,
        tokens=_tokens(run),
        loss=last.loss if last else None,
        tokens_per_second=tokens_per_second(run.history.recent),
        idle_fraction=last.idle_fraction if last else 0.0,
        eta_seconds=round(max(end - step, 0) * seconds),
        layout_hash=session.record.layout.digest() if session else "",
        layout_summary=session.record.layout.summary() if session else "",
        checkpoint_step=manifest.step if manifest else -1,
        checkpoint_uri=f"{run.job.checkpoint.uri.rstrip('/')}/{manifest_key_of(manifest)}" if manifest else "",
        checkpoint_time=manifest.time if manifest else 0.0,
        waiting_for=waiting_for(run),
        sources=_sources(run),
        events=run.events.latest(),
        fault=run.fault or _store_fault(run),
        reason=run.finished.reason if run.finished else "",
    )


def phase_of(run: Run) -> Phase:
    if run.finished is not None:
        ends: dict[int, Phase] = {Exit.DONE: "Completed", Exit.STOPPED: "Suspended"}
        return ends.get(run.finished.exit_code, "Failed")
    if run.catalog.index is None:
        return "Indexing" if run.catalog.shares else "Waiting"
    return "Running" if run.session is not None and run.history.recent and not run.session.lost else "Starting"


def waiting_for(run: Run) -> str:
    """Who waits for whom, for people; empty when the job simply runs (or has ended)."""
    if run.finished is not None:
        return ""
    if trouble := _store_trouble(run):
        return f"the store: {trouble}"
    if run.catalog.index is None:
        return _waiting_for_index(run)
    if run.session is None or run.session.lost:
        return _waiting_for_trainers(run)
    return _waiting_for_step(run)


def _waiting_for_index(run: Run) -> str:
    if not run.catalog.shares:
        missing = run.registry.missing("loader", run.job.loaders)
        return f"{join(missing)} to register"
    missing_shares = run.catalog.missing
    if not missing_shares:
        return "the coordinator to merge the index"
    by_source = sorted({(s.loader, s.source) for s in missing_shares})
    shares = len(run.catalog.shares)
    loaders = join(f"{loader} to index {source}" for loader, source in by_source)
    return f"{loaders} ({shares - len(missing_shares)} of {shares} shares done)"


def _waiting_for_trainers(run: Run) -> str:
    missing = run.registry.missing("trainer", run.job.trainers)
    if missing:
        return f"{join(missing)} to register ({run.job.trainers - len(missing)} of {run.job.trainers} trainers)"
    return run.short or "the coordinator to form a world"


def _waiting_for_step(run: Run) -> str:
    session = run.session
    assert session is not None
    plan, ranks = session.open_plan(), len(session.world.seats)
    if session.ending is not None:
        return f"workers to save step {session.ending.step} and leave"
    if session.begun < session.book.open:
        return f"workers to begin step {session.book.open}" if plan else f"the planner, step {session.book.open}"
    missing = session.book.missing_ranks()
    if len(missing) in (0, ranks):  # everybody computes, or only digests are on their way
        return ""
    return f"rank {join(str(r) for r in missing)} of {ranks} to finish step {session.book.open}"


def step_seconds(recent: Sequence[StepLine]) -> float:
    """Wall time per step, pauses between steps included where two steps are known; 0: unknown."""
    if len(recent) < 2:
        return recent[0].seconds if recent else 0.0
    return max(recent[-1].time - recent[0].time, 0.0) / (len(recent) - 1)


def tokens_per_second(recent: Sequence[StepLine]) -> float:
    seconds = step_seconds(recent)
    return sum(line.tokens for line in recent) / len(recent) / seconds if seconds else 0.0


def _store_fault(run: Run) -> Fault | None:
    """While the store is away: nothing has failed yet, and what is at hand goes on."""
    trouble = _store_trouble(run)
    if run.finished is not None or not trouble:
        return None
    return Fault("StoreAway", f"trying again: {trouble}", retryable=True)


def _store_trouble(run: Run) -> str:
    """The coordinator's own, or else a loader's."""
    loaders = (loader.trouble for loader in run.registry.of("loader", run.job.loaders))
    return run.durably.trouble or next(filter(None, loaders), "")


def _tokens(run: Run) -> int:
    if run.session is not None:
        return run.session.cursors[run.session.book.open].offset
    return run.manifest.tokens if run.manifest else 0


def _sources(run: Run) -> tuple[SourceReport, ...]:
    if run.session is None:
        return run.catalog.reports
    drawn = {c.name: c.total_tokens for c in run.session.cursors[run.session.book.open].sources}
    return tuple(replace(s, drawn_tokens=drawn.get(s.name, 0)) for s in run.catalog.reports)


def termination_message(report: JobReport) -> bytes:
    """The final report in at most 4096 bytes: without sources, with as many of the latest events as fit."""
    for count in (16, 4, 0):
        events = report.events[-count:] if count else ()
        message = msgspec.json.encode(replace(report, sources=(), events=events, waiting_for=""))
        if len(message) <= TERMINATION_BYTES:
            return message
    fault = report.fault and replace(report.fault, message=report.fault.message[:1000])
    return msgspec.json.encode(replace(report, sources=(), events=(), waiting_for="", fault=fault))
