"""The state of one job, as its services report it. Handlers record facts here; `driver` decides."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from coxswain.errors import Stale
from coxswain.exits import Exit
from coxswain.names import EventReason
from coxswain.wire import Fault, Finished, Register, Registered, StopRequest, WorkerExit
from coxswain_coordinator.state.job_steps import JobSteps
from coxswain_coordinator.state.notifier import Topic
from coxswain_coordinator.state.registry import Arrival, index_of
from coxswain_coordinator.state.session import Hearsay, Session
from coxswain_coordinator.state.trainers import forget
from coxswain_coordinator.steps import seconds_beside_tasks

log = logging.getLogger(__name__)

MAX_FAILURES = 5
"""Worlds that may fail one after another without a new step, before the coordinator gives up."""


def ended(exit_: WorkerExit) -> str:
    """What the end of a worker says of its world's."""
    why = exit_.fault.message if exit_.fault else f"exit code {exit_.exit_code}"
    return f"rank {exit_.rank} on {exit_.trainer} ended: {why}"


def left_with_fault(member: Register) -> str:
    """What an error of a worker's own says of its world's end."""
    return f"a worker of {member.name} has left by an error of its own: {member.fault}"


class JobState(JobSteps):
    """Everything the coordinator knows: its members, worlds and their ends."""

    # --- joining ----------------------------------------------------------------------------------

    def register(self, member: Register) -> Registered:
        """Raises Stale for a pod of another attempt, which has read another configuration, and for one that was replaced."""
        if member.config and self.config and member.config != self.config:
            raise Stale(f"pod {member.pod} has read ConfigMap {member.config}, and this attempt has {self.config}")
        if successor := self.registry.successor(member):
            raise Stale(f"pod {member.pod} was replaced by {successor}, which has registered")
        self.check_newest(max(member.generation, member.left or 0))
        arrival = self.registry.register(member)
        self.imports.record(member)
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
        if arrival == "replaced" and session is not None and session.works(member.name):
            self.mark_world_lost(f"{member.name} was replaced by pod {member.pod}")
            self.registry.register(member)  # this one need not register again
        if session is not None and member.left == self.generation:
            self._hear_of_leaving(member)
        if session is None or not self._is_to_leave(session, member):
            self.leaving.discard(member.name)
            return Registered(self.generation)
        self.leaving.add(member.name)
        self.registry.expect("trainer", member.name)
        return Registered(self.generation, lost=member.generation, stacks=session.hung)

    def _is_to_leave(self, session: Session, member: Register) -> bool:
        """Whether workers of this agent may be in a world that is over. One that was on standby in it has none."""
        if member.generation == self.generation:
            return bool(session.lost) and session.works(member.name)
        return member.generation > 0

    def _hear_of_leaving(self, member: Register) -> None:
        """Records why a worker of this agent has left the current world, or has ended in it, where no order explains it."""
        assert self.session is not None
        if member.fault:
            self.fail_world(left_with_fault(member), Hearsay.OWN_FAULT)
        elif member.broken:
            self.fail_world(f"a worker of {member.name} has lost its peers: {member.broken}", Hearsay.LOST_PEER)
        elif self._goes_on() and self._moves(member):
            self.mark_world_lost(f"{member.name} has left for a change that the coordinator before had begun")
            self.session.hearsay = Hearsay.LOST_PEER
        elif self._goes_on():
            self.fail_world(f"a worker of {member.name} has ended", Hearsay.LOST_PEER)
        self.registry.register(member)  # this one need not register again

    def _goes_on(self) -> bool:
        """Whether no worker has a reason to leave the current world. The report of an exit may have gone to a coordinator that is
        gone, or have come before its agent was known."""
        session = self.session
        if session is None or session.lost or session.ending is not None:
            return False
        return session.move is None or not session.move.decided

    def _moves(self, member: Register) -> bool:
        """Whether its workers have left an adopted world with their state and no reason: only a directive explains that."""
        adopted = self.session is not None and self.session.adopted
        return adopted and any(held.generation == self.generation for held in member.held or ())

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
        if self._begun_alone[0] == record.generation:
            session.begin(min(self._begun_alone[1], session.end_step - 1))
        if self.stop is not None:
            session.request_stop(before.stop_at if before and before.stop_at is not None else self.stop.at_step)
        where = f"generation {record.generation} from step {record.first_step}"
        summary = f"{where}: {len(session.world.seats)} ranks, {record.layout.summary()}"
        if before is not None and before.planned:
            self.record_event("LayoutChanged", f"{before.lost}; {summary}")
        elif before is not None and before.hearsay is Hearsay.LOST_PEER and alive:
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
        self.history.begin_at(session.book.open, before is not None and before.record.layout != record.layout)
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

        A user's fault ends the job in any generation that is not newer; another failure costs the world.
        """
        self.check_newest(exit_.generation)
        self.exits.count(exit_)
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

    def fail_world(self, why: str, hearsay: Hearsay = Hearsay.EXIT) -> None:
        """Marks the current world lost by a failure. `MAX_FAILURES` worlds in a row without a new step end this coordinator;
        `spare_lost_pods` excepts some.

        A cause may be reported after what follows from it: it is the reason then.
        """
        session = self.session
        if session is None or session.saved_end:
            return
        if session.lost:
            if hearsay < session.hearsay:
                session.lost, session.hearsay = why, hearsay
        else:
            self.mark_world_lost(why)
            session.hearsay = hearsay
            self.failures, session.failed = self.failures + 1, True
        if not session.hearsay:
            self.judge_failures()

    def spare_lost_pods(self, present: Iterable[Register]) -> None:
        """Takes a failed world out of the count where a working pod of it is gone: the operator judges that pod by its rules."""
        session, pods = self.session, {index_of(member.name): member.pod for member in present}
        if session is None or not session.failed:
            return
        known = session.record.trainers
        if any(pods.get(seat.device.trainer) != known[seat.device.trainer] for seat in session.world.seats):
            self.failures, session.failed = max(0, self.failures - 1), False

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
        early = self.early_exit(self.generation)
        self.mark_world_lost(ended(early) if early else why)
        self.session.hearsay = Hearsay.EXIT if early else Hearsay.LOST_PEER
        for member in left:
            self.registry.register(member)
            if member.fault and member.left == self.generation and self.session.hearsay > Hearsay.OWN_FAULT:
                self.session.lost, self.session.hearsay = left_with_fault(member), Hearsay.OWN_FAULT

    def end_for_change(self, session: Session) -> None:
        """Replaces a world that has ended at a step boundary for a planned change."""
        assert session.move is not None
        session.planned = True
        if not session.move.saves:
            self.changes.hold(session.world.layout)
        self.mark_world_lost(session.move.why)

    def request_stop(self, request: StopRequest) -> None:
        self.stop, self.is_doubtful = request, True  # ranks of another coordinator's world must not follow it
        if self.session is not None:
            self.session.request_stop(request.at_step)
        self.notifier.notify(Topic.PLANS)

    def finish(self, finished: Finished) -> Finished:
        """Ends the job and every long poll."""
        self.log_steps(now=True)
        reasons: dict[Exit, EventReason] = {Exit.DONE: "Completed", Exit.STOPPED: "Suspended"}
        reason = reasons.get(Exit(finished.exit_code), "Failed")
        self.record_event(reason, f"{finished.reason}: {finished.message}", warning=reason == "Failed")
        self.finished = finished
        self.notifier.notify()
        return finished
