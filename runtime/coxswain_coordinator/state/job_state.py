"""The state of one job, as its services report it. Handlers record facts here; `driver` decides."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from coxswain.config import JobConfig
from coxswain.cost.constants import device_memory, load_hardware
from coxswain.errors import Refused, Retryable, Stale
from coxswain.exits import Exit
from coxswain.layout import Layout
from coxswain.membership.stream import used_up
from coxswain.membership.values import MixRecord
from coxswain.planlog import StrategyRecord
from coxswain.wire import (
    Ack,
    CheckpointManifest,
    DeliveredDigests,
    Fault,
    Finished,
    Indexed,
    ProbesWanted,
    Register,
    Registered,
    ShardsSaved,
    StandbyProbes,
    StepReport,
    StopRequest,
    WorkerExit,
)
from coxswain_coordinator.capacity import devices_of
from coxswain_coordinator.checkpoint.validation import manifest_key_of
from coxswain_coordinator.index.progress import IndexProgress
from coxswain_coordinator.state.changes import Changes
from coxswain_coordinator.state.checkpoint_events import CheckpointEvents
from coxswain_coordinator.state.event_log import EventLog
from coxswain_coordinator.state.history import History
from coxswain_coordinator.state.job_strategy import JobStrategy
from coxswain_coordinator.state.notifier import Notifier, Topic
from coxswain_coordinator.state.registry import Arrival, MemberRegistry, index_of
from coxswain_coordinator.state.session import Session
from coxswain_coordinator.state.trainers import Trainers, count_exit, forget
from coxswain_coordinator.steps import seconds_beside_tasks, with_prediction, with_utilisation
from coxswain_coordinator.store_executor import StoreExecutor
from coxswain_coordinator.stragglers.figures import measured
from coxswain_coordinator.stragglers.guard import Guard
from coxswain_coordinator.stragglers.ladder import Ladder
from coxswain_coordinator.stragglers.standby import StandbyProbing
from coxswain_coordinator.stragglers.watch import StragglerWatch
from coxswain_coordinator.tracking.sinks import sinks_of
from coxswain_coordinator.tracking.tracking import Tracking
from coxswain_link.garbage import Sweeps
from coxswain_link.metrics import MetricsRegistry as Metrics

log = logging.getLogger(__name__)

MAX_FAILURES = 5
"""Worlds that may fail one after another without a new step, before the coordinator gives up."""


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


def ended(exit_: WorkerExit) -> str:
    """What the end of a worker says of its world's."""
    why = exit_.fault.message if exit_.fault else f"exit code {exit_.exit_code}"
    return f"rank {exit_.rank} on {exit_.trainer} ended: {why}"


class JobState:
    """Everything the coordinator knows. One event loop, so no locks; each change notifies."""

    def __init__(self, job: JobConfig, metrics: Metrics, run_dir: Path | None, clock: Callable[[], float]) -> None:
        self.job, self.metrics, self.clock = job, metrics, clock
        self.instance = secrets.token_hex(8)  # senders repeat unsaved messages to a new one
        self.notifier, self.registry, self.store_executor = Notifier(), MemberRegistry(), StoreExecutor()
        self.events = EventLog(clock)
        self.tracking = Tracking(sinks_of(job, run_dir), self._tracker_failed)
        self.history = History(run_dir, metrics, job.parallelism.hardware)
        self.hardware = load_hardware(job.parallelism.hardware)  # or the job's profile
        self.stragglers = StragglerWatch(
            job.stragglers, clock, self.record_event, metrics["coxswain_straggler_slowdown"],
            accelerators=device_memory(job.parallelism.hardware) > 0,
        )  # fmt: skip
        self.ladder = Ladder(job, self.request_layout, self.record_event, joins=self._joins)
        self._standby = StandbyProbing(self.stragglers, self.ladder, self.record_event)
        self.guarded = Guard()  # calls of these three
        self._step_seconds = 0.0  # of a step in this world besides its tasks, by the cost model
        self.index_progress = IndexProgress(job.mix)
        self.manifest: CheckpointManifest | None = None  # the newest checkpoint
        self.data_ended = False  # there, by the plan log
        self.is_over: Callable[[], bool] = lambda: False  # whether that is the job's last
        self.recorded_step = 0  # of the newest checkpoint that the job's status names
        self._checkpoint_events = CheckpointEvents(clock, self.record_event)
        self.session: Session | None = None
        self._early_exit: WorkerExit | None = None  # the last that was reported before there was a world
        self.leaving = set[str]()  # agents that make their workers leave a world that is over
        self.best = 0  # the highest step ever closed in this process, plus one
        self.worlds_lost = 0  # worlds lost so far
        self.failures = 0  # of successive worlds, without progress
        self.stop: StopRequest | None = None
        self.fault: Fault | None = None
        self.finished: Finished | None = None
        self.capacity_shortage = ""  # why the registered trainers do not suffice
        self.config = ""  # name of the ConfigMap with `job`; empty: unknown
        self.changes = Changes(job.trainers)
        self.strategy = JobStrategy(job)
        self.sweeps = Sweeps()
        self.awaited_claim = ""  # another run's, on the same checkpoint.uri

    @property
    def generation(self) -> int:
        return self.session.record.generation if self.session else 0

    def wait_for_claim(self, words: str) -> None:
        self.awaited_claim = words
        self.notifier.notify(Topic.ANY)

    @property
    def trainers(self) -> Trainers:
        if self.session is None:
            return Trainers((), self.registry)
        return Trainers(self.session.world.trainers, self.registry, self.session.world.layout)

    # --- joining ----------------------------------------------------------------------------------

    def register(self, member: Register) -> Registered:
        """Raises Stale for a pod of another attempt, which has read another configuration, and for one that was replaced."""
        if member.config and self.config and member.config != self.config:
            raise Stale(f"pod {member.pod} has read ConfigMap {member.config}, and this attempt has {self.config}")
        if successor := self.registry.successor(member):
            raise Stale(f"pod {member.pod} was replaced by {successor}, which has registered")
        arrival = self.registry.register(member)
        if (
            member.role == "loader"
            and not self.index_progress.shares
            and self.registry.has_all("loader", self.job.loaders)
        ):
            loaders = [m.name for m in self.registry.of("loader", self.job.loaders)]
            self.record_event("IndexingStarted", self.index_progress.assign(loaders))
            self.notifier.notify(Topic.INDEX)
        reply = self._admit(member, arrival) if member.role == "trainer" else Registered(self.generation)
        self.notifier.notify(Topic.WORLD if arrival == "replaced" else Topic.ANY)  # a replaced process waits in vain
        return reply

    def _admit(self, member: Register, arrival: Arrival) -> Registered:
        """Registers an agent. One whose workers are in a world that is over first makes them leave it."""
        session = self.session
        if arrival == "replaced" and session is not None and self.trainers.has_devices_of(member.name):
            self.mark_world_lost(f"{member.name} was replaced by pod {member.pod}")
            self.registry.register(member)  # this one need not register again
        if member.broken and member.left == self.generation:
            self.fail_world(f"a worker of {member.name} has lost its peers: {member.broken}", hearsay=True)
            self.registry.register(member)
        elif member.left == self.generation and self._goes_on():
            self.fail_world(f"a worker of {member.name} has ended", hearsay=True)
            self.registry.register(member)
        over = session is not None and member.generation > 0 and (session.lost or member.generation != self.generation)
        if not over or session is None:
            self.leaving.discard(member.name)
            return Registered(self.generation)
        self.leaving.add(member.name)
        self.registry.expect("trainer", member.name)
        return Registered(self.generation, lost=member.generation, stacks=session.hung)

    def _goes_on(self) -> bool:
        """Whether no worker has a reason to leave the current world. The report of an exit may have gone to a coordinator that is
        gone, or have come before its agent was known."""
        session = self.session
        if session is None or session.lost or session.ending is not None:
            return False
        return session.move is None or not session.move.decided

    def _joins(self) -> bool:
        """Whether a trainer has registered that is not in the world: the next one has it."""
        layout = self.session.world.layout if self.session else Layout(())
        here = {device.trainer for device in devices_of(layout)}
        return any(index_of(member.name) not in here for member in self.registry.present("trainer", self.size))

    def add_indexed(self, part: Indexed) -> None:
        if part.fault is not None:
            self.fail(part.fault)
        else:
            self.index_progress.add(part)
        self.notifier.notify(Topic.ANY)

    def change_mix(self, record: MixRecord, changed: str) -> None:
        """Records that the mix was edited: the plans of later steps follow the record."""
        first = f"step {self.session.decided}" if self.session else "the first step without a plan"
        self.record_event("MixChanged", f"{changed}; from {first} on (mix record {record.number})")
        progress = self.index_progress
        progress.reports = tuple(replace(r, weight=record.weights[r.name]) for r in progress.reports)
        self.notifier.notify(Topic.ANY)

    def take_strategy(self, record: StrategyRecord, mine: bool) -> None:
        """Records the layout of mode Auto. `mine`: this coordinator has chosen it."""
        self.strategy.take(record, mine)
        self.ladder.plan_for(self.strategy.job)

    # --- steps ------------------------------------------------------------------------------------

    def current_session(self, generation: int) -> Session:
        """The session that a message of this generation is for.

        Raises Stale when it is another one.
        """
        if self.session is None:
            raise Retryable("there is no world yet; the coordinator has just started")
        if generation != self.generation:
            raise Stale(f"generation {generation} is not the current one ({self.generation})")
        return self.session

    def ack(self) -> Ack:
        saved, session = self.manifest.step if self.manifest else 0, self.session
        if session is None:
            return Ack(self.instance, saved)
        return Ack(self.instance, saved, heartbeat_seconds(len(session.world.seats)), session.known_end)

    def heartbeat(self, generation: int, rank: int, progress: int = 0) -> None:
        """Records a heartbeat of a rank. Constructors send a rank below 0."""
        session = self.current_session(generation)
        if rank >= 0:
            session.hear(rank, time.monotonic(), progress)

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
            passes = f"its maxPasses, {source.epoch}, are used up"
            self.record_event("SourceExhausted", f"{source.name} has left the mix in step {line.step}: {passes}")
        if session.book.open > self.best:
            self.best, self.failures = session.book.open, 0
        session.forget_before(session.book.open)
        self.sweeps.after_step(line.step)
        self.notifier.notify(Topic.ANY)
        return True

    def _tracker_failed(self, field: str, error: str) -> None:
        """From a tracker's thread: training goes on without it."""
        log.warning("tracking.%s is given up, and training goes on: %s", field, error)

    def log_steps(self, now: bool = False) -> None:
        """Logs closed steps once a line is due, or `now`, and measures the trainers with them."""
        if now or self.history.log.due():
            self.history.log.write(self.trainers.place)
            self.trainers.measure(self.history.trainers, self.metrics)

    def add_manifest(self, session: Session, manifest: CheckpointManifest, seconds: float) -> None:
        """Records a new checkpoint."""
        self.manifest = manifest
        self.history.saved(manifest.step)
        session.mark_saved(manifest.step)
        self.metrics["coxswain_checkpoint_seconds"].observe(seconds)
        self._checkpoint_events.announce(f"{manifest_key_of(manifest)}, {len(manifest.shards)} shards, {seconds:.1f} s")
        self.notifier.notify(Topic.ANY)

    def wait_for_capacity(self, short: str) -> None:
        """Records why the registered trainers do not suffice."""
        if short != self.capacity_shortage:
            self.capacity_shortage = short
            self.notifier.notify(Topic.ANY)

    # --- worlds -----------------------------------------------------------------------------------

    def enter_world(self, session: Session, adopted: bool = False, left: bool = False, alive: bool = False) -> None:
        """Begins a new world or an adopted one. A requested stop stays requested.

        `left`: some of its workers have left the adopted one, so no event says that it continues. `alive`: all workers of the
        world before are, so one that they left without a coordinator, as for its planned change, cost none.
        """
        self.log_steps(now=True)
        before, record, session.adopted = self.session, session.record, adopted
        self.changes.entered(record.layout)
        self._step_seconds = seconds_beside_tasks(self.job.model, session.world, self.hardware)
        if self.stop is not None:
            session.request_stop(before.stop_at if before and before.stop_at is not None else self.stop.at_step)
        where = f"generation {record.generation} from step {record.first_step}"
        summary = f"{where}: {len(session.world.seats)} ranks, {record.layout.summary()}"
        if before is not None and before.planned:
            self.record_event("LayoutChanged", f"{before.lost}; {summary}")
        elif before is not None and before.hearsay and alive:
            changed = before.record.layout != record.layout
            self.record_event("LayoutChanged" if changed else "Resumed", f"{before.lost}; {summary}")
        elif before is not None:
            self.record_event("WorkerRestarted", f"{before.lost}; {summary}", warning=True)
        elif adopted and not left:
            self.record_event("Resumed", f"{where} continues: its workers kept running without a coordinator")
        elif not adopted:
            self.record_event("Resumed" if self.manifest else "GangStarted", summary)
        self.session, self.capacity_shortage = session, ""
        if chosen := self.strategy.announce(record.layout, saved=self.manifest is not None):
            self.record_event("StrategyChosen", chosen)
        self.leaving.clear()
        self.history.begin_at(session.book.open)
        nodes = [self.trainers.node(index) for index in range(len(session.world.trainers))]
        self.guarded(self.stragglers.enter, record, session.world, nodes, session.book.shares)
        self.guarded(self.ladder.enter, record, session.world, nodes)
        session.take_probes = self.stragglers.take_probes
        forget(self.metrics)
        self.metrics["coxswain_world_generation"].set(record.generation)
        self.notifier.notify()

    # --- failure and end --------------------------------------------------------------------------

    def add_exit(self, exit_: WorkerExit) -> None:
        """Records the end of a worker.

        A user's fault ends the job in any generation; another failure costs the world.
        """
        count_exit(self.metrics, exit_)
        session = self.session
        if session is None:  # the world that its agent reported is lost
            self.registry.expect_again("trainer")
            self._early_exit = exit_
        if exit_.exit_code == Exit.USER_FAULT:
            self.fail(exit_.fault or Fault("WorkerFailed", f"rank {exit_.rank} on {exit_.trainer} left with code 2"))
        elif session is not None and exit_.generation == self.generation:
            session.exited[exit_.rank] = exit_.exit_code
            if self._follows_an_end(session, exit_.exit_code):
                last = session.pending.newest(exit_.rank) or session.saved
                session.adopt_end(last, completed=exit_.exit_code == Exit.DONE)
            if session.ending is None or exit_.exit_code not in (Exit.DONE, Exit.STOPPED):
                self._worker_failed(exit_)
        self.notifier.notify(Topic.WORLD, Topic.PLANS)

    def _follows_an_end(self, session: Session, code: int) -> bool:
        """Whether a worker has left at an end that a coordinator before has announced. Code of the user's may exit with any code.

        At a stop a worker may leave without a checkpoint, at the end of the steps or the data only with the job's last.
        """
        return self.is_over() if code == Exit.DONE else code == Exit.STOPPED and session.adopted

    def _worker_failed(self, exit_: WorkerExit) -> None:
        self.fail_world(ended(exit_))
        self.registry.expect("trainer", exit_.trainer)  # it may have registered with what this worker held

    def mark_world_hung(self, why: str) -> None:
        """Marks the current world lost although no worker has ended. It counts as a failure, like an exit."""
        if self.session is None or self.session.lost or self.session.saved_end:
            return
        self.session.hung = True
        self.fail_world(f"{why}; the logs of the trainers have the stacks of their ranks")

    def fail_world(self, why: str, hearsay: bool = False) -> None:
        """Marks the current world lost by a failure. `MAX_FAILURES` worlds in a row without a new step end the job.

        `hearsay`: a worker has lost a peer; the peer's own end may be reported later, and is the reason then.
        """
        session = self.session
        if session is None or session.saved_end:
            return
        if session.lost:
            session.lost = why if session.hearsay else session.lost
            session.hearsay = session.hearsay and hearsay
        else:
            self.mark_world_lost(why)
            session.hearsay = hearsay
            self.failures += 1
        if not session.hearsay:
            self.judge_failures()

    def judge_failures(self) -> bool:
        """Whether so many worlds have failed that the job ends: by a reported end, or once the next world could be formed."""
        if self.session is None or self.failures < MAX_FAILURES:
            return False
        said = f"{self.failures} worlds failed one after another without a new step; last: {self.session.lost}"
        self.fail(Fault("WorkerCrashLoop", said, retryable=True))
        return True

    def mark_world_lost(self, why: str) -> None:
        """Marks the current world lost; the driver replaces it once all trainers registered again.

        Agents register before each poll of the world, and a loss ends their polls early: running
        agents register at once, and no world is formed with a dead one.
        """
        if self.session is not None and not self.session.lost and not self.session.saved_end:
            log.warning("generation %d is lost: %s", self.generation, why)
            self.session.lost = why
            self.worlds_lost += 1
            self.ladder.leave()
            if not self.session.planned:
                self.changes.withdraw(self.session.world.layout)
            self.registry.expect_again("trainer")
            self.notifier.notify(Topic.WORLD)

    def leave_world(self, why: str) -> None:
        """Marks an adopted world lost. Agents whose workers have left it already need not register again."""
        left = [m for m in self.registry.present("trainer", 1 << 30) if m.generation != self.generation]
        assert self.session is not None
        early = self._early_exit if self._early_exit and self._early_exit.generation == self.generation else None
        self.mark_world_lost(ended(early) if early else why)
        self.session.hearsay = early is None
        for member in left:
            self.registry.register(member)

    def end_for_change(self, session: Session) -> None:
        """Replaces a world that has ended at a step boundary for a planned change."""
        assert session.move is not None
        session.planned = True
        if not session.move.saves:
            self.changes.hold(session.world.layout)
        self.mark_world_lost(session.move.why)

    def fail(self, fault: Fault) -> Fault:
        """Returns the job's fault: the first one counts."""
        self.fault = self.fault or fault
        return self.fault

    def request_stop(self, request: StopRequest) -> None:
        self.stop = request
        if self.session is not None:
            self.session.request_stop(request.at_step)
        self.notifier.notify(Topic.PLANS)

    @property
    def size(self) -> int:
        """Trainers that the job has now, or shall have."""
        return self.changes.size

    @property
    def sized_job(self) -> JobConfig:
        """The job with the vocabulary of its world, if there is one."""
        vocabulary = self.session.world.vocabulary if self.session else 0
        return replace(self.job, model=replace(self.job.model, vocabulary=vocabulary or self.job.model.vocabulary))

    def request_layout(self, layout: Layout, why: str) -> None:
        """Plans a change to this layout: the world ends at a step boundary, and the next one takes its state from memory.

        The layout holds as long as exactly its devices are there. `why`: for event LayoutChanged.
        """
        self.changes.request(layout, why)
        self.notifier.notify(Topic.ANY)

    def resize(self, trainers: int) -> None:
        """Plans a change to so many trainers: those that are there, and those that will be."""
        self.changes.size = trainers
        self.notifier.notify(Topic.ANY)

    def finish(self, finished: Finished) -> Finished:
        """Ends the job and every long poll."""
        self.log_steps(now=True)
        reasons = {Exit.DONE: "Completed", Exit.STOPPED: "Suspended"}
        reason = reasons.get(Exit(finished.exit_code), "Failed")
        self.record_event(reason, f"{finished.reason}: {finished.message}", warning=reason == "Failed")
        self.finished = finished
        self.notifier.notify()
        return finished

    def record_event(self, reason: str, message: str, warning: bool = False) -> None:
        log.log(logging.WARNING if warning else logging.INFO, "%s: %s", reason, message)
        self.events.add(reason, message, warning)
