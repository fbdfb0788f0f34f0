"""Worker processes with living state, as tasks: they outlive worlds, as the real ones do. The agent is the real one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from coxswain import wire
from coxswain.copies import wards_of
from coxswain.errors import Retryable, Stale
from coxswain.layout import loss_ranks, token_ranks
from coxswain.live import Held, LiveSource
from coxswain_link.http_client import JobEnded
from tests.unit.crash_worker import FRESH, STEP_SECONDS, State, Worker, part_of

FLUSH_SECONDS = 2.0
EVALUATION_SECONDS = 0.125
APART = 1 / 128  # seconds between two ranks behind a vote: an abort in between leaves them one update apart
Values = Mapping[int, float]  # by place in the whole tensor
Point = Callable[[str], None]
PLACES = 4


class StateNotTaken(Retryable):
    """Ranks do not hold what the source says."""


def part(values: Values, rank: int, ranks: int) -> Values:
    return {place: value for place, value in values.items() if place % ranks == rank}


def after(values: Values, total: int) -> Values:
    """The update. Every token of the step goes into every value."""
    return {i: 0.9 * v + 0.1 * ((total >> 16 * i & 0xFFFF) / 65536) for i, v in values.items()}


def merged(parts: Iterable[Values]) -> dict[int, float]:
    """The whole tensor."""
    values: dict[int, float] = {}
    for place, value in (item for each in parts for item in each.items()):
        assert values.setdefault(place, value) == value, f"holders differ on value {place}"
    assert set(values) == set(range(PLACES))
    return values


@dataclass(frozen=True)
class Agreed:
    """What all ranks know of a step from its vote."""

    loss: float
    norm: float
    delivered: int


@dataclass(frozen=True)
class Cut:
    """What a rank of a generation holds. `pending`: the reduced gradient of step `step`."""

    generation: int
    rank: int
    step: int
    own: Values
    ward: int | None
    copy: Values
    pending: int | None = None
    agreed: Agreed | None = None
    last: Agreed | None = None  # on the step before `step`

    def held(self) -> Held:
        pending = "" if self.pending is None else "Reduced" if self.agreed is None else "Agreed"
        return Held(0, self.generation, self.rank, self.step, pending, () if self.ward is None else (self.ward,))

    def updated(self, agreed: Agreed) -> Cut:
        assert self.pending is not None
        own, copy = after(self.own, self.pending), after(self.copy, self.pending)
        return Cut(self.generation, self.rank, self.step + 1, own, self.ward, copy, last=agreed)


@dataclass
class Live:
    """Of one process. `prepared`: between the vote and its result."""

    current: Cut | None = None
    prepared: Cut | None = None

    def held(self) -> tuple[Held, ...]:
        return tuple(cut.held() for cut in (self.current, self.prepared) if cut is not None)

    def choose(self, generation: int) -> Cut | None:
        return next((c for c in (self.current, self.prepared) if c is not None and c.generation == generation), None)


class LivingWorker(Worker):
    """A process in one world."""

    def __init__(self, live: Live, point: Point, *worker: Any) -> None:
        super().__init__(*worker)
        self._live, self._point = live, point
        self._computing: wire.StepReport | None = None  # a step without a report
        self._helpers = [asyncio.create_task(self._mail.run()), asyncio.create_task(self._feed.run())]
        self._everyone = len(self._world.seats)

    async def train(self) -> int | None:
        """An exit code; None: a planned change follows."""
        if not self._world.live:
            self._live.current = self._live.prepared = None
        self._ring = await self._meet()
        await self._begin()
        step = self._world.first_step
        while True:
            directive = await self._directive(step)
            cut = self._live.current
            if directive.checkpoint:
                own = tuple(cut.own.get(place, 0.0) for place in range(PLACES))
                self._save(State(step, own), directive.end)
            if directive.end == "Moved":
                return None
            if directive.end:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._mail.flush(step), None if directive.end == "Completed" else 10.0)
                return 0 if directive.end == "Completed" else 3
            self._mail.begin(step)
            await self._train_step(directive.plan)
            step += 1

    async def leave(self) -> None:
        """Sends what is unsent, a step that was agreed on with it. The outbox stays until the next world."""
        if self._ring:
            self._ring.leave()
        self._report_agreed()
        with suppress(TimeoutError, Stale, JobEnded):
            await asyncio.wait_for(self._mail.flush(-1), FLUSH_SECONDS)

    def close(self) -> None:
        for helper in self._helpers:
            helper.cancel()
        if self._ring:
            self._ring.leave()

    async def _gather(self, what: str, mine: Any) -> list[Any]:
        self._point(what)
        parts = await self._ring.gather(what, self._seat.rank, mine)
        return [parts[rank] for rank in range(self._everyone)]

    # --- state --------------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        if self._world.live:
            await self._take_over(self._world.live)
            return
        state: State = await self._restore() if self._world.checkpoint else FRESH
        self._weights: Values = dict(enumerate(state.values))
        self._live.current = self._cut(state.step, self._weights)

    def _cut(self, step: int, values: Values, last: Agreed | None = None) -> Cut:
        rank, world = self._seat.rank, self._world
        wards = wards_of(world.seats, world.nodes or ()) if self._job.copies else ()
        ward = wards[rank] if wards else None
        copy = {} if ward is None else part(values, ward, self._everyone)
        return Cut(world.generation, rank, step, part(values, rank, self._everyone), ward, copy, last=last)

    async def _take_over(self, source: LiveSource) -> None:
        live, cut = self._live, self._live.choose(source.generation)
        claims = await self._gather("claims", cut)
        self._check(source, claims)
        live.current, live.prepared = cut, None
        if cut is not None:
            if cut.step < source.step and cut.pending is not None:
                known = {c.agreed for c in claims if c and c.step == source.step - 1 and c.agreed}
                known |= {c.last for c in claims if c and c.step == source.step and c.last}
                assert len(known) == 1, f"statistics of step {source.step - 1}: {known}"
                cut = cut.updated(known.pop())
            live.current = cut = replace(cut, pending=None, agreed=None)
        held = await self._gather("contents", cut)
        values = merged(held[h.rank].copy if h.copy else held[h.rank].own for h in source.holders)
        live.prepared = self._cut(source.step, values, cut.last if cut else None)
        await self._gather("vote", True)
        await asyncio.sleep(APART * self._seat.rank)
        self._point("swap")
        live.current, live.prepared, self._weights = live.prepared, None, values

    def _check(self, source: LiveSource, claims: list[Cut | None]) -> None:
        for holder in source.holders:
            claim = claims[holder.rank]
            owner = None if claim is None else claim.ward if holder.copy else claim.rank
            if claim is None or owner != holder.former:
                raise StateNotTaken(f"rank {holder.rank} does not hold rank {holder.former}'s")
            if not (claim.step == source.step or (claim.step == source.step - 1 and claim.pending is not None)):
                raise StateNotTaken(f"rank {holder.rank} has step {claim.step}, not {source.step}")

    # --- a step -------------------------------------------------------------------------------------------------------

    async def _train_step(self, plan: wire.StepPlan) -> None:
        live, rank = self._live, self._seat.rank
        mine = [
            (plan.sequences[s.sequence], s) for t in plan.tasks for s in t.slices if s.replica == self._seat.replica
        ]
        delivered = sum(part_of(sequence, s.sequence, s.start, s.stop) for sequence, s in mine) % (1 << 64)
        assert live.current is not None
        assert live.current.step == plan.step, f"step {plan.step} on the state of step {live.current.step}"
        parts = await self._gather(f"reduce {plan.step}", delivered)
        total = sum(parts[each] for each in token_ranks(self._world.seats)) % (1 << 64)
        await asyncio.sleep(STEP_SECONDS + APART * rank)
        live.current = replace(live.current, pending=total)
        loss = sum(s.stop - s.start for _, s in mine) / 64
        self._computing = wire.StepReport(
            plan.generation, plan.step, rank, loss, delivered, None, 1e-3, STEP_SECONDS, STEP_SECONDS, 0.0, 0.0
        )
        losses = await self._gather(f"agree {plan.step}", loss)
        agreed = Agreed(sum(losses[each] for each in loss_ranks(self._world.seats)), self._norm(), total)
        live.current = replace(live.current, agreed=agreed)
        await asyncio.sleep(APART * rank)
        live.current = live.current.updated(agreed)
        self._computed(rank, plan.step)
        self._weights = merged(await self._gather(f"spread {plan.step}", live.current.own))
        await self._evaluate(plan)
        self._report_agreed()

    async def _evaluate(self, plan: wire.StepPlan) -> None:
        """The sum depends on all weights behind the step and on the tokens of this rank, and is exact in any order of ranks."""
        if plan.evaluation is None:
            return
        await self._gather(f"evaluate {plan.step}", None)
        await asyncio.sleep(EVALUATION_SECONDS + APART * self._seat.rank)
        mine = [s for t in plan.evaluation.tasks for s in t.slices if s.replica == self._seat.replica]
        weights = round(2**20 * sum(self._weights[place] for place in range(PLACES)))
        loss = float(weights * sum(s.stop - s.start for s in mine))
        assert self._computing is not None
        self._computing = msgspec.structs.replace(
            self._computing, evaluation_loss_sum=loss, evaluation_seconds=EVALUATION_SECONDS
        )

    def _norm(self) -> float:
        """Depends on all values before the step, in their order."""
        return 1.0 + abs(sum(self._weights[place] for place in range(PLACES)))

    def _report_agreed(self) -> None:
        """Reports the step under way, if all ranks have agreed on it."""
        cut, report = self._live.current, self._computing
        if report is None or cut is None:
            return
        agreed = cut.agreed if cut.step == report.step else cut.last if cut.step == report.step + 1 else None
        if agreed is not None:
            totals = wire.Totals(agreed.loss, agreed.delivered)
            self._mail.put(
                "/v1/reports", report.step, msgspec.structs.replace(report, gradient_norm=agreed.norm, totals=totals)
            )
            self._computing = None
