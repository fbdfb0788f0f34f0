"""Builds the steps of one world generation ahead of the workers, until the generation is over."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from coxswain.errors import CoxswainError, Stale, crashed
from coxswain.wire import DeliveredDigests, Heartbeat, StepPlan, World
from coxswain_data.assembly import Need, arrays, needs
from coxswain_data.fetched import Answer, Fetched, Tokens
from coxswain_data.fetcher import Fetcher
from coxswain_data.step_cache import StepCache
from coxswain_link.flight import SliceRequest
from coxswain_link.http_client import Client, JobEnded
from coxswain_link.metrics import MetricsRegistry
from coxswain_link.outbox import Outbox
from coxswain_link.plan_feed import PlanFeed
from coxswain_link.step_buffer import Buffer, Columns, columns_of, pack

log = logging.getLogger(__name__)

_BEHIND = 8  # steps by which a rank may lag behind the step that was built last
_POLL = 2.0  # seconds of one long poll: bounds the delay of a step that a worker requests out of turn

NOTHING = Answer(np.empty(0, np.int32), None)


class Part(NamedTuple):
    """What a rank computes: its replica's tokens, and of these the columns that its stage needs."""

    replica: int
    columns: Columns


def columns_by_replica(parts: Iterable[Part]) -> dict[int, Columns]:
    """The columns that any of these parts of a replica needs."""
    found: dict[int, Columns] = {}
    for replica, columns in sorted(parts):
        before = found.get(replica, Columns(tokens=False, labels=False))
        found[replica] = Columns(before.tokens or columns.tokens, before.labels or columns.labels)
    return found


class Builder:
    """Builds the buffers of this trainer's replicas from plans, and sends their digests."""

    def __init__(
        self,
        world: World,
        trainer: str,
        coordinator: Client,
        fetcher: Fetcher,
        step_cache: StepCache,
        metrics: MetricsRegistry,
        fetched: Fetched,
        poll: float = _POLL,
    ) -> None:
        """`fetched`: what earlier generations have, and this one gets. `poll`: seconds of one wait for a plan."""
        self._fetcher, self._step_cache, self._fetched = fetcher, step_cache, fetched
        self._metrics, self._generation, self._poll = metrics, world.generation, poll
        seats = [s for s in world.seats if world.trainers[s.device.trainer] == trainer]
        self._parts = {s.rank: Part(s.replica, columns_of(world.layout, s)) for s in seats}
        self._columns = columns_by_replica(self._parts.values())
        self.feed = PlanFeed(coordinator, world.generation, world.first_step, trainer=trainer)
        self._outbox = Outbox(coordinator, Heartbeat(world.generation))
        step_cache.open(world.generation, world.first_step, self._parts)

    def run(self) -> None:
        """Runs in a thread. Waiting workers get its errors through the step cache."""
        try:
            while (step := self._step_cache.next_step(self._generation)) is not None:
                plan = self._plan(step)
                if plan is not None:
                    self._build(plan)
        except (Stale, JobEnded) as over:
            log.info("generation %d: %s", self._generation, over)
        except CoxswainError as error:
            log.error("generation %d cannot continue: %s", self._generation, error)
            self._step_cache.fail(self._generation, error)
        except Exception as error:
            log.exception("generation %d cannot continue", self._generation)
            self._step_cache.fail(self._generation, crashed("the constructor", error))
        finally:
            self._fetcher.close()
            self.feed.close()
            self._outbox.close()

    def _plan(self, step: int) -> StepPlan | None:
        """The committed plan of a step; None when it is not there yet."""
        self._outbox.check()
        plan = self.feed.get(step, self._poll)
        if plan is not None and plan.step > step:  # closed before this constructor was started
            self._step_cache.skip_to(self._generation, plan.step)
            return None
        self.feed.forget_before(step - _BEHIND)
        return plan

    def _build(self, plan: StepPlan) -> None:
        with self._metrics["coxswain_constructor_assembly_seconds"].time():
            wanted = needs(plan, self._columns)
            fetched = self._fetch(plan.step, [need.request for need in wanted if need.request is not None])
            answers = [NOTHING if need.request is None else fetched[need.request] for need in wanted]
            buffers = self._buffers(plan, wanted, [answer.tokens for answer in answers])
        self._step_cache.put(self._generation, plan.step, buffers)
        served = ((need.slice.sequence, answer.digest) for need, answer in zip(wanted, answers, strict=True))
        trained = tuple((p, digest) for p, digest in served if digest is not None and plan.trains(p))
        self._outbox.put("/v1/served", plan.step, DeliveredDigests(self._generation, plan.step, trained))

    def _fetch(self, step: int, wanted: Sequence[SliceRequest]) -> Mapping[SliceRequest, Answer]:
        """Only what no generation has fetched of the step yet."""
        had = self._fetched.of(step)
        lacking = [request for request in wanted if request not in had]
        tokens, digests = self._fetcher.fetch(lacking, self._is_current)
        new = {r: Answer(t, digests.get(place)) for place, (r, t) in enumerate(zip(lacking, tokens, strict=True))}
        answers = {request: new[request] if request in new else had[request] for request in wanted}
        self._fetched.keep(step, answers, self._step_cache.oldest)
        return answers

    def _buffers(self, plan: StepPlan, wanted: Sequence[Need], tokens: Sequence[Tokens]) -> dict[Part, Buffer]:
        """One for all ranks that need the same."""
        found: dict[Part, Buffer] = {}
        for replica, columns in self._columns.items():
            mine = [(n, t) for n, t in zip(wanted, tokens, strict=True) if n.slice.replica == replica]
            whole = arrays(plan, [n for n, _ in mine], [t for _, t in mine], columns)
            parts = {part for part in self._parts.values() if part.replica == replica}
            found |= {part: pack(whole.only(part.columns)) for part in parts}
        return found

    def _is_current(self) -> bool:
        return self._step_cache.is_open(self._generation)
