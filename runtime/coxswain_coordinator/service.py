"""The coordinator's calls (coxswain.wire) over HTTP: each handler records a fact in `Run`, or waits for something in it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Literal, TypeVar

from aiohttp import web

from coxswain.errors import Stale
from coxswain.wire import (
    GENERATION_HEADER,
    Beat,
    Indexed,
    JobReport,
    LoaderAddresses,
    Received,
    Register,
    Registered,
    Rendezvous,
    Saved,
    Served,
    Shares,
    SourceBlocks,
    StepPlans,
    StepReport,
    StopRequest,
    Ticket,
    WorkerExit,
    World,
)
from coxswain_coordinator.page import page
from coxswain_coordinator.report import job_report
from coxswain_coordinator.run import Run
from coxswain_link.ended import Ended
from coxswain_link.serve import Service

T = TypeVar("T")

LONGEST_WAIT = 30.0
"""Seconds of a long poll, whatever the caller asks for."""

LOOK_SECONDS = 0.25
"""Between two looks of a long poll for a report."""


class Calls:
    """Handlers. Long polls wait on the run's bell; once the job has ended they raise Ended (410)."""

    def __init__(self, run: Run, goodbye: Callable[[], None]) -> None:
        self._run, self._goodbye = run, goodbye

    def routes(self, service: Service) -> None:
        """The table of all calls."""
        get, post = "GET", "POST"
        service.route(post, "/v1/register", self.register, Register)
        service.route(get, "/v1/world", self.world)
        service.route(post, "/v1/beats", self.beat, Beat)
        service.route(post, "/v1/rendezvous", self.meet, Rendezvous)
        service.route(get, "/v1/rendezvous", self.rendezvous)
        service.route(get, "/v1/loaders", self.loaders)
        service.route(get, "/v1/shares", self.shares)
        service.route(post, "/v1/indexed", self.indexed, Indexed)
        service.route(get, "/v1/blocks", self.blocks)
        service.route(get, "/v1/plans", self.plans)
        service.route(get, "/v1/steps", self.step)
        service.route(post, "/v1/served", self.served, Served)
        service.route(post, "/v1/reports", self.report, StepReport)
        service.route(post, "/v1/saved", self.saved, Saved)
        service.route(post, "/v1/exits", self.exit, WorkerExit)
        service.route(post, "/v1/stop", self.stop, StopRequest)
        service.route(get, "/v1/report", self.job_report)
        service.page("/", self.page)

    # --- joining ------------------------------------------------------------------------------------------------------

    async def register(self, _: web.Request, body: Register) -> Registered:
        self._check_ended()
        return self._run.register(body)

    async def world(self, request: web.Request, _: None) -> World | None:
        after = int(request.query.get("after", "0"))
        losses, instance = self._run.losses, request.query.get("instance")

        def news() -> World | Literal[True] | None:
            session = self._run.session
            if session and session.record.generation > after:
                return session.world
            unknown = instance is not None and not self._run.registry.knows(instance)
            return (
                True if unknown or self._run.losses != losses else None
            )  # cut short: the caller is to register (again)

        found = await self._wait(request, news)
        return found if isinstance(found, World) else None

    async def beat(self, _: web.Request, body: Beat) -> Received:
        self._run.hear(body.generation, body.rank)
        return self._run.received()

    async def meet(self, _: web.Request, body: Rendezvous) -> Received:
        self._run.live(body.generation).rendezvous = body
        self._run.bell.ring()
        return self._run.received()

    async def rendezvous(self, request: web.Request, _: None) -> Rendezvous | None:
        generation = int(request.query["generation"])
        return await self._wait(request, lambda: self._run.live(generation).rendezvous)

    async def loaders(self, _: web.Request, __: None) -> LoaderAddresses:
        self._check_ended()
        return LoaderAddresses(self._run.registry.loader_addresses())

    # --- index --------------------------------------------------------------------------------------------------------

    async def shares(self, request: web.Request, _: None) -> Shares | None:
        name = request.query["loader"]

        def mine() -> Shares | None:
            if not self._run.catalog.shares:
                return None
            return Shares(tuple(s for s in self._run.catalog.shares if s.loader == name))

        return await self._wait(request, mine)

    async def indexed(self, _: web.Request, body: Indexed) -> None:
        self._run.add_indexed(body)

    async def blocks(self, request: web.Request, _: None) -> SourceBlocks | None:
        return await self._wait(request, lambda: self._run.catalog.blocks(request.query["source"]))

    # --- steps --------------------------------------------------------------------------------------------------------

    async def plans(self, request: web.Request, _: None) -> StepPlans | None:
        start = int(request.query["from"])

        def committed() -> StepPlans | None:
            return self._run.session.plans_from(start) if self._run.session else None

        return await self._wait(request, committed)

    async def step(self, request: web.Request, _: None) -> Ticket | None:
        step = int(request.query["step"])
        alone = Ticket(step=step, checkpoint=False, end="", plan=None)

        def ticket() -> Ticket | None:
            session = self._run.session
            found = session.ticket(step) if session else None
            return alone if session and found is None and session.catching_up(step) else found

        found = await self._wait(request, ticket, early=alone)
        self._run.bell.ring()
        return found

    async def served(self, _: web.Request, body: Served) -> Received:
        self._run.add_served(body)
        return self._run.received()

    async def report(self, _: web.Request, body: StepReport) -> Received:
        self._run.add_report(body)
        return self._run.received()

    async def saved(self, _: web.Request, body: Saved) -> Received:
        self._run.add_saved(body)
        return self._run.received()

    async def exit(self, _: web.Request, body: WorkerExit) -> None:
        self._run.add_exit(body)

    # --- the operator and people --------------------------------------------------------------------------------------

    async def stop(self, _: web.Request, body: StopRequest) -> None:
        self._run.request_stop(body)

    async def job_report(self, request: web.Request, _: None) -> JobReport:
        """With `after`, the mark of a report, and `wait`: once the mark is another one, or the time is up."""
        seconds = min(float(request.query.get("wait", "0")), LONGEST_WAIT)
        after, end = request.query.get("after"), time.monotonic() + seconds
        report = job_report(self._run)
        while report.mark() == after and (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(LOOK_SECONDS, left))  # the bell rings with every message of every rank
            report = job_report(self._run)
        return report

    async def page(self, _: web.Request) -> web.Response:
        return web.Response(text=page(self._run.job.name, job_report(self._run)), content_type="text/html")

    async def _wait(self, request: web.Request, look: Callable[[], T | None], early: T | None = None) -> T | None:
        """The first value of `look`, within the request's `wait` seconds. The request's generation is looked at throughout.

        `early`: for whoever lives in a world that this coordinator has not taken up yet.
        """
        seconds = min(float(request.query.get("wait", "0")), LONGEST_WAIT)
        theirs = int(request.headers.get(GENERATION_HEADER, "-1"))

        def either() -> T | None:
            self._check_ended()
            if 0 <= theirs < self._run.generation:
                raise Stale(f"generation {theirs} is over; the current one is {self._run.generation}")
            # A newer one is of a coordinator before this one, which has no world yet.
            return look() if theirs <= self._run.generation else early

        return await self._run.bell.until(either, seconds)

    def _check_ended(self) -> None:
        if self._run.finished is not None:
            self._goodbye()
            raise Ended(self._run.finished)
