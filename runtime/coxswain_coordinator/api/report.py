"""The job as the operator and users see it: JobReport, with what it waits for. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec.structs import replace

from coxswain.exits import Exit
from coxswain.planlog import StrategyRecord
from coxswain.termination import TERMINATION_BYTES, fitting
from coxswain.trainer_figures import slow_words
from coxswain.wire import Fault, JobReport, PredictedLayout, SourceReport, StrategyReport
from coxswain_coordinator.checkpoint.validation import manifest_key_of
from coxswain_coordinator.state.imports import awaited_imports
from coxswain_coordinator.state.job_state import JobState
from coxswain_coordinator.state.rates import step_seconds, tokens_per_second
from coxswain_coordinator.state.registry import join
from coxswain_coordinator.state.session import Session
from coxswain_coordinator.world.saves import last_save, save_before, without

Phase = Literal["Waiting", "Indexing", "Starting", "Running", "Completed", "Suspended", "Failed"]

TRAINERS = 64
"""Trainers that a report names."""

ALTERNATIVES = 8
"""Layouts beside the chosen one that a report names."""

"""What the kubelet keeps of a termination message."""


def job_report(state: JobState) -> JobReport:
    session, manifest = state.session, state.manifest
    last = state.history.recent[-1] if state.history.recent else None
    step = session.book.open if session else (manifest.step if manifest else 0)
    end = session.end_step if session else state.job.total_steps
    seconds, evaluated = step_seconds(state.history.recent), state.history.evaluated
    return JobReport(
        phase=phase_of(state),
        generation=state.generation,
        step=step,
        steps=state.job.total_steps,
        tokens=_tokens(state),
        loss=last.loss if last else None,
        tokens_per_second=tokens_per_second(state.history.recent),
        idle_fraction=last.idle_fraction if last else 0.0,
        eta_seconds=round(max(end - step, 0) * seconds),
        layout_hash=session.record.layout.digest() if session else "",
        layout_summary=session.record.layout.summary() if session else "",
        checkpoint_step=manifest.step if manifest else -1,
        checkpoint_uri=f"{state.job.checkpoint.uri.rstrip('/')}/{manifest_key_of(manifest)}" if manifest else "",
        checkpoint_time=manifest.time if manifest else 0.0,
        waiting_for=waiting_for(state),
        sources=_sources(state),
        events=state.events.latest(),
        fault=state.fault or _store_fault(state),
        reason=state.finished.reason if state.finished else "",
        trainers=tuple(map(state.trainers.report, state.history.trainers[:TRAINERS])),
        slow=slow_words(state.history.trainers, state.trainers.place) if phase_of(state) == "Running" else "",
        gradient_norm=last.gradient_norm if last else None,
        learning_rate=last.learning_rate if last else None,
        mfu=last.mfu if last else None,
        evaluation_loss=evaluated.evaluation_loss if evaluated else None,
        evaluation_step=evaluated.step if evaluated else -1,
        step_seconds=seconds,
        strategy=_strategy(state.strategy.used_by(state.session.world.layout if state.session else None)),
        stragglers=state.stragglers.reports,
        replace_node=state.ladder.request,
        size=state.size,
    )


def _strategy(record: StrategyRecord | None) -> StrategyReport | None:
    if record is None:
        return None
    found = [
        PredictedLayout(a.summary, a.seconds, a.peak_bytes)
        for a in (record.strategy.chosen, *record.strategy.alternatives[:ALTERNATIVES])
    ]
    return StrategyReport(found[0], tuple(found[1:]))


def phase_of(state: JobState) -> Phase:
    if state.finished is not None:
        ends: dict[int, Phase] = {Exit.DONE: "Completed", Exit.STOPPED: "Suspended"}
        return ends.get(state.finished.exit_code, "Failed")
    if state.index_progress.index is None:
        return "Indexing" if state.index_progress.shares else "Waiting"
    return "Running" if state.session is not None and state.history.recent and not state.session.lost else "Starting"


def waiting_for(state: JobState) -> str:
    """What the job waits for, for users; empty when it runs or has ended."""
    if state.finished is not None:
        return ""
    if error := _store_error(state):
        return f"the store: {error}"
    if state.awaited_claim:
        return state.awaited_claim
    if state.index_progress.index is None:
        return _waiting_for_index(state)
    if state.session is None or state.session.lost:
        return _waiting_for_trainers(state)
    return _waiting_for_step(state)


def _waiting_for_index(state: JobState) -> str:
    if not state.index_progress.shares:
        missing = state.registry.missing("loader", state.job.loaders)
        return f"{join(missing)} to register"
    missing_shares = state.index_progress.missing
    if not missing_shares:
        return "the coordinator to merge the index"
    by_source = sorted({(s.loader, s.source) for s in missing_shares})
    shares = len(state.index_progress.shares)
    loaders = join(f"{loader} to index {source}" for loader, source in by_source)
    return f"{loaders} ({shares - len(missing_shares)} of {shares} shares done)"


def _waiting_for_trainers(state: JobState) -> str:
    missing = state.registry.missing("trainer", state.size)
    known = (state.registry.member("trainer", name) for name in missing)
    if why := awaited_imports(member for member in known if member is not None):
        return why
    if missing:
        return f"{join(missing)} to register ({state.size - len(missing)} of {state.size} trainers)"
    return state.capacity_shortage or "the coordinator to form a world"


def _waiting_for_step(state: JobState) -> str:
    session = state.session
    assert session is not None
    plan, ranks = session.open_plan(), len(session.world.seats)
    if session.ending is not None:
        return f"workers to save step {session.ending.step} and leave"
    if why := _waiting_for_save(state, session):
        return why
    if session.begun < session.book.open and (why := _waiting_for_imports(state, session)):
        return why
    if session.begun < session.book.open:
        return f"workers to begin step {session.book.open}" if plan else f"the planner, step {session.book.open}"
    missing = session.book.missing_ranks()
    if len(missing) == ranks and not session.started:  # with a large model this takes minutes
        computing = f"all {ranks} ranks" if ranks > 1 else "rank 0"
        return f"{computing} to finish step {session.book.open}, the first of this world"
    if len(missing) in (0, ranks):  # every rank computes, or only digests are missing
        return ""
    late = join(dict.fromkeys(state.trainers.place(session.world.seats[r].device.trainer) for r in missing))
    return f"rank {join(str(r) for r in missing)} of {ranks} to finish step {session.book.open}: {late}"


def _waiting_for_imports(state: JobState, session: Session) -> str:
    """Empty where each trainer of this world has its workers."""
    present = state.registry.present("trainer", state.changes.forming)
    return awaited_imports(member for member in present if session.works(member.name))


def _waiting_for_save(state: JobState, session: Session) -> str:
    """Empty where no rank waits for a checkpoint: before a planned change, or before the next one, which is due."""
    change, save = last_save(session), save_before(session, session.book.missing_ranks())
    if (step := save if change is None else change) is None:
        return ""
    trainers = (session.world.seats[rank].device.trainer for rank in without(session, step))
    late = join(dict.fromkeys(map(state.trainers.place, trainers))) or "the coordinator"
    why = f", for a change: {session.move.why}" if change is not None and session.move else ""
    return f"step {step} to be saved by {late}{why}"


def _store_fault(state: JobState) -> Fault | None:
    """A retryable fault while the store is unavailable: running steps continue."""
    error = _store_error(state)
    if state.finished is not None or not error:
        return None
    return Fault("StoreAway", f"retrying: {error}", retryable=True)


def _store_error(state: JobState) -> str:
    """The coordinator's own error, or else a loader's."""
    loaders = (loader.last_error for loader in state.registry.of("loader", state.job.loaders))
    return state.store_executor.last_error or next(filter(None, loaders), "")


def _tokens(state: JobState) -> int:
    if state.session is not None:
        return state.session.cursors[state.session.book.open].offset
    return state.manifest.tokens if state.manifest else 0


def _sources(state: JobState) -> tuple[SourceReport, ...]:
    if state.session is None:
        return state.index_progress.reports
    drawn = {c.name: c.total_tokens for c in state.session.cursors[state.session.book.open].sources}
    return tuple(replace(s, drawn_tokens=drawn.get(s.name, 0)) for s in state.index_progress.reports)


def termination_message(report: JobReport) -> bytes:
    """The final report in at most 4096 bytes: no sources, as many of the latest events as fit, the fault cut at last."""
    short = replace(report, sources=(), trainers=(), stragglers=(), waiting_for="", strategy=None)
    for count in (16, 4, 0):
        message = msgspec.json.encode(replace(short, events=report.events[-count:] if count else ()))
        if len(message) <= TERMINATION_BYTES:
            return message
    bare = replace(short, events=(), slow="", fault=None)
    room = TERMINATION_BYTES - len(msgspec.json.encode(bare)) + len(b"null")
    return msgspec.json.encode(replace(bare, fault=report.fault and fitting(report.fault, room)))
