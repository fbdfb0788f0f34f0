"""One device's process: joins the world of its generation, then steps until the coordinator's ticket says end.

Forked by the agent's mold. It outlives its world: when peers are lost, it goes to the place that the agent orders next.
"""

from __future__ import annotations

import logging
import signal
import time
from contextlib import closing
from typing import NoReturn

import torch

from coxswain import names, wire
from coxswain.errors import Retryable
from coxswain.exits import Exit
from coxswain_link.environment import Environment, leave, run_service
from coxswain_link.handover import Handover
from coxswain_link.http_client import Client, JobEnded
from coxswain_link.outbox import Outbox
from coxswain_link.plan_feed import PlanFeed
from coxswain_link.store import Store, open_store
from coxswain_train.checkpoint import save_load
from coxswain_train.engine.engine import Engine, StepResult, check_layout
from coxswain_train.parallel.process_groups import WorldAborter, leave_world
from coxswain_train.worker.assignments import ENV_CHANNEL, Assignment, AssignmentChannel
from coxswain_train.worker.directives import REACH_DEADLINE, DirectiveClient
from coxswain_train.worker.prefetch import PATIENCE, BatchPrefetcher
from coxswain_train.worker.rendezvous import fetch_world, rendezvous
from coxswain_train.worker.worlds import run_worlds

log = logging.getLogger(__name__)

_PARTING = 10.0  # seconds to stay until a suspension is saved


def main(env: Environment) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # while a collective waits, no handler of Python's runs
    escape = WorldAborter()
    socket, config = names.constructor_socket(env.pod_uid), env.job.checkpoint
    with (
        Client(env.coordinator_url, env.token) as client,
        closing(Handover(socket, env.token)) as handover,
        closing(AssignmentChannel.detect(ENV_CHANNEL, escape.abort_world)) as orders,
    ):
        try:
            store = open_store(config.uri, config.endpoint, env.secrets_dir, create=True, known=True)

            def work_at(place: Assignment) -> int:
                with closing(Worker(env, place, client, handover, store)) as worker:
                    return worker.run()

            return run_worlds(orders, escape, work_at)
        except JobEnded as ended:
            return ended.finished.exit_code


class Worker:
    """A worker in one world."""

    def __init__(self, env: Environment, place: Assignment, client: Client, handover: Handover, store: Store) -> None:
        self._env, self._place, self._client, self._store = env, place, client, store
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._record = fetch_world(client, place)
        self._saver = save_load.Saver(store)
        self._outbox = Outbox(client, wire.Heartbeat(place.generation, place.rank))
        self._feed = PlanFeed(client, place.generation, self._record.first_step)
        seat = self._record.seats[place.rank]
        self._receiver = BatchPrefetcher(handover, seat, self._record.vocabulary, self._device)
        every = env.job.checkpoint.every_steps
        self._asking = Client(env.coordinator_url, env.token, REACH_DEADLINE, retry=False)
        self._directives = DirectiveClient(
            self._asking, self._outbox, self._feed, place.generation, every, self._record.first_step
        )

    def close(self) -> None:
        self._receiver.close()
        self._outbox.close()
        self._feed.close()
        self._asking.close()

    def run(self) -> int:
        """Table of contents of a training run."""
        self._engine = self._build()
        self._restore()
        step = self._record.first_step
        while True:
            directive = self._directive(step)
            if directive.checkpoint:
                self._save(directive)
            if directive.end:
                return self._leave(directive)
            if directive.plan is None:
                raise Retryable(f"the ticket of step {step} holds neither an end nor a plan")
            self._step(directive.plan)
            step += 1
            self._feed.forget_before(step)

    def _build(self) -> Engine:
        job, device = self._env.job, self._device
        check_layout(self._record.layout)
        world = rendezvous(self._client, self._outbox, self._place, self._record, self._env.pod_ip, device)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        vocabulary = self._record.vocabulary
        return Engine(job.model, vocabulary, job.optimizer, job.total_steps, world, device, dtype)

    def _restore(self) -> None:
        """From the world's checkpoint, or afresh from the seed."""
        key = self._record.checkpoint
        if not key:
            job = self._env.job
            self._engine.initialise(job.seed, self._env.secrets_dir, job.checkpoint.endpoint)
            return
        manifest = save_load.read_manifest(self._store, key)
        save_load.load(self._store, manifest.shards, self._engine.boxes())
        self._engine.optimizer.all_gather()
        log.info("rank %d continues at step %d from %s", self._place.rank, self._record.first_step, key)

    def _directive(self, step: int) -> wire.StepDirective:
        while True:
            self._saver.check()
            self._outbox.check()
            if (directive := self._directives.next(step)) is not None:
                return directive

    def _step(self, plan: wire.StepPlan) -> None:
        began = time.perf_counter()
        received = self._receiver.take(plan)
        waited = time.perf_counter() - began
        if (following := self._feed.peek(plan.step + 1)) is not None:
            self._receiver.begin(following)
        result = self._engine.step(received.work, began)
        seconds = time.perf_counter() - began
        report = _report(plan, self._place.rank, result, received.delivered, seconds, waited)
        self._outbox.put("/v1/reports", plan.step, report)

    def _save(self, directive: wire.StepDirective) -> None:
        place, step = self._place, directive.step

        def report(shards: tuple[wire.Shard, ...], seconds: float) -> None:
            ranks = len(self._record.seats)
            saved = wire.ShardsSaved(place.generation, step, place.rank, ranks, shards, seconds, directive.end)
            self._outbox.put("/v1/saved", step, saved)

        self._saver.begin(self._engine.boxes(), report)

    def _leave(self, directive: wire.StepDirective) -> int:
        """Not before all is saved: whoever leads by then needs those who can tell.

        Where the data or the steps end all ranks agree. On a stop they may not, if the coordinator died of all moments then:
        a peer that went on alone waits for this one to leave.
        """
        self._saver.wait()
        self._outbox.flush(PATIENCE)
        try:
            self._outbox.flush(PATIENCE if directive.end == "Completed" else _PARTING, saved=directive.step)
        except Retryable:
            if directive.end == "Completed":
                raise
        log.info("rank %d leaves before step %d: %s", self._place.rank, directive.step, directive.end)
        leave_world()
        return Exit.DONE if directive.end == "Completed" else Exit.STOPPED


def _report(
    plan: wire.StepPlan, rank: int, result: StepResult, delivered: int, seconds: float, waited: float
) -> wire.StepReport:
    return wire.StepReport(
        generation=plan.generation,
        step=plan.step,
        rank=rank,
        loss_sum=result.loss_sum,
        delivered=delivered,
        gradient_norm=result.gradient_norm,
        learning_rate=result.learning_rate,
        seconds=seconds,
        compute_seconds=result.compute_seconds,
        data_wait_seconds=waited,
        reduce_seconds=result.reduce_seconds,
        timings=result.timings,
        ended=time.time(),
    )


def work() -> NoReturn:
    """The life of a fork of the mold."""
    torch.set_num_threads(1)
    leave(run_service(main))
