"""One device's process: joins the world of its generation, then steps until the coordinator's ticket says end.

Forked by the agent's mold. It outlives its world: when peers are lost, it goes to the place that the agent orders next.
"""

from __future__ import annotations

import gc
import logging
import signal
import time
from collections.abc import Callable
from contextlib import closing
from typing import NoReturn

import torch

from coxswain import names, wire
from coxswain.errors import CoxswainError, Retryable, Stale
from coxswain.exits import Exit
from coxswain_link.environment import Environment, leave, run_service
from coxswain_link.handover import Handover
from coxswain_link.http import Client, Ended
from coxswain_link.outbox import Outbox
from coxswain_link.plans import PlanFeed
from coxswain_link.store import Store, open_store
from coxswain_train import batch as batches
from coxswain_train import checkpoint
from coxswain_train.engine import Engine, StepResult, Work, check_layout
from coxswain_train.mold import ORDERS
from coxswain_train.orders import Orders, Place
from coxswain_train.step import parts
from coxswain_train.world import Escape, World, join, leave_world, listen

log = logging.getLogger(__name__)

_POLL = 10.0  # seconds of one long poll
_PATIENCE = 600.0  # seconds without data, or without a peer to meet, until this worker gives up
_IMPATIENCE = 0.25  # seconds until work goes on without the coordinator
_MOMENT = 3.0  # seconds for the next world to be ordered after this one broke; an agent tells of a dead peer at once


def main(env: Environment) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # while a collective waits, no handler of Python's runs
    escape = Escape()
    socket, config = names.constructor_socket(env.pod_uid), env.job.checkpoint
    with (
        Client(env.coordinator_url, env.token) as client,
        closing(Handover(socket, env.token)) as handover,
        closing(Orders.detect(ORDERS, escape.abort_world)) as orders,
    ):
        try:
            store = open_store(config.uri, config.endpoint, env.secrets_dir, create=True)

            def work_at(place: Place) -> int:
                with closing(Worker(env, place, client, handover, store)) as worker:
                    return worker.run()

            return live(orders, escape, work_at)
        except Ended as ended:
            return ended.finished.exit_code


def live(orders: Orders, escape: Escape, work: Callable[[Place], int]) -> int:
    """From world to world until one ends the work. What breaks a world that nobody replaces is this worker's own fault."""
    place = orders.follow(None)
    while True:
        assert place is not None
        escape.begin()
        try:
            return work(place)
        except (
            RuntimeError,
            Retryable,
            Stale,
        ) as error:  # RuntimeError: torch's word for a peer that is gone, among others
            log.warning("rank %d of world %d: %s", place.rank, place.generation, _first_line(error))
            after = orders.follow(_MOMENT)
            if after is None:
                raise error if isinstance(error, CoxswainError) else _lost(place, error) from error
            place = after
        leave_world()
        gc.collect()  # the model of the world before, before the next one's


def _lost(place: Place, error: Exception) -> Retryable:
    log.error("rank %d", place.rank, exc_info=error)
    return Retryable(f"rank {place.rank}: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return str(error)[:500].partition("\n")[0]


class Worker:
    """A worker in one world."""

    def __init__(self, env: Environment, place: Place, client: Client, handover: Handover, store: Store) -> None:
        self._env, self._place, self._client, self._handover, self._store = env, place, client, handover, store
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._record = fetch_world(client, place)
        self._saver = checkpoint.Saver(store)
        self._outbox = Outbox(client, wire.Beat(place.generation, place.rank))
        self._feed = PlanFeed(client, place.generation, self._record.first_step)

    def close(self) -> None:
        self._outbox.close()
        self._feed.close()

    def run(self) -> int:
        """Table of contents of a training run."""
        self._engine = self._build()
        self._restore()
        step = self._record.first_step
        while True:
            ticket = self._ticket(step)
            if ticket.checkpoint:
                self._save(step)
            if ticket.end:
                return self._leave(ticket)
            if ticket.plan is None:
                raise Retryable(f"the ticket of step {step} holds neither an end nor a plan")
            self._step(ticket.plan)
            step += 1
            self._feed.forget_before(step)

    def _build(self) -> Engine:
        job, device = self._env.job, self._device
        check_layout(self._record.layout)
        world = meet(self._client, self._outbox, self._place, self._record, self._env.pod_ip, device)
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
        manifest = checkpoint.read_manifest(self._store, key)
        checkpoint.load(self._store, manifest.shards, self._engine.boxes())
        self._engine.zero.publish()
        log.info("rank %d continues at step %d from %s", self._place.rank, self._record.first_step, key)

    def _ticket(self, step: int) -> wire.Ticket:
        while True:
            self._saver.check()
            self._outbox.check()
            ticket = self._ask(step) if self._outbox.reachable else self._alone(step)
            if ticket is not None:
                return ticket

    def _ask(self, step: int) -> wire.Ticket | None:
        query = {"step": step, "wait": _POLL}
        try:
            return self._client.get(
                "/v1/steps", wire.Ticket, generation=self._place.generation, deadline=_IMPATIENCE, **query
            )
        except Retryable as error:
            log.warning("step %d without the coordinator: %s", step, error)
            return self._alone(step)

    def _alone(self, step: int) -> wire.Ticket | None:
        """What any coordinator's ticket would say, if the step's plan is committed. An end only a coordinator can tell."""
        plan, every = self._feed.get(step, _IMPATIENCE), self._env.job.checkpoint.every_steps
        if plan is None or plan.step != step:
            return None
        due = every > 0 and step % every == 0 and step > self._record.first_step
        return wire.Ticket(step=step, checkpoint=due, end="", plan=plan)

    def _step(self, plan: wire.StepPlan) -> None:
        began = time.perf_counter()
        work, delivered = self._receive(plan)
        waited = time.perf_counter() - began
        result = self._engine.step(work, began)
        seconds = time.perf_counter() - began
        report = _report(plan, self._place.rank, result, delivered, seconds, waited)
        self._outbox.put("/v1/reports", plan.step, report)

    def _receive(self, plan: wire.StepPlan) -> tuple[Work, int]:
        """This rank's part of the plan with its tokens, which must be those of the plan; and their digest."""
        rank = self._place.rank
        seat = self._record.seats[rank]
        mine = parts(plan.tasks, seat.replica)
        arrays = self._handover.receive(plan.generation, plan.step, rank, _PATIENCE)
        batches.check(arrays, mine.values(), self._record.vocabulary)
        operations = [
            o for s in plan.operations if (s.replica, s.stage) == (seat.replica, seat.stage) for o in s.operations
        ]
        work = Work(
            step=plan.step,
            parts=mine,
            operations=operations,
            batch=batches.load(arrays, self._device),
            valid=batches.valid_labels(arrays),
            labels=plan.labels,
            plan=int(plan.digest[-12:], 16),
        )
        return work, batches.delivered(arrays)

    def _save(self, step: int) -> None:
        place = self._place

        def report(shards: tuple[wire.Shard, ...], seconds: float) -> None:
            saved = wire.Saved(place.generation, step, place.rank, len(self._record.seats), shards, seconds)
            self._outbox.put("/v1/saved", step, saved)

        self._saver.begin(self._engine.boxes(), report)

    def _leave(self, ticket: wire.Ticket) -> int:
        self._saver.wait()
        self._outbox.flush(_PATIENCE)
        log.info("rank %d leaves before step %d: %s", self._place.rank, ticket.step, ticket.end)
        leave_world()
        return Exit.DONE if ticket.end == "Completed" else Exit.STOPPED


def fetch_world(client: Client, place: Place) -> wire.World:
    """The world that the agent started us for. Raises Stale when there is a newer one."""
    record = client.get("/v1/world", wire.World, after=place.generation - 1, wait=_POLL)
    if record is None or record.generation != place.generation:
        found = "none" if record is None else record.generation
        raise Stale(f"rank {place.rank} was started for generation {place.generation}, the world's is {found}")
    return record


def meet(client: Client, outbox: Outbox, place: Place, record: wire.World, host: str, device: torch.device) -> World:
    """Rank 0 opens the store and says where; everybody joins."""
    ranks = len(record.seats)
    if place.rank == 0:
        store = listen(host, ranks)
        here = wire.Rendezvous(place.generation, host, store.port)
        outbox.put("/v1/rendezvous", record.first_step, here)
    else:
        there = _find_rendezvous(client, place)
        store = join(there.host, there.port, ranks)
    return World(store, place.rank, ranks, device)


def _find_rendezvous(client: Client, place: Place) -> wire.Rendezvous:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        path = f"/v1/rendezvous?generation={place.generation}&wait=5"
        there = client.get(path, wire.Rendezvous, generation=place.generation)
        if there is not None:
            return there
    raise Retryable(f"rank {place.rank}: rank 0 of generation {place.generation} did not open its store")


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
