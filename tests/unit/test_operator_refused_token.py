"""A token that the API server refuses: what the log says, and that the next one is read."""

from __future__ import annotations

import asyncio
import gc
import logging
from contextlib import suppress
from typing import Any, cast

import pytest
from aiohttp import web

from coxswain_operator.kopf_watches import adds_words, run_watches
from coxswain_operator.kubernetes import KubernetesCluster
from coxswain_operator.kubernetes.access import Access

pytestmark = pytest.mark.timeout(60)


class Quiet:
    """A cluster without jobs, whose pods never change."""

    async def served(self, _: list[str]) -> None: ...

    async def listed(self, *_: str) -> None: ...

    async def watch(self, *_: str) -> Any:
        await asyncio.Event().wait()
        yield


class Said(logging.Handler):
    """Collects what passes the operator's filter, and knows when a line of the watches has come."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.addFilter(adds_words)
        self.records: list[logging.LogRecord] = []
        self.came = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        if record.name == "coxswain_operator.kopf_watches":
            self.came.set()


class Server:
    """Refuses every token but one, and serves no kinds."""

    def __init__(self) -> None:
        self.admits, self.admitted = "Bearer new", asyncio.Event()

    async def answer(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != self.admits:
            return web.json_response({"kind": "Status", "code": 401, "message": "Unauthorized"}, status=401)
        self.admitted.set()
        return web.json_response({"versions": [], "groups": []})


async def test_a_refused_token_is_one_line_without_a_trace_and_the_next_token_is_used() -> None:
    """As behind a rotation of the cluster's keys. kopf alone logs a trace for each of its tasks."""
    server, said, tokens = Server(), Said(), ["old"]
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    access = Access(url, authorization=lambda: f"Bearer {tokens[-1]}")
    logging.getLogger().addHandler(said)
    watches = asyncio.create_task(run_watches(cast("KubernetesCluster", Quiet()), access, lambda _: None))
    try:
        await said.came.wait()
        tokens.append("new")
        await server.admitted.wait()
    finally:
        watches.cancel()
        with suppress(asyncio.CancelledError):
            await watches
        await runner.cleanup()
        gc.collect()  # asyncio logs errors of forgotten tasks when they are freed
        logging.getLogger().removeHandler(said)
    texts = [r.getMessage() for r in said.records if r.name == "coxswain_operator.kopf_watches"]
    assert len(texts) == 1 and f"kopf: {url} refuses the operator's token" in texts[0]
    assert [r.getMessage() for r in said.records if r.exc_info] == []
