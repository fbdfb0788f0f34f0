"""The operator's words with a coordinator, over HTTP on this machine."""

from __future__ import annotations

import asyncio
import base64
import gzip
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest

from coxswain.errors import CoxswainError, Refused, Retryable
from coxswain.names import LABEL_INCARNATION, LABEL_INDEX, LABEL_ROLE
from coxswain.wire import Size, SizeReply, StopRequest
from coxswain_link.http_client import AsyncClient
from coxswain_operator import jobcontrol
from coxswain_operator.children.common import owner_of
from coxswain_operator.jobcontrol import DEADLINE_SECONDS, MOST_BYTES, HttpJobControl
from coxswain_operator.report_poller import ReportPoller
from coxswain_operator.views import Manifest
from tests.fake_coordinator import FakeCoordinator
from tests.unit.coordinator_fakes import TOKEN, cluster, make_job
from tests.unit.fake_cluster import FakeCluster, report, training_job

READY = [{"type": "Ready", "status": "True"}]


@asynccontextmanager
async def knowing(
    port: int, token: str, deadline: float = DEADLINE_SECONDS
) -> AsyncIterator[tuple[HttpJobControl, FakeCluster]]:
    """A control that finds the coordinator at this port in a cluster's objects, and the cluster."""
    world = FakeCluster(training_job())
    ours = owner_of(world.job)
    whole = {LABEL_ROLE: "coordinator", LABEL_INDEX: "0", LABEL_INCARNATION: "0"}
    for kind, name, more in (("Pod", "c", whole), ("Secret", "demo-token", {})):
        head = {**ours, "name": name, "labels": ours["labels"] | more}
        world.put({"kind": kind, "metadata": head, "spec": {}})
    world.objects["Pod", "c"]["status"] = {
        "phase": "Running", "podIP": "127.0.0.1", "conditions": READY,
    }  # fmt: skip
    world.objects["Secret", "demo-token"]["data"] = {"token": base64.b64encode(token.encode()).decode()}
    control = HttpJobControl(world, port, deadline=deadline)
    try:
        yield control, world
    finally:
        await control.close()


@asynccontextmanager
async def talking(token: str = "right") -> AsyncIterator[tuple[HttpJobControl, FakeCoordinator, FakeCluster]]:
    """A coordinator that listens, and a control that knows it."""
    with FakeCoordinator("right", report("Running", 42)) as coordinator:
        async with knowing(coordinator.port, token) as (control, world):
            yield control, coordinator, world


async def test_a_report_comes_from_the_coordinators_address_with_the_jobs_token() -> None:
    async with talking() as (control, _, world):
        answer = await control.report(world.job)
        assert answer is not None and answer.step == 42


async def test_a_stop_names_its_reason_and_its_step() -> None:
    async with talking() as (control, coordinator, world):
        assert await control.checkpoint_and_stop(world.job, "suspended", 7)
        assert await control.checkpoint_and_stop(world.job, "suspended")
        assert coordinator.stops == [StopRequest("suspended", 7), StopRequest("suspended", -1)]


async def test_a_wrong_token_is_no_answer() -> None:
    async with talking(token="wrong") as (control, coordinator, world):
        assert await control.report(world.job) is None
        assert not await control.checkpoint_and_stop(world.job, "suspended")
        assert coordinator.stops == []


async def test_a_coordinator_with_an_ipv6_address_that_does_not_answer_is_no_error() -> None:
    async with talking() as (control, _, world):
        world.objects["Pod", "c"]["status"]["podIP"] = "fd00::1:7"
        assert await control.report(world.job) is None
        assert not await control.checkpoint_and_stop(world.job, "suspended")


@pytest.mark.parametrize(
    ("error", "state"), [(Refused("NoSuchCall", "of an earlier release"), "Refused"), (Retryable("is busy"), None)]
)
async def test_a_coordinator_that_refuses_a_number_has_answered_and_one_that_fails_has_not(
    error: CoxswainError, state: str | None
) -> None:
    async with talking() as (control, coordinator, world):
        asked = list[Size]()

        def size(_: dict[str, str], body: Size) -> SizeReply:
            asked.append(body)
            raise error

        coordinator.answers["/v1/size"] = size
        reply = await control.resize(world.job, 3)
        assert (reply and reply.state, asked) == (state, [Size(3)])
        assert reply is None or "of an earlier release" in reply.message


class Hostile:
    """Answers whatever it is asked without an end: `part` again and again, with pauses of so many seconds."""

    def __init__(self, part: bytes, pause: float) -> None:
        self._part, self._pause, self.sent = part, pause, 0
        self.answers: list[asyncio.Task[None] | None] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.answers.append(asyncio.current_task())
        with suppress(OSError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
            while self.sent < 64 * MOST_BYTES:
                writer.write(self._part)
                await writer.drain()
                self.sent += len(self._part)
                await asyncio.sleep(self._pause)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


@asynccontextmanager
async def answered_by(
    hostile: Hostile, deadline: float = DEADLINE_SECONDS
) -> AsyncIterator[tuple[HttpJobControl, Manifest]]:
    async with await asyncio.start_server(hostile.answer, "127.0.0.1", 0) as server:
        async with knowing(server.sockets[0].getsockname()[1], "right", deadline) as (control, world):
            yield control, world.job
        await asyncio.gather(*filter(None, hostile.answers))  # the connections are closed


async def test_a_coordinator_whose_answers_do_not_end_holds_no_pass_up() -> None:
    """Its image may be the user's own, and a few passes at once serve all jobs of the cluster."""
    async with answered_by(Hostile(b" ", 0.02), deadline=0.2) as (control, job), asyncio.timeout(10):
        assert not await control.checkpoint_and_stop(job, "suspended")
        assert await control.resize(job, 3) is None
        assert await control.report(job, "mark", 0.1) is None


async def test_a_coordinator_with_an_answer_of_any_length_does_not_fill_the_operators_memory() -> None:
    hostile = Hostile(b" " * 2**16, 0.0)
    async with answered_by(hostile) as (control, job):
        assert await control.report(job) is None
    assert hostile.sent < 8 * MOST_BYTES


async def test_a_coordinator_with_a_packed_answer_of_any_length_does_not_fill_the_operators_memory() -> None:
    """65 kB that unpack to 64 MiB, and where they are packed twice to a thousand times that: the operator would be killed."""
    packed, asked = gzip.compress(b" " * 2**26, 9), list[bytes]()
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(head.encode() + packed)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        async with knowing(server.sockets[0].getsockname()[1], "right") as (control, world):
            tracemalloc.start()
            try:
                assert await control.report(world.job) is None
                assert tracemalloc.get_traced_memory()[1] < 2 * MOST_BYTES
            finally:
                tracemalloc.stop()
    assert asked
    assert all(b"accept-encoding: identity\r\n" in head.lower() for head in asked)  # none is to pack its answer


@pytest.mark.parametrize(
    ("kind", "name", "change"),
    [
        ("Pod", "c", {"status": {"phase": "Running", "podIP": "127.0.0.1", "conditions": []}}),
        ("Pod", "c", {"status": {"phase": "Failed", "podIP": "127.0.0.1", "conditions": READY}}),
        ("Pod", "c", {"status": {"phase": "Running", "conditions": READY}}),
        ("Secret", "demo-token", {"data": None}),
        ("Secret", "demo-token", {"data": {"token": base64.b64encode("rübe".encode()).decode()}}),
        ("Secret", "demo-token", {"data": {"token": base64.b64encode(b"\xff").decode()}}),
        ("Secret", "demo-token", {"metadata": {"name": "another", "labels": {}}}),
    ],
    ids=[
        "it is not ready",
        "it has failed",
        "it has no address",
        "the token is empty",
        "the token is no header",
        "the token is no text",
        "there is no token",
    ],
)
async def test_a_coordinator_is_not_asked_while(kind: str, name: str, change: Manifest) -> None:
    async with talking() as (control, coordinator, world):
        found = world.objects.pop((kind, name))
        world.objects[kind, change.get("metadata", {}).get("name", name)] = {**found, **change}
        assert await control.report(world.job) is None
        assert not await control.checkpoint_and_stop(world.job, "suspended")
        assert coordinator.received == {}


@pytest.mark.parametrize("owner", [{}, {"kind": "ReplicaSet", "uid": "other", "controller": True}])
async def test_a_foreign_pod_with_a_coordinators_labels_gets_no_call_and_so_no_token(owner: Manifest) -> None:
    async with talking() as (control, coordinator, world):
        world.objects["Pod", "c"]["metadata"]["ownerReferences"] = [owner] if owner else []
        assert await control.report(world.job) is None
        assert not await control.checkpoint_and_stop(world.job, "suspended")
        assert coordinator.received == {}


class Watched(AsyncClient):
    """Its closing takes a turn of the loop. `open`: of all since the test began, whether each still is."""

    open: ClassVar[list[bool]]

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._number = len(self.open)
        self.open.append(True)

    async def close(self) -> None:
        await asyncio.sleep(0)
        await super().close()
        self.open[self._number] = False


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each connection that a control makes, in order, whether it is open."""
    monkeypatch.setattr(Watched, "open", [], raising=False)
    monkeypatch.setattr(jobcontrol, "AsyncClient", Watched)
    return Watched.open


async def test_a_connection_is_kept_until_the_token_changes_or_the_job_is_forgotten(connections: list[bool]) -> None:
    async with talking(token="wrong") as (control, _, world):
        assert await control.report(world.job) is None
        world.objects["Secret", "demo-token"]["data"] = {"token": base64.b64encode(b"right").decode()}
        assert await control.report(world.job) is not None
        assert connections == [False, True]
        assert await control.report(world.job) is not None
        assert connections == [False, True]
        await control.forget(world.job)
        await control.forget(world.job)
        assert connections == [False, False]
        assert await control.report(world.job) is not None
        assert connections == [False, False, True]
    assert connections == [False] * 3


async def test_calls_side_by_side_make_one_connection_after_the_token_has_changed(connections: list[bool]) -> None:
    async with talking(token="wrong") as (control, _, world):
        await control.report(world.job)
        world.objects["Secret", "demo-token"]["data"] = {"token": base64.b64encode(b"right").decode()}
        assert all(await asyncio.gather(*(control.report(world.job) for _ in range(3))))
    assert connections == [False, False]


async def test_the_newest_of_two_ready_coordinators_is_asked() -> None:
    async with talking() as (control, _, world):
        older = world.objects.pop(("Pod", "c"))
        away = {**older["status"], "podIP": "127.0.0.9"}
        world.objects["Pod", "b"], world.objects["Pod", "c"] = {**older, "status": away}, older
        trainer = {**older["metadata"], "labels": {**older["metadata"]["labels"], LABEL_ROLE: "trainer"}}
        world.objects["Pod", "d"] = {**older, "metadata": trainer, "status": away}
        assert await control.report(world.job) is not None


async def test_a_coordinator_that_is_gone_is_asked_once_and_delays_no_pass() -> None:
    async with knowing(1, "right") as (control, world):  # nothing listens at this port
        begun = time.monotonic()
        assert await control.report(world.job) is None
        assert not await control.checkpoint_and_stop(world.job, "suspended")
    assert time.monotonic() - begun < DEADLINE_SECONDS, "one call alone would wait for that long"


async def test_a_whole_job_is_followed_by_a_call_that_waits_at_the_coordinator_for_another_phase(
    tmp_path: Path,
) -> None:
    async with cluster(make_job(tmp_path), tmp_path) as real, knowing(real.port, TOKEN) as (control, world):
        rings: list[tuple[str, str]] = []
        following = ReportPoller(control, rings.append)
        try:
            assert await following.report(world.job) is None
            await until(lambda: len(rings) >= 1)
            end = await real.play()
            async with asyncio.timeout(60):
                while (latest := await following.report(world.job)) is None or latest.phase != "Completed":  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert (latest.revision(), latest.step) == (end.revision(), end.step)
            assert 2 <= len(rings) < len(real.steps())  # steps alone end no long poll
        finally:
            await following.close()


async def test_an_api_server_that_does_not_give_the_token_for_a_while_ends_no_following() -> None:
    async with talking() as (control, _, world):
        away = True

        def fails(verb: str, what: str) -> None:
            if away and what == "Secret":
                raise Retryable("503")

        world.before_call = fails
        following = ReportPoller(control, lambda key: None, absent=0.01)
        try:
            assert await following.report(world.job) is None
            assert not await following.checkpoint_and_stop(world.job, "suspended")
            away = False
            async with asyncio.timeout(60):
                while await following.report(world.job) is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        finally:
            await following.close()


async def test_a_long_poll_names_the_mark_of_what_it_knows() -> None:
    async with talking() as (control, coordinator, world):
        known = await control.report(world.job)
        assert known is not None
        await control.report(world.job, known.revision(), 1.0)
        assert coordinator.received["/v1/report"][0] == {}
        assert coordinator.received["/v1/report"][-1] == {"after": known.revision(), "wait": "1.0"}


def test_progress_leaves_the_mark_and_a_change_of_phase_does_not() -> None:
    assert report("Running", 1).revision() == report("Running", 2).revision() != report("Completed", 2).revision()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
