"""The state of one job as its services have reported it. Handlers record facts here; `driver` decides."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path

from coxswain.config import JobConfig
from coxswain.errors import Refused, Retryable, Stale
from coxswain.exits import Exit
from coxswain.wire import (
    Fault,
    Finished,
    Indexed,
    Manifest,
    Received,
    Register,
    Registered,
    Saved,
    Served,
    StepReport,
    StopRequest,
    WorkerExit,
)
from coxswain_coordinator.bell import Bell
from coxswain_coordinator.catalog import Catalog
from coxswain_coordinator.checkpoints import manifest_key_of
from coxswain_coordinator.durable import Durable
from coxswain_coordinator.events import EventBook
from coxswain_coordinator.history import History
from coxswain_coordinator.registry import Registry
from coxswain_coordinator.session import Session
from coxswain_link.metrics import Registry as Metrics

MOST_FAILURES = 5
"""Worlds that may fail one after another without a new step, before the coordinator gives up."""


def diverged(report: StepReport, manifest: Manifest | None) -> Fault:
    """A loss or gradient that is not finite spoils the parameters for ever: stop before a checkpoint holds them."""
    last = f"the last checkpoint is {manifest_key_of(manifest)}" if manifest else "there is no checkpoint yet"
    return Fault(
        "Diverged",
        f"step {report.step}: the loss or the gradient of rank {report.rank} is not finite; {last}. Lower "
        "optimizer.learningRate, raise warmupSteps or set gradientClip, and start again from there",
    )


class Run:
    """Everything the coordinator knows. One event loop, so no locks; the bell rings after every change."""

    def __init__(self, job: JobConfig, metrics: Metrics, run_dir: Path | None, clock: Callable[[], float]) -> None:
        self.job, self.metrics, self.clock = job, metrics, clock
        self.instance = secrets.token_hex(8)  # senders repeat to another one what they told this one's predecessor
        self.bell, self.registry, self.durably = Bell(), Registry(), Durable()
        self.events = EventBook(clock)
        self.history = History(run_dir, metrics)
        self.catalog = Catalog(job.mix)
        self.manifest: Manifest | None = None  # the newest checkpoint
        self.manifests = 0  # made by this process
        self.session: Session | None = None
        self.best = 0  # the highest step ever closed in this process, plus one
        self.losses = 0  # worlds lost so far
        self.failures = 0  # of successive worlds, without progress
        self.stop: StopRequest | None = None
        self.fault: Fault | None = None
        self.finished: Finished | None = None
        self.short = ""  # why the trainers at hand do not suffice

    @property
    def generation(self) -> int:
        return self.session.record.generation if self.session else 0

    # --- joining ------------------------------------------------------------------------------------------------------

    def register(self, member: Register) -> Registered:
        arrival = self.registry.register(member)
        if (
            member.role == "loader"
            and not self.catalog.shares
            and not self.registry.missing("loader", self.job.loaders)
        ):
            loaders = [m.name for m in self.registry.of("loader", self.job.loaders)]
            self.note("IndexingStarted", self.catalog.assign(loaders))
        if arrival == "replaced" and member.role == "trainer":
            self.lose(f"{member.name} was replaced by pod {member.pod}")
            self.registry.register(member)  # this one is there already
        self.bell.ring()
        return Registered(self.generation)

    def add_indexed(self, part: Indexed) -> None:
        if part.fault is not None:
            self.fail(part.fault)
        else:
            self.catalog.add(part)
        self.bell.ring()

    # --- steps --------------------------------------------------------------------------------------------------------

    def live(self, generation: int) -> Session:
        """The session that a message of this generation is for. Raises Stale when it is another one."""
        if self.session is None:
            raise Retryable("there is no world yet; the coordinator has just started")
        if generation != self.generation:
            raise Stale(f"generation {generation} is not the current one ({self.generation})")
        return self.session

    def received(self) -> Received:
        return Received(self.instance, self.manifest.step if self.manifest else 0)

    def hear(self, generation: int, rank: int) -> None:
        """A sign of life of a rank, or of a constructor (below 0)."""
        session = self.live(generation)
        if rank >= 0:
            session.heard[rank] = time.monotonic()

    def add_report(self, report: StepReport) -> None:
        session = self.live(report.generation)
        session.begin(report.step)  # with a plan at hand, workers need no ticket
        self.hear(report.generation, report.rank)
        if report.loss_sum is None or report.gradient_norm is None:
            self.fail(diverged(report, self.manifest))
        session.book.report(report)
        self.bell.ring()

    def add_served(self, served: Served) -> None:
        try:
            self.live(served.generation).book.served(served)
        except Refused as error:
            self.fail(Fault(error.reason, error.message))
        self.bell.ring()

    def add_saved(self, saved: Saved) -> None:
        session = self.live(saved.generation)
        self.hear(saved.generation, saved.rank)
        if self.manifest is None or saved.step > self.manifest.step:
            session.saves.saved(saved)
            if saved.end:
                session.learn_end(saved.step, completed=saved.end == "Completed")
        self.bell.ring()

    def close_step(self, session: Session) -> bool:
        """Closes the open step if all of it has been reported."""
        plan = session.open_plan()
        closed = session.book.close(plan, self.clock()) if plan is not None else None
        if closed is None:
            return False
        line, timing = closed
        if not self.history.recent:
            self.note("TrainingStarted", f"step {line.step} is done, loss {line.loss:.4f}")
        self.history.add(line, timing)
        if session.book.open > self.best:
            self.best, self.failures = session.book.open, 0
        session.forget_before(session.book.open)
        self.bell.ring()
        return True

    def add_manifest(self, session: Session, manifest: Manifest, seconds: float) -> None:
        """A checkpoint counts from now on."""
        self.manifest, self.manifests = manifest, self.manifests + 1
        self.history.recorded(manifest.step)
        session.mark_saved(manifest.step)
        self.metrics["coxswain_checkpoint_step"].set(manifest.step)
        self.metrics["coxswain_checkpoint_seconds"].observe(seconds)
        if self.manifests % 10 == 1:
            self.note("CheckpointSaved", f"{manifest_key_of(manifest)}, {len(manifest.shards)} shards")
        self.bell.ring()

    def wait_for(self, short: str) -> None:
        """The trainers at hand do not suffice."""
        if short != self.short:
            self.short = short
            self.bell.ring()

    # --- worlds -------------------------------------------------------------------------------------------------------

    def enter(self, session: Session, lives: bool = False) -> None:
        """A new world begins, or one that `lives` is taken up; a stop that was asked for stays asked for."""
        before, record, session.taken_up = self.session, session.record, lives
        if self.stop is not None:
            session.request_stop(before.stop_at if before and before.stop_at is not None else self.stop.at_step)
        where = f"generation {record.generation} from step {record.first_step}"
        gang = f"{where}: {len(session.world.seats)} ranks, {record.layout.summary()}"
        if before is not None:
            self.note("WorkerRestarted", f"{before.lost}; {gang}", warning=True)
        elif lives:
            self.note("Resumed", f"{where} goes on: its workers did without a coordinator until this one came")
        else:
            self.note("Resumed" if self.manifest else "GangStarted", gang)
        self.session, self.short = session, ""
        self.history.begin_at(session.book.open)
        self.metrics["coxswain_world_generation"].set(record.generation)
        self.bell.ring()

    # --- failure and end ----------------------------------------------------------------------------------------------

    def add_exit(self, exit_: WorkerExit) -> None:
        """A worker has ended: as told, by the user's fault (of whatever generation), or else its world is lost."""
        self.metrics["coxswain_worker_exits_total"].labels(exit_.trainer, exit_.exit_code).inc()
        session = self.session
        if session is None:  # the world that its agent told of does not live on
            self.registry.expect_again("trainer")
        if exit_.exit_code == Exit.USER_FAULT:
            self.fail(exit_.fault or Fault("WorkerFailed", f"rank {exit_.rank} on {exit_.trainer} left with code 2"))
        elif session is not None and exit_.generation == self.generation:
            session.exited[exit_.rank] = exit_.exit_code
            if exit_.exit_code in (Exit.DONE, Exit.STOPPED):
                last = session.saves.newest(exit_.rank) or session.saved
                session.learn_end(last, completed=exit_.exit_code == Exit.DONE)
            if session.ending is None or exit_.exit_code not in (Exit.DONE, Exit.STOPPED):
                self._worker_failed(exit_)
        self.bell.ring()

    def _worker_failed(self, exit_: WorkerExit) -> None:
        if self.session is None or self.session.lost:
            return
        why = exit_.fault.message if exit_.fault else f"exit code {exit_.exit_code}"
        self.lose(f"rank {exit_.rank} on {exit_.trainer} ended: {why}")
        self.failures += 1
        if self.failures >= MOST_FAILURES:
            self.fail(
                Fault(
                    "WorkerCrashLoop",
                    f"{self.failures} worlds failed one after another without a new step; last: {self.session.lost}",
                    retryable=True,
                )
            )

    def lose(self, why: str) -> None:
        """The current world cannot go on; the driver replaces it once every trainer has registered again.

        Agents register before each poll of the world, and polls are cut short by a loss, so the living are there at once,
        and no world is formed with the dead.
        """
        if self.session is not None and not self.session.lost and not self.session.saved_end:
            self.session.lost = why
            self.losses += 1
            self.registry.expect_again("trainer")

    def fail(self, fault: Fault) -> None:
        """The first fault counts."""
        self.fault = self.fault or fault

    def request_stop(self, request: StopRequest) -> None:
        self.stop = request
        if self.session is not None:
            self.session.request_stop(request.at_step)
        self.bell.ring()

    def finish(self, finished: Finished) -> Finished:
        """The job has ended; every long poll hears of it."""
        reasons = {Exit.DONE: "Completed", Exit.STOPPED: "Suspended"}
        reason = reasons.get(Exit(finished.exit_code), "Failed")
        self.note(reason, f"{finished.reason}: {finished.message}", warning=reason == "Failed")
        self.finished = finished
        self.bell.ring()
        return finished

    def note(self, reason: str, message: str, warning: bool = False) -> None:
        self.events.add(reason, message, warning)
