"""The facts of one job, and what says so: events, notices, the log of steps."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from coxswain.config import JobConfig
from coxswain.cost.constants import device_memory, load_hardware
from coxswain.errors import Retryable, Stale
from coxswain.layout import Layout
from coxswain.names import EventReason
from coxswain.planlog import StrategyRecord
from coxswain.wire import CheckpointManifest, Fault, Finished, Register, StopRequest, WorkerExit
from coxswain_coordinator.capacity import devices_of
from coxswain_coordinator.index.progress import IndexProgress
from coxswain_coordinator.state.changes import Changes
from coxswain_coordinator.state.checkpoint_events import CheckpointEvents
from coxswain_coordinator.state.event_log import EventLog
from coxswain_coordinator.state.history import History
from coxswain_coordinator.state.imports import Imports
from coxswain_coordinator.state.job_strategy import JobStrategy
from coxswain_coordinator.state.notifier import Notifier, Topic
from coxswain_coordinator.state.registry import MemberRegistry, index_of
from coxswain_coordinator.state.session import Session
from coxswain_coordinator.state.trainers import Exits, Trainers
from coxswain_coordinator.store_executor import StoreExecutor
from coxswain_coordinator.stragglers.guard import Guard
from coxswain_coordinator.stragglers.ladder import Ladder
from coxswain_coordinator.stragglers.standby import StandbyProbing
from coxswain_coordinator.stragglers.watch import StragglerWatch
from coxswain_coordinator.tracking.sinks import sinks_of
from coxswain_coordinator.tracking.tracking import Tracking
from coxswain_link.garbage import Sweeps
from coxswain_link.metrics import MetricsRegistry as Metrics

log = logging.getLogger(__name__)


class JobFacts:
    """What is there from the coordinator's begin to its end. One event loop, so no locks; each change notifies."""

    def __init__(self, job: JobConfig, metrics: Metrics, run_dir: Path | None, clock: Callable[[], float]) -> None:
        self.job, self.metrics, self.clock = job, metrics, clock
        self.instance = secrets.token_hex(8)  # senders repeat unsaved messages to a new one
        self.notifier, self.registry, self.store_executor = Notifier(), MemberRegistry(), StoreExecutor()
        self.events = EventLog(clock)
        self.exits = Exits(metrics)
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
        self.imports = Imports()
        self.index_progress = IndexProgress(job.mix)
        self.manifest: CheckpointManifest | None = None  # the newest checkpoint
        self.data_ended = False  # there, by the plan log
        self.is_over: Callable[[], bool] = lambda: False  # whether that is the job's last
        self.recorded_step = 0  # of the newest checkpoint that the job's status names
        self._checkpoint_events = CheckpointEvents(clock, self.record_event)
        self.session: Session | None = None
        self.is_doubtful = False  # the driver is to look whether another coordinator has replaced this one
        self._begun_alone = (0, -1)  # generation and step that this coordinator has left a rank to begin
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

    @property
    def trainers(self) -> Trainers:
        if self.session is None:
            return Trainers((), self.registry)
        return Trainers(self.session.world.trainers, self.registry)

    @property
    def size(self) -> int:
        """Trainers that the job has now, or shall have."""
        return self.changes.size

    @property
    def sized_job(self) -> JobConfig:
        """The job with the vocabulary of its world, if there is one."""
        vocabulary = self.session.world.vocabulary if self.session else 0
        return replace(self.job, model=replace(self.job.model, vocabulary=vocabulary or self.job.model.vocabulary))

    def _joins(self) -> bool:
        """Whether a trainer has registered that is not in the world: the next one has it."""
        here = self._here()
        others = (m for m in self.registry.present("trainer", self.size) if index_of(m.name) not in here)
        return any(not self.imports.hang(member) for member in others)

    def able(self, count: int, least: int) -> list[Register]:
        """The registered ones of the first `count` trainers: without those whose imports hang, where `least` are left."""
        present = self.registry.present("trainer", count)
        others = [member for member in present if not self.imports.hang(member)]
        return others if len(others) >= least else present

    def _here(self) -> set[int]:
        """Indices of the trainers of the world, also of a lost one."""
        layout = self.session.world.layout if self.session else Layout(())
        return {device.trainer for device in devices_of(layout)}

    def current_session(self, generation: int) -> Session:
        """The session that a message of this generation is for.

        Raises Stale when that world is over, Retryable when there is none yet or another coordinator has made it.
        """
        if self.session is None:
            raise Retryable("there is no world yet; the coordinator has just started")
        self.check_newest(generation)
        if generation != self.generation:
            raise Stale(f"generation {generation} is not the current one ({self.generation})")
        return self.session

    def check_newest(self, generation: int) -> None:
        """Raises Retryable for a member of a newer world, which another coordinator must have made: its call is meant for that
        one. The driver then looks at the fence."""
        if self.session is not None and generation > self.generation:
            self.is_doubtful = True
            self.notifier.notify(Topic.ANY)
            raise Retryable(f"generation {generation} is newer than this coordinator's, which is {self.generation}")

    def let_begin(self, generation: int, step: int) -> None:
        """Records that a rank of a world that this coordinator has not adopted yet was left to begin a step alone."""
        self._begun_alone = max(self._begun_alone, (generation, step))

    def early_exit(self, generation: int) -> WorkerExit | None:
        """The end of a worker of this generation, if one was reported before there was a world."""
        early = self._early_exit
        return early if early is not None and early.generation == generation else None

    def wait_for_claim(self, words: str) -> None:
        self.awaited_claim = words
        self.notifier.notify(Topic.ANY)

    def wait_for_capacity(self, short: str) -> None:
        """Records why the registered trainers do not suffice."""
        if short != self.capacity_shortage:
            self.capacity_shortage = short
            self.notifier.notify(Topic.ANY)

    def take_strategy(self, record: StrategyRecord, mine: bool) -> None:
        """Records the layout of mode Auto. `mine`: this coordinator has chosen it."""
        self.strategy.take(record, mine)
        self.ladder.plan_for(self.strategy.job)

    def request_layout(self, layout: Layout, why: str) -> None:
        """Plans a change to this layout: the world ends at a step boundary, and the next one takes its state from memory.

        The layout holds as long as exactly its devices are there. `why`: for event LayoutChanged.
        """
        self.changes.request(layout, why)
        self.notifier.notify(Topic.ANY)

    def resize(self, trainers: int) -> None:
        """Plans a change to so many trainers: those that are there, and those that will be.

        One that has left before and is to come back registers again: its pod may be gone since.
        """
        for index in set(range(self.changes.size, trainers)) - self._here():
            self.registry.expect("trainer", f"trainer-{index}")
        self.changes.size = trainers
        self.notifier.notify(Topic.WORLD)

    def log_steps(self, now: bool = False) -> None:
        """Logs closed steps once a line is due, or `now`, and measures the trainers with them."""
        if now or self.history.log.due():
            self.history.log.write(self.trainers.place)
            self.trainers.measure(self.history.trainers, self.metrics)

    def _tracker_failed(self, field: str, error: str) -> None:
        """From a tracker's thread: training goes on without it."""
        log.warning("tracking.%s is given up, and training goes on: %s", field, error)

    def fail(self, fault: Fault) -> Fault:
        """Returns the job's fault: the first one counts."""
        self.fault = self.fault or fault
        return self.fault

    def record_event(self, reason: EventReason, message: str, warning: bool = False) -> None:
        log.log(logging.WARNING if warning else logging.INFO, "%s: %s", reason, message)
        self.events.add(reason, message, warning)
