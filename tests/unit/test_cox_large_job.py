"""`cox` reads a job of hundreds of pods in a cluster by parts that arrive, and opens no more than it may."""

from __future__ import annotations

import asyncio
import json
import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from coxswain.errors import Refused, Retryable
from coxswain_cli.readers.api_reads import LOGS_AT_ONCE, PAGE, allow_files
from coxswain_cli.readers.cluster import ClusterReader, Place, jobs_of
from coxswain_operator.kubernetes.access import Access, find_access

PODS = 2 * PAGE + 50
JOB = {
    "metadata": {"name": "demo", "namespace": "d", "uid": "u"},
    "spec": {"checkpoint": {"uri": "file:///absent"}},
    "status": {},
}  # fmt: skip


def pod(number: int) -> dict[str, Any]:
    labels = {"coxswain.dev/role": "trainer", "coxswain.dev/index": str(number), "coxswain.dev/incarnation": "0"}
    return {"metadata": {"name": f"p-{number}", "labels": labels}, "spec": {"containers": [{"name": "trainer"}]}}


def event(number: int) -> dict[str, Any]:
    return {"metadata": {}, "eventTime": "2026-01-01T00:00:00Z", "reason": f"R{number}", "involvedObject": {}}


class Server:
    """An API server as far as `cox` asks it. It counts logs that are read at a time, and objects of each answer."""

    def __init__(self) -> None:
        self.reading = self.most = self.longest = 0
        self.logs = 200  # the status of their answers

    async def answer(self, request: web.Request) -> web.Response:
        match request.path.rsplit("/", 1)[-1]:
            case "log":
                return await self.log()
            case "demo":
                return web.json_response(JOB)
            case "pods":
                return self.page(request, [pod(n) for n in range(PODS)])
            case "events":
                return self.page(request, [event(n) for n in range(PODS)])
            case "trainingjobs":
                return self.page(request, [JOB] * PODS)
        return self.page(request, [])

    async def log(self) -> web.Response:
        self.reading += 1
        self.most = max(self.most, self.reading)
        await asyncio.sleep(0.01)  # all that are to be read at a time have come
        self.reading -= 1
        return web.Response(text="line\n", status=self.logs)

    def page(self, request: web.Request, items: list[dict[str, Any]]) -> web.Response:
        start = int(request.query.get("continue", "0"))
        stop = start + int(request.query.get("limit", len(items)))
        self.longest = max(self.longest, len(items[start:stop]))
        metadata = {"continue": str(stop)} if stop < len(items) else {}
        return web.json_response({"metadata": metadata, "items": items[start:stop] or None})


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def kubeconfig(server: Server, tmp_path: Path) -> Iterator[Path]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    app = web.Application()
    app.router.add_get("/{path:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=1)

    async def start() -> int:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return int(runner.addresses[0][1])

    port = asyncio.run_coroutine_threadsafe(start(), loop).result(60)
    path = tmp_path / "kubeconfig"
    clusters = [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}]
    contexts = [{"name": "x", "context": {"cluster": "c", "user": "u"}}]
    users = [{"name": "u", "user": {}}]
    path.write_text(json.dumps({"clusters": clusters, "contexts": contexts, "users": users, "current-context": "x"}))
    yield path
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(60)
    loop.close()


@pytest.fixture
def access(kubeconfig: Path) -> Access:
    return find_access(kubeconfig)


def test_pods_and_events_of_a_large_job_come_by_the_page(server: Server, access: Access) -> None:
    reader = ClusterReader(access, "d", "demo")
    assert [p["metadata"]["name"] for p in reader.look().pods] == [f"p-{n}" for n in range(PODS)]
    events = reader.record(()).events
    assert (len(events), {event.time for event in events}) == (PODS, {1767225600.0})  # they have no `lastTimestamp`
    assert server.longest == PAGE


def test_jobs_of_a_namespace_come_by_the_page(server: Server, kubeconfig: Path) -> None:
    assert len(list(jobs_of(Place(kubeconfig, namespace="d")))) == PODS
    assert server.longest == PAGE


def test_logs_of_a_large_job_are_read_a_few_at_a_time(server: Server, access: Access) -> None:
    origins: list[str] = []
    ClusterReader(access, "d", "demo").logs("", False, lambda origin, line: origins.append(origin))
    assert sorted(origins) == sorted(f"p-{n}/trainer" for n in range(PODS))
    assert server.most <= LOGS_AT_ONCE


def test_followed_logs_are_all_open_at_a_time(server: Server, access: Access) -> None:
    origins: list[str] = []
    ClusterReader(access, "d", "demo").logs("", True, lambda origin, line: origins.append(origin))
    assert len(origins) == PODS
    assert server.most > LOGS_AT_ONCE


def test_of_many_logs_that_cannot_be_read_a_few_are_named(server: Server, access: Access) -> None:
    server.logs = 404
    with pytest.raises(Retryable, match=rf"; and {PODS - 5} more$") as error:
        ClusterReader(access, "d", "demo").logs("", False, lambda origin, line: None)
    assert str(error.value).count("/log") == 5


def test_more_logs_than_files_may_be_open_are_refused_with_the_ways_out() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with pytest.raises(Refused, match=rf"`ulimit -n` is {hard} open files, and {hard} logs .* --trainer, --loader"):
        allow_files(hard)


def test_the_limit_of_open_files_is_raised_for_logs_that_are_followed() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[0], 256), before[1]))
    try:
        allow_files(300)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 300
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
