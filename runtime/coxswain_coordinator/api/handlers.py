"""The coordinator's HTTP calls (coxswain.wire). Handlers record facts in JobState or wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Literal, TypeVar

from aiohttp import web

from coxswain.errors import Stale
from coxswain.wire import (
    GENERATION_HEADER,
    Ack,
    DeliveredDigests,
    Heartbeat,
    Indexed,
    JobReport,
    LoaderAddresses,
    ProbesWanted,
    Register,
    Registered,
    Rendezvous,
    ShardsSaved,
    Shares,
    Size,
    SizeReply,
    SourceBlocks,
    StandbyProbes,
    StepDirective,
    StepPlans,
    StepReport,
    StopRequest,
    WorkerExit,
    World,
)
from coxswain_coordinator.api.report import job_report
from coxswain_coordinator.api.status_page import page
from coxswain_coordinator.planning.parts import EncodedDirective, EncodedPlans
from coxswain_coordinator.state.job_state import JobState
from coxswain_coordinator.state.notifier import Topic
from coxswain_coordinator.state.session import Cut, Session
from coxswain_coordinator.world.resize import resize
from coxswain_link.http_server import HttpService
from coxswain_link.job_ended import JobEnded
from coxswain_link.queries import seconds, text, whole

T = TypeVar("T")


def cut_for(session: Session, rank: int, trainer: str | None) -> Cut | None:
    """Which part of a plan a caller gets: a rank's, or with rank -1 a trainer's; None: the whole, for tools."""
    if rank >= 0:
        return session.cut_of_rank(rank)
    return None if trainer is None else session.cut_of_trainer(trainer)


MAX_WAIT = 30.0
"""Seconds of a long poll, whatever the caller asks for."""

LOOK_SECONDS = 0.25
"""Seconds between two checks of a long poll for a report."""


def wait_of(query: Mapping[str, str]) -> float:
    """Seconds of a caller's long poll."""
    return min(seconds(query, "wait", 0.0), MAX_WAIT)


class Handlers:
    """Handlers.

    Long polls wait on the notifier; once the job has ended they raise JobEnded (410).
    """

    def __init__(self, state: JobState, ack_end: Callable[[str], None]) -> None:
        self._state, self._ack_end = state, ack_end

    def routes(self, service: HttpService) -> None:
        """The table of all calls."""
        get, post = "GET", "POST"
        service.route(post, "/v1/register", self.register, Register)
        service.route(get, "/v1/world", self.world)
        service.route(post, "/v1/beats", self.heartbeat, Heartbeat)
        service.route(post, "/v1/rendezvous", self.publish_rendezvous, Rendezvous)
        service.route(get, "/v1/rendezvous", self.rendezvous)
        service.route(get, "/v1/loaders", self.loaders)
        service.route(get, "/v1/shares", self.shares)
        service.route(post, "/v1/indexed", self.indexed, Indexed)
        service.route(get, "/v1/blocks", self.blocks)
        service.route(get, "/v1/plans", self.plans)
        service.route(get, "/v1/steps", self.step)
        service.route(post, "/v1/served", self.served, DeliveredDigests)
        service.route(post, "/v1/reports", self.report, StepReport)
        service.route(post, "/v1/saved", self.saved, ShardsSaved)
        service.route(post, "/v1/exits", self.exit, WorkerExit)
        service.route(post, "/v1/probes", self.probes, StandbyProbes)
        service.route(post, "/v1/stop", self.stop, StopRequest)
        service.route(post, "/v1/size", self.size, Size)
        service.route(get, "/v1/report", self.job_report)
        service.page("/", self.page)

    # --- joining ----------------------------------------------------------------------------------

    async def register(self, _: web.Request, body: Register) -> Registered:
        self._check_ended(body.instance)
        return self._state.register(body)

    async def world(self, request: web.Request, _: None) -> World | None:
        after = whole(request.query, "after", 0)
        losses, instance = self._state.worlds_lost, request.query.get("instance")

        def changed() -> World | Literal[True] | None:
            session = self._state.session
            over = session is not None and session.lost and instance is not None  # a rank has been seated in it already
            if session and session.record.generation > after and not over:
                return session.world
            unknown = instance is not None and not self._state.registry.knows(instance)
            # True ends the poll early: the caller must register again.
            return True if unknown or self._state.worlds_lost != losses else None

        found = await self._wait(request, changed, Topic.WORLD, instance=instance or "")
        return found if isinstance(found, World) else None

    async def heartbeat(self, _: web.Request, body: Heartbeat) -> Ack:
        self._state.take_heartbeat(body)
        return self._state.ack()

    async def publish_rendezvous(self, _: web.Request, body: Rendezvous) -> Ack:
        self._state.current_session(body.generation).rendezvous = body
        self._state.notifier.notify(Topic.RENDEZVOUS)
        return self._state.ack()

    async def rendezvous(self, request: web.Request, _: None) -> Rendezvous | None:
        generation = whole(request.query, "generation")
        session = self._state.current_session
        return await self._wait(request, lambda: session(generation).rendezvous, Topic.RENDEZVOUS)

    async def loaders(self, _: web.Request, __: None) -> LoaderAddresses:
        self._check_ended()
        return LoaderAddresses(self._state.registry.loader_addresses())

    # --- index ------------------------------------------------------------------------------------

    async def shares(self, request: web.Request, _: None) -> Shares | None:
        name = text(request.query, "loader")
        member = self._state.registry.member("loader", name)

        def mine() -> Shares | None:
            if not self._state.index_progress.shares:
                return None
            return Shares(tuple(s for s in self._state.index_progress.shares if s.loader == name))

        return await self._wait(request, mine, Topic.INDEX, instance=member.instance if member else "")

    async def indexed(self, _: web.Request, body: Indexed) -> None:
        self._state.add_indexed(body)

    async def blocks(self, request: web.Request, _: None) -> SourceBlocks | None:
        source, start, known = (
            text(request.query, "source"),
            whole(request.query, "from", 0),
            request.query.get("known", ""),
        )
        return await self._wait(request, lambda: self._state.index_progress.blocks(source, start, known), Topic.INDEX)

    # --- steps ------------------------------------------------------------------------------------

    async def plans(self, request: web.Request, _: None) -> StepPlans | EncodedPlans | None:
        start, rank = whole(request.query, "from"), whole(request.query, "rank", -1)

        def committed() -> StepPlans | EncodedPlans | None:
            if (session := self._state.session) is None:
                return None
            cut = cut_for(session, rank, request.query.get("trainer"))
            return session.parts_from(start, cut) if cut else session.plans_from(start)

        return await self._wait(request, committed, Topic.PLANS)

    async def step(self, request: web.Request, _: None) -> StepDirective | EncodedDirective | None:
        step, rank = whole(request.query, "step"), whole(request.query, "rank", -1)
        alone = StepDirective(step=step, checkpoint=False, end="", plan=None)

        def directive() -> StepDirective | None:
            session = self._state.session
            found = session.directive(step) if session else None
            return alone if session and found is None and session.catching_up(step) else found

        found = await self._wait(request, directive, Topic.PLANS, early=alone)
        self._state.notifier.notify(Topic.ANY)
        if found is alone:
            self._state.let_begin(whole(request.headers, GENERATION_HEADER, -1), step)
        session = self._state.session
        if session is None or found is None or found is alone:
            return found  # nothing of a plan: the rank may be of a newer, larger world
        cut = cut_for(session, rank, request.query.get("trainer"))
        return session.part_of(found, cut, rank) if cut else found

    async def served(self, _: web.Request, body: DeliveredDigests) -> Ack:
        self._state.add_delivered(body)
        return self._state.ack()

    async def report(self, _: web.Request, body: StepReport) -> Ack:
        self._state.add_report(body)
        return self._state.ack()

    async def saved(self, _: web.Request, body: ShardsSaved) -> Ack:
        self._state.add_saved(body)
        return self._state.ack()

    async def exit(self, _: web.Request, body: WorkerExit) -> None:
        self._state.add_exit(body)

    async def probes(self, _: web.Request, body: StandbyProbes) -> ProbesWanted:
        self._check_ended()
        return self._state.add_probes(body)

    # --- the operator and people ------------------------------------------------------------------

    async def stop(self, _: web.Request, body: StopRequest) -> None:
        self._state.request_stop(body)

    async def size(self, _: web.Request, body: Size) -> SizeReply:
        self._check_ended()
        return await resize(self._state, body.trainers)

    async def job_report(self, request: web.Request, _: None) -> JobReport:
        """With `after` and `wait`: once the report's revision is not `after`, or the time is up."""
        after, clock = request.query.get("after"), asyncio.get_running_loop().time
        report, end = job_report(self._state), clock() + wait_of(request.query)
        while report.revision() == after and (left := end - clock()) > 0:
            await asyncio.sleep(min(LOOK_SECONDS, left))  # every message of every rank notifies
            report = job_report(self._state)
        return report

    async def page(self, _: web.Request) -> web.Response:
        return web.Response(text=page(self._state.job.name, job_report(self._state)), content_type="text/html")

    async def _wait(
        self,
        request: web.Request,
        look: Callable[[], T | None],
        topic: Topic,
        early: T | None = None,
        instance: str = "",
    ) -> T | None:
        """The first value of `look`, which changes with `topic`, within the request's `wait` seconds.

        Checks the generation throughout.

        `early`: the answer to a member of a world that this coordinator has not adopted yet. `instance`: of a service
        that asks what only its own process asks, once at a time.
        """
        theirs = whole(request.headers, GENERATION_HEADER, -1)

        def either() -> T | None:
            self._check_ended(instance)
            if 0 <= theirs < self._state.generation:
                raise Stale(f"generation {theirs} is over; the current one is {self._state.generation}")
            # A newer generation is an earlier coordinator's: this one has no world yet.
            return look() if theirs <= self._state.generation else early

        return await self._state.notifier.wait_until(either, wait_of(request.query), topic)

    def _check_ended(self, instance: str = "") -> None:
        """Raises JobEnded. `instance`: of the service that learns of the end by it."""
        if self._state.finished is not None:
            self._ack_end(instance)
            raise JobEnded(self._state.finished)
