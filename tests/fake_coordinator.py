"""The one scripted coordinator of all tests: the real one's calls over HTTP, the test's answers, and what was asked."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from coxswain.errors import CoxswainError, Refused, Retryable, Stale
from coxswain.wire import (
    GENERATION_HEADER,
    TOKEN_HEADER,
    Ack,
    Finished,
    JobReport,
    Registered,
    SizeReply,
    StopRequest,
    World,
)
from coxswain_coordinator.api.handlers import Handlers
from coxswain_link.http_server import refuse, reply
from coxswain_link.job_ended import JobEnded
from coxswain_link.listening import close, listen

Answer = Callable[[dict[str, str], Any], Any]
"""(query, body) -> what the call returns. None: nothing yet, so a long poll goes on."""

_POLL = 0.01  # seconds between two looks for an answer


class Calls:
    """The real coordinator's table of calls: body type by method and path."""

    def __init__(self) -> None:
        self.bodies: dict[tuple[str, str], type | None] = {}
        state: Any = None
        Handlers(state, lambda: None).routes(self)  # type: ignore[arg-type]

    def route(self, method: str, path: str, _: Any, body_type: type | None = None) -> None:
        self.bodies[method, path] = body_type

    def page(self, *_: Any) -> None:
        """Pages are for people."""


CALLS = Calls().bodies
_KNOWS_THE_END = {path for method, path in CALLS if method == "GET"} - {"/v1/report"} | {"/v1/register"}


class FakeCoordinator:
    """Serves from a thread of its own between `start` and `stop`. Also a JobControl, for an operator in this process.

    `answers` by path say more than the attributes do. `received`, by path, has what was answered without an error: bodies
    of POST, queries of GET. A token of None admits every caller.
    """

    def __init__(self, token: str | None = None, report: JobReport | None = None) -> None:
        self.token, self.job_report = token, report
        self.generation, self.saved = 0, 0
        self.current: World | None = None
        self.finished: Finished | None = None
        self.lost, self.stacks = 0, False
        self.received: dict[str, list[Any]] = defaultdict(list)
        self.answers: dict[str, Answer] = {
            "/v1/register": lambda _, me: self._registered(me),
            "/v1/world": lambda query, _: self.world_after(int(query["after"])),
            "/v1/report": self._report,
            "/v1/stop": self._stop,
        }
        acknowledged = ("beats", "rendezvous", "served", "reports", "saved")
        self.answers |= {f"/v1/{name}": lambda *_: Ack("one", self.saved) for name in acknowledged}
        self.host, self.port, self._stopping = "127.0.0.1", 0, False

    # --- what the test does ------------------------------------------------------------------------------------------

    def publish(self, world: World) -> None:
        self.update(current=world, generation=world.generation)

    def lose(self, generation: int, stacks: bool = False) -> None:
        """Workers of this world shall leave it."""
        self.update(lost=generation, stacks=stacks, current=None)

    def finish(self, exit_code: int) -> None:
        self.finished = Finished(exit_code, "Completed", "all steps done")

    def update(self, **values: Any) -> None:
        """Sets attributes together, between two answers."""

        async def assign() -> None:
            vars(self).update(values)

        self._run(assign())

    def wait_until(self, holds: Callable[[], Any], seconds: float = 30.0) -> None:
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, f"not within {seconds:g} s; received: {dict(self.received)}"
            time.sleep(_POLL)

    async def seen(self, path: str, count: int = 1) -> list[Any]:
        """The first so many requests of a path, once they have come."""
        await asyncio.to_thread(self.wait_until, lambda: len(self.received[path]) >= count)
        return self.received[path][:count]

    def _registered(self, me: Any) -> Registered:
        over = 0 < me.generation <= self.lost
        return Registered(self.generation, self.lost if over else 0, over and self.stacks)

    # --- as a JobControl ---------------------------------------------------------------------------------------------

    @property
    def stops(self) -> list[StopRequest]:
        return self.received["/v1/stop"]

    async def report(self, job: Any) -> JobReport | None:
        return self.job_report

    async def checkpoint_and_stop(self, job: Any, reason: str, at_step: int = -1) -> bool:
        if self.job_report is not None:
            self.stops.append(StopRequest(reason, at_step))
        return self.job_report is not None

    async def resize(self, job: Any, trainers: int) -> SizeReply | None:
        return SizeReply("Refused", 0, "it cannot") if self.job_report is not None else None

    # --- answers -----------------------------------------------------------------------------------------------------

    def world_after(self, generation: int) -> World | None:
        return self.current if self.current is not None and self.current.generation > generation else None

    def _report(self, query: dict[str, str], _: Any) -> JobReport | None:
        if self.job_report is None:
            raise Retryable("the test has no report")
        return None if self.job_report.revision() == query.get("after") else self.job_report

    def _stop(self, *_: Any) -> None:
        if self.job_report is None:
            raise Retryable("the test has no report")

    # --- the server --------------------------------------------------------------------------------------------------

    def start(self) -> FakeCoordinator:
        """Listens, after a stop on the same port again."""
        self._loop, self._stopping = asyncio.new_event_loop(), False
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._run(self._listen())
        return self

    def stop(self) -> None:
        if self._loop.is_closed():
            return
        self._stopping = True
        self._run(close(self._runner, [self._listening]))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def __enter__(self) -> FakeCoordinator:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _listen(self) -> None:
        app = web.Application(client_max_size=64 << 20)
        for (method, path), body_type in CALLS.items():
            app.router.add_route(method, path, self._handler(path, body_type))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        self._listening = await listen(self._runner, self.host, self.port)
        self.port = int(self._runner.addresses[0][1])

    def _handler(self, path: str, body_type: type | None) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                self._admit(request)
                body = msgspec.json.decode(await request.read(), type=body_type) if body_type else None
                found = await self._answer(path, dict(request.query), body)
                self.received[path].append(dict(request.query) if body is None else body)
                return reply(found)
            except (CoxswainError, msgspec.DecodeError) as error:
                return refuse(error)

        return handle

    def _admit(self, request: web.Request) -> None:
        if self.token is not None and request.headers.get(TOKEN_HEADER) != f"Bearer {self.token}":
            raise Refused("TokenRejected", "wrong or missing job token")
        if int(request.headers.get(GENERATION_HEADER, self.generation)) < self.generation:
            raise Stale(f"the current generation is {self.generation}")

    async def _answer(self, path: str, query: dict[str, str], body: Any) -> Any:
        answer, end = self.answers.get(path, lambda *_: None), time.monotonic() + float(query.get("wait", 0))
        lost = self.lost
        while True:
            if self.finished is not None and path in _KNOWS_THE_END:
                raise JobEnded(self.finished)
            found = answer(query, body)
            over = path == "/v1/world" and self.lost != lost  # as the real one, so that workers leave at once
            if found is not None or time.monotonic() >= end or self._stopping or over:
                return self.job_report if path == "/v1/report" else found
            await asyncio.sleep(_POLL)
