"""The process of one device: joins the world of its generation, then steps until a directive ends the job.

The agent's fork server forks it. It outlives its world: when peers are lost, it waits for its next assignment.
"""

from __future__ import annotations

import functools
import logging
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from typing import NoReturn

import torch
from msgspec import UNSET

from coxswain import names, wire
from coxswain.copies import wards_of
from coxswain.errors import CoxswainError, Refused, Retryable
from coxswain.exits import Exit
from coxswain.stragglers.surprise import StepLengths
from coxswain_link import garbage
from coxswain_link.environment import Environment, leave, run_service
from coxswain_link.handover import Handover
from coxswain_link.hardware import hardware_of
from coxswain_link.http_client import Client, JobEnded
from coxswain_link.outbox import Outbox
from coxswain_link.plan_feed import PlanFeed
from coxswain_link.step_buffer import columns_of
from coxswain_link.store import Store, open_store
from coxswain_train.checkpoint import save_load
from coxswain_train.checkpoint.snapshots import snapshots_of
from coxswain_train.engine.engine import Engine
from coxswain_train.engine.memory import memory_policy
from coxswain_train.live.state import LiveState
from coxswain_train.parallel.process_groups import WorldAborter, leave_world
from coxswain_train.worker.assignments import ENV_CHANNEL, Assignment, AssignmentChannel
from coxswain_train.worker.directives import REACH_DEADLINE, DirectiveClient, saved_step
from coxswain_train.worker.prefetch import BatchPrefetcher
from coxswain_train.worker.rendezvous import fetch_world, rendezvous
from coxswain_train.worker.reports import agreed_report, step_report
from coxswain_train.worker.saves import Saves
from coxswain_train.worker.takeover import take_over
from coxswain_train.worker.world_check import WorldCheck
from coxswain_train.worker.worlds import run_worlds

log = logging.getLogger(__name__)

_FLUSH_SECONDS = 2.0  # to send what is unsent of a world that is left


def work() -> NoReturn:
    """What the fork server runs in each fork."""
    torch.set_num_threads(1)
    leave(run_service(main))


def main(env: Environment) -> int:
    """Serves one seat in successive worlds; returns the exit code."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # while a collective waits, Python runs no handler
    aborter, live = WorldAborter(), LiveState()  # both outlive worlds
    socket, config = names.constructor_socket(env.pod_uid), env.job.checkpoint
    with (
        Client(env.coordinator_url, env.token) as client,
        closing(Handover(socket, env.token, aborter.is_aborted)) as handover,
        closing(AssignmentChannel.detect(ENV_CHANNEL, aborter.abort_world, lambda: live.all_held(0))) as assignments,
        ExitStack() as outboxes,
    ):
        try:
            store = open_store(config.uri, config.endpoint, env.secrets_dir, create=True, known=True)

            def train(assignment: Assignment) -> int | None:
                outboxes.close()  # of the world before: until now a new coordinator might have needed its messages
                with ExitStack() as world:
                    worker = Worker(env, assignment, client, handover, store, aborter.is_aborted, live)
                    outboxes.callback(worker.outbox.close)
                    world.callback(worker.close)
                    world.callback(assignments.step_out)
                    world.enter_context(aborter.aborting_at_errors())
                    return worker.run()

            return run_worlds(assignments, aborter, train)
        except JobEnded as ended:
            return ended.finished.exit_code


@functools.cache  # once a process
def warn_untested(device: str) -> None:
    if device == "cuda":
        log.warning("training on CUDA is untested in this release: compare its losses with those of another trainer")


def device_of(hardware: str) -> torch.device:
    """Where a job of this hardware computes. Refuses a GPU's where torch finds none: a CPU would be slow and say nothing."""
    if hardware == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise Refused(
            "NoDevice",
            f"parallelism.hardware: {hardware}, and torch finds no CUDA device here; train where its driver works, "
            "or set hardware: cpu",
        )
    return torch.device("cuda")


class Worker:
    """A worker in one world."""

    def __init__(
        self, env: Environment, assignment: Assignment, client: Client, handover: Handover, store: Store,
        is_aborted: Callable[[], bool], live: LiveState,
    ) -> None:  # fmt: skip
        self._check_world, self._live = WorldCheck(assignment.generation, is_aborted), live
        self._env, self._assignment, self._store = env, assignment, store
        self._device = device_of(env.job.parallelism.hardware)
        self._world = world = fetch_world(client, assignment)
        self._computing: tuple[wire.StepPlan, int] | None = None  # a step without a report, and its part of the digest
        self._saver = save_load.Saver(store, snapshots_of(self._device))
        self._outbox = Outbox(client, wire.Heartbeat(assignment.generation, assignment.rank, begun=-1))
        self._saves = Saves(self._saver, self._outbox, self._check_world, assignment.rank, len(world.seats))
        self._feed = PlanFeed(client, assignment.generation, world.first_step, rank=assignment.rank)
        seat = world.seats[assignment.rank]
        columns = columns_of(world.layout, seat)
        self._lengths = StepLengths()
        self._prefetcher = BatchPrefetcher(handover, seat, world.vocabulary, self._device, columns)
        self._once = Client(env.coordinator_url, env.token, REACH_DEADLINE, retry=False)
        self._directives = DirectiveClient(
            self._once, self._outbox, self._feed, self._check_world, env.job.checkpoint.every_steps,
            saved_step(world), assignment.rank,
        )  # fmt: skip

    def close(self) -> None:
        """Ends all but the outbox."""
        garbage.collect_at_any_time()
        self._saver.settle()  # the next world fills the state that a snapshot may still be taken of
        self._prefetcher.close()
        self._feed.close()
        self._once.close()
        self._report_agreed()
        with suppress(CoxswainError):
            self._outbox.flush(_FLUSH_SECONDS)

    @property
    def outbox(self) -> Outbox:
        """Outlives the worker."""
        return self._outbox

    def run(self) -> int | None:
        """Table of contents of a training run. None: a planned change follows."""
        self._engine = self._build()
        self._outbox.advance()
        self._restore()
        self._outbox.advance()
        step = self._world.first_step
        garbage.collect_between_steps_alone()
        while True:
            directive = self._directive(step)
            if directive.checkpoint:
                self._saves.begin(directive, self._engine.boxes)
            if directive.end == "Moved":
                self._saves.wait()
                return None
            if directive.end:
                return self._leave(directive)
            if directive.plan is None:
                raise Retryable(f"the directive of step {step} holds neither an end nor a plan")
            self._step(directive.plan, directive.probe is True)
            step += 1
            self._feed.forget_before(step)

    def _build(self) -> Engine:
        job, device = self._env.job, self._device
        if not self._world.live:
            self._live.forget()  # frees the weights of the world before; its state gives room
        if self._assignment.rank == 0:
            warn_untested(device.type)
        groups = rendezvous(
            self._once, self._outbox, self._assignment, self._world, self._env.pod_ip, device, self._check_world
        )
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        seat = self._world.seats[self._assignment.rank]
        hardware = functools.partial(hardware_of, job, self._env.secrets_dir)
        wards = wards_of(self._world.seats, self._world.nodes or ()) if job.copies else ()
        memory = memory_policy(job.model, job.parallelism, self._world.vocabulary, device, hardware)
        begins = not (self._world.live or self._world.checkpoint)
        engine = Engine(
            job.model, self._world.vocabulary, job.optimizer, job.total_steps, self._world.layout, seat, groups, device,
            dtype, self._live, memory, self._assignment.generation, wards, self._world.ids,
            job.batch.max_sequence_tokens if begins else 0,
        )  # fmt: skip
        engine.before_update, engine.seed = self._saver.settle, job.seed
        return engine

    def _restore(self) -> None:
        """Takes the state from ranks that hold it, or fills it from the world's checkpoint, or initialises it from the seed."""
        key = self._world.checkpoint
        if self._world.live:
            nodes = self._world.nodes or ()
            take_over(self._engine, self._live, self._world.live, nodes, self._assignment.rank)
            return
        if not key:
            job = self._env.job
            self._engine.initialise(job.seed, self._env.secrets_dir, job.checkpoint.endpoint)
            return
        manifest = save_load.read_manifest(self._store, key)
        save_load.load(self._store, manifest.shards, self._engine.make_room(), self._outbox.advance)
        self._engine.begin(self._world.first_step)
        log.info("rank %d resumes at step %d from %s", self._assignment.rank, self._world.first_step, key)

    def _directive(self, step: int) -> wire.StepDirective:
        while True:
            self._saver.check()
            self._outbox.check()
            if (directive := self._directives.next(step)) is not None:
                return directive

    def _step(self, plan: wire.StepPlan, probes: bool) -> None:
        self._outbox.begin(plan.step)
        probed = [self._engine.probe()] if probes else []
        began = time.perf_counter()
        fetched = self._prefetcher.take(plan)
        waited = time.perf_counter() - began
        if (following := self._feed.peek(plan.step + 1)) is not None:
            self._prefetcher.begin(following)
        self._computing = plan, fetched.delivered
        result = self._engine.step(fetched.work, began)
        seconds = time.perf_counter() - began - result.evaluation_seconds
        surprising = self._lengths.surprises(seconds - waited, plan.makespan_seconds) and self._device.type != "cpu"
        if probes or surprising:  # what slows down one of two probes for a moment is no device's
            probed.append(self._engine.probe())
        report = step_report(
            plan, self._assignment.rank, result, fetched.delivered, seconds, waited, min(probed, default=UNSET)
        )
        self._computing = None
        self._outbox.put("/v1/reports", plan.step, report)
        garbage.between_steps(plan.step)

    def _report_agreed(self) -> None:
        if self._computing is None:
            return
        plan, delivered = self._computing
        if (report := agreed_report(self._env.job, plan, self._assignment.rank, delivered, self._live)) is not None:
            self._outbox.put("/v1/reports", plan.step, report)

    def _leave(self, directive: wire.StepDirective) -> int:
        self._saves.wait_at_end(directive)
        log.info("rank %d leaves before step %d: %s", self._assignment.rank, directive.step, directive.end)
        leave_world()
        return Exit.DONE if directive.end == "Completed" else Exit.STOPPED
