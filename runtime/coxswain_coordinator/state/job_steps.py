"""What services report of a job's data and steps, and what is saved of them."""

from __future__ import annotations

import time

from msgspec import UnsetType
from msgspec.structs import replace

from coxswain.errors import Refused
from coxswain.membership.stream import used_up
from coxswain.membership.values import MixRecord
from coxswain.wire import (
    Ack,
    CheckpointManifest,
    DeliveredDigests,
    Fault,
    Heartbeat,
    Indexed,
    ProbesWanted,
    ShardsSaved,
    StandbyProbes,
    StepReport,
)
from coxswain_coordinator.checkpoint.validation import manifest_key_of
from coxswain_coordinator.state.job_facts import JobFacts
from coxswain_coordinator.state.notifier import Topic
from coxswain_coordinator.state.session import Session
from coxswain_coordinator.steps import with_prediction, with_utilisation
from coxswain_coordinator.stragglers.figures import measured

_RANKS_A_HEARTBEAT_SECOND = 85
_LONGEST_HEARTBEAT = 12.0  # seconds, with 10 s for one attempt: a rank that is silent for 30 s is lost


def heartbeat_seconds(ranks: int) -> float:
    """Seconds between two heartbeats of a rank, so that all together send some 85 a second; 0 in small worlds: as ranks like."""
    wanted = ranks / _RANKS_A_HEARTBEAT_SECOND
    return min(wanted, _LONGEST_HEARTBEAT) if wanted > 1 else 0.0


def diverged(report: StepReport, manifest: CheckpointManifest | None) -> Fault:
    """The fault of a loss or gradient that is not finite: no checkpoint may hold its result."""
    last = f"the last checkpoint is {manifest_key_of(manifest)}" if manifest else "there is no checkpoint yet"
    return Fault(
        "Diverged",
        f"step {report.step}: the loss or the gradient of rank {report.rank} is not finite; {last}. Lower "
        "optimizer.learningRate, raise warmupSteps or set gradientClip, and start again from there",
    )


class JobSteps(JobFacts):
    """The facts of a job with its data and its steps."""

    def ack(self) -> Ack:
        saved, session = self.manifest.step if self.manifest else 0, self.session
        if session is None:
            return Ack(self.instance, saved)
        pause, saving = heartbeat_seconds(len(session.world.seats)), session.progress if session.ending else 0
        return Ack(self.instance, saved, pause, session.known_end, saving)

    def heartbeat(self, generation: int, rank: int, progress: int = 0) -> None:
        """Records a heartbeat of a rank. Constructors send a rank below 0."""
        session = self.current_session(generation)
        if rank >= 0:
            session.hear(rank, time.monotonic(), progress)

    def take_heartbeat(self, beat: Heartbeat) -> None:
        """Records also which step a rank has begun. In an adopted world a stop may wait for that."""
        self.heartbeat(beat.generation, beat.rank, beat.progress)
        session, begun = self.current_session(beat.generation), -1 if isinstance(beat.begun, UnsetType) else beat.begun
        if beat.rank >= 0 and session.place(beat.rank, begun) and session.adopted:
            self.notifier.notify(Topic.PLANS)

    def add_indexed(self, part: Indexed) -> None:
        if part.fault is not None:
            self.fail(part.fault)
        else:
            self.index_progress.add(part)
        self.notifier.notify(Topic.ANY)

    def change_mix(self, record: MixRecord, first: int, changed: str) -> None:
        """Records that the mix was edited: the plans of the steps from the `first` on follow the record."""
        self.record_event("MixChanged", f"{changed}; from step {first} on (mix record {record.number})")
        progress = self.index_progress
        progress.reports = tuple(replace(r, weight=record.weights[r.name]) for r in progress.reports)
        self.notifier.notify(Topic.ANY)

    def add_report(self, report: StepReport) -> None:
        session = self.current_session(report.generation)
        session.begin(report.step)  # workers that have the plan begin without a directive
        self.heartbeat(report.generation, report.rank)
        if report.loss_sum is None or report.gradient_norm is None:
            self.fail(diverged(report, self.manifest))
        session.book.add_report(report)
        self.notifier.notify(Topic.ANY)

    def add_probes(self, found: StandbyProbes) -> ProbesWanted:
        """Of devices on standby. The reply says which ones to probe next."""
        self.current_session(found.generation)
        self.guarded(self._standby.hear, found)
        return self._standby.wanted(found.trainer)

    def add_delivered(self, served: DeliveredDigests) -> None:
        try:
            self.current_session(served.generation).book.add_delivered(served)
        except Refused as error:
            self.fail(Fault(error.reason, error.message))
        self.notifier.notify(Topic.ANY)

    def add_saved(self, saved: ShardsSaved) -> None:
        session = self.current_session(saved.generation)
        self.heartbeat(saved.generation, saved.rank)
        if self.manifest is None or saved.step > self.manifest.step:
            session.pending.add(saved)
            if saved.end == "Moved":
                session.adopt_move(saved.step)
            elif saved.end:
                session.adopt_end(saved.step, completed=saved.end == "Completed")
        self.notifier.notify(Topic.PLANS if saved.end else Topic.ANY)

    def close_step(self, session: Session, world_over: bool = False) -> bool:
        """Closes the open step if all of it has been reported. `world_over`: no other report will come."""
        plan = session.open_plan()
        closed = session.book.close(plan, self.clock(), world_over) if plan is not None else None
        if plan is None or closed is None:
            return False
        line = with_prediction(with_utilisation(self.job, session.world, plan, closed.line), plan, self._step_seconds)
        if not self.history.recent:
            self.record_event("TrainingStarted", f"step {line.step} is done, loss {line.loss:.4f}")
        self.history.add(line, closed.timing, session.world.seats)
        self.changes.stepped()
        if len(closed.reports) == len(session.world.seats):
            self.guarded(self.stragglers.observe, plan, closed.reports)
            if not session.lost:
                self.guarded(
                    self.ladder.stepped, measured(plan, closed.reports, line.seconds), self.stragglers.stragglers
                )
        self.tracking.add(line)
        for source in used_up(session.cursors[line.step], session.cursors[session.book.open]):
            passes = f"passes done {source.epoch}, and its maxPasses allows no more"
            self.record_event("SourceExhausted", f"{source.name} has left the mix in step {line.step}: {passes}")
        if session.book.open > self.best:
            self.best, self.failures = session.book.open, 0
        session.forget_before(session.book.open)
        self.sweeps.after_step(line.step)
        self.notifier.notify(Topic.ANY)
        return True

    def add_manifest(self, session: Session, manifest: CheckpointManifest, seconds: float) -> None:
        """Records a new checkpoint."""
        self.manifest = manifest
        self.history.saved(manifest.step)
        session.mark_saved(manifest.step)
        self.metrics["coxswain_checkpoint_seconds"].observe(seconds)
        self._checkpoint_events.announce(f"{manifest_key_of(manifest)}, {len(manifest.shards)} shards, {seconds:.1f} s")
        self.notifier.notify(Topic.ANY)
