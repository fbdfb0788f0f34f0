"""Leader election on a Lease, in virtual time against a server in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import inf, nan
from typing import Any, cast

import pytest

from coxswain.errors import CoxswainError, Refused, Retryable
from coxswain_operator.cluster import AlreadyExists, Conflict
from coxswain_operator.kubernetes.connection import Connection, NotFound
from coxswain_operator.kubernetes.resources import LEASES
from coxswain_operator.leader import Leader, Timing

pytestmark = pytest.mark.looptime(start=1000)
LEASE, RENEW, RETRY = 15.0, 10.0, 2.0


def now() -> float:
    return asyncio.get_running_loop().time()


class Server:
    """One Lease. An answer takes `latency` seconds after the write; `fault` may raise first."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version, self.latency = 0, 0.0
        self.calls: list[str] = []
        self.deadlines: list[float] = []
        self.fault: Callable[[str], None] = lambda method: None

    async def call(self, method: str, path: str, body: Any = None, deadline: float = 0.0) -> Any:
        assert path == LEASES.path("ns", "" if method == "POST" else "lease")
        self.calls.append(method)
        self.deadlines.append(deadline)
        self.fault(method)
        answer = self._apply(method, body)
        await asyncio.sleep(self.latency)
        return answer

    def _apply(self, method: str, body: Any) -> Any:
        if method == "POST" and self.lease is not None:
            raise AlreadyExists("the Lease")
        if method != "POST" and self.lease is None:
            raise NotFound("no Lease")
        if method == "PUT" and self.lease is not None and body["metadata"] != self.lease["metadata"]:
            raise Conflict("another version")
        if method != "GET":
            self.store(body)
        return self.lease

    def store(self, body: Any) -> None:
        self.version += 1
        self.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}

    @property
    def spec(self) -> dict[str, Any]:
        assert self.lease is not None
        return cast("dict[str, Any]", self.lease["spec"])

    def write(self, **spec: Any) -> None:
        """By another client; a value of None removes the field."""
        assert self.lease is not None
        changed = {key: value for key, value in {**self.spec, **spec}.items() if value is not None}
        self.store({**self.lease, "spec": changed})


def candidate(server: Server, name: str = "a", timing: Timing | None = None) -> Leader:
    return Leader(cast("Connection", server), "ns", "lease", name, timing or Timing(LEASE, RENEW, RETRY))


async def acquired(server: Server, name: str = "a") -> Leader:
    leader = candidate(server, name)
    await leader.acquire()
    return leader


@asynccontextmanager
async def holding(leader: Leader) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(leader.hold())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def failing(error: CoxswainError | Conflict, times: float = float("inf"), method: str = "") -> Callable[[str], None]:
    left = [times]

    def fault(called: str) -> None:
        if method in ("", called) and left[0] > 0:
            left[0] -= 1
            raise error

    return fault


async def test_a_missing_lease_is_created_and_held() -> None:
    server = Server()
    leader = await acquired(server)
    assert (server.spec["holderIdentity"], server.spec["leaseDurationSeconds"]) == ("a", 15)
    assert (server.spec["leaseTransitions"], leader.renewed) == (1, now())


async def test_of_two_candidates_that_create_the_lease_together_one_holds_it() -> None:
    server = Server()
    server.latency = 1.0
    leaders = [candidate(server, name) for name in ("a", "b")]
    tasks = [asyncio.create_task(leader.acquire()) for leader in leaders]
    await asyncio.sleep(LEASE)
    assert [task.done() for task in tasks] == [True, False] and leaders[1].renewed == 0.0
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("error", [AlreadyExists("the Lease"), Conflict("a quota")])
async def test_a_lease_whose_creation_meets_another_write_is_looked_at_again(error: CoxswainError | Conflict) -> None:
    server = Server()
    server.fault = failing(error, 1, "POST")
    leader = await acquired(server)
    assert server.spec["holderIdentity"] == "a" and leader.renewed
    assert server.calls == ["GET", "POST", "GET", "POST"]


@pytest.mark.parametrize(("duration", "taken_after"), [(15, 20.0), (14, 15.0), (30, 35.0), (None, 20.0)])
async def test_a_silent_holder_keeps_its_lease_for_its_whole_duration(duration: int | None, taken_after: float) -> None:
    server = Server()
    await acquired(server, "silent")
    server.write(leaseDurationSeconds=duration)
    start, leader = now(), candidate(server, timing=Timing(LEASE, RENEW, retry=5.0))
    await leader.acquire()  # looks every 5 s; exactly at its duration a Lease is not over
    assert now() - start == taken_after
    assert (server.spec["holderIdentity"], server.spec["leaseTransitions"]) == ("a", 2)


async def test_a_lease_that_changes_is_waited_for_from_its_change() -> None:
    server = Server()
    await acquired(server, "slow")
    start, taking = now(), asyncio.create_task(candidate(server).acquire())
    await asyncio.sleep(LEASE - 2.5)
    server.write(renewTime="later")
    await taking
    assert now() - start > 2 * LEASE - 2.5


async def test_a_released_lease_is_taken_at_once() -> None:
    server = Server()
    first = await acquired(server, "first")
    await first.release()
    start = now()
    await acquired(server)
    assert now() == start and server.spec["leaseTransitions"] == 2


async def test_a_lease_of_another_holder_is_not_released() -> None:
    server = Server()
    leader = await acquired(server)
    server.write(holderIdentity="another")
    await leader.release()
    assert server.spec["holderIdentity"] == "another"


async def test_a_release_that_meets_the_last_renewal_is_repeated() -> None:
    server = Server()
    leader = await acquired(server)
    server.fault = failing(Conflict("the renewal that was cancelled"), 1, "PUT")
    await leader.release()
    assert server.spec["holderIdentity"] == ""


async def test_a_leader_may_write_until_its_last_renewal_is_too_old_or_its_lease_is_lost() -> None:
    server = Server()
    leader = candidate(server)
    assert leader.may_write()  # the keys, before it leads
    await leader.acquire()
    await asyncio.sleep(RENEW - 0.1)
    assert leader.may_write()
    await asyncio.sleep(0.1)
    assert not leader.may_write()  # a process that was stopped notices this before its timers
    await leader.hold()
    assert leader.renewed == 0.0 and not leader.may_write()


async def test_a_holder_whose_time_is_over_when_it_goes_on_sends_no_renewal() -> None:
    """It was stopped for a while: its renewal would keep the others waiting for a process that ends."""
    server = Server()
    leader = await acquired(server)
    await asyncio.sleep(RENEW)
    server.calls.clear()
    await leader.hold()
    assert server.calls == [] and not leader.may_write()


@pytest.mark.parametrize(("asleep", "leads"), [(RENEW - 1, True), (RENEW, False)])
async def test_a_leader_whose_machine_was_suspended_for_long_writes_nothing_and_ends(
    asleep: float, leads: bool
) -> None:
    """The clock of its event loop stood meanwhile, and another may lead."""
    server, suspended = Server(), [3600.0]
    leader = Leader(cast("Connection", server), "ns", "lease", "a", Timing(LEASE, RENEW, RETRY), lambda: suspended[0])
    await leader.acquire()
    suspended[0] += asleep
    assert leader.may_write() is leads
    server.calls.clear()
    async with holding(leader) as task:
        await asyncio.sleep(0)
        await asyncio.sleep(RETRY / 2)
        assert (task.done(), bool(server.calls), leader.may_write()) == (not leads, leads, leads)


async def test_a_leader_whose_lease_is_taken_may_write_no_more_and_one_that_is_ended_writes_its_last_events() -> None:
    server = Server()
    robbed, ended = await acquired(server), await acquired(Server())
    server.write(holderIdentity="another")
    await robbed.hold()
    async with holding(ended):
        await asyncio.sleep(RETRY)
    await ended.release()
    assert (robbed.may_write(), ended.may_write()) == (False, True)


async def test_a_missing_lease_needs_no_release() -> None:
    server = Server()
    leader = await acquired(server)
    server.lease = None
    await leader.release()
    assert server.lease is None


async def test_a_restarted_container_of_the_same_identity_goes_on_at_once() -> None:
    server = Server()
    await acquired(server)
    start = now()
    await acquired(server)
    assert now() == start and server.spec["leaseTransitions"] == 1


async def test_a_namespace_that_is_missing_is_awaited_by_a_candidate_and_ends_a_holder_in_its_time() -> None:
    server = Server()
    server.fault = failing(NotFound('namespaces "ns" not found'), times=3, method="POST")
    start, leader = now(), await acquired(server)
    assert now() - start == 3 * RETRY
    server.lease, server.fault, start = None, failing(NotFound("namespaces not found")), now()
    await leader.hold()
    assert (now() - start, leader.renewed) == (RENEW, 0.0)


async def test_a_lease_that_changes_between_look_and_write_is_not_taken() -> None:
    server = Server()
    first = await acquired(server, "first")
    await first.release()
    server.fault = lambda method: server.write(holderIdentity="quicker") if method == "PUT" else None
    leader = candidate(server)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(leader.acquire(), 1.0)
    assert (server.spec["holderIdentity"], leader.renewed) == ("quicker", 0.0)


async def test_a_holder_renews_with_one_request_each_retry_period() -> None:
    server = Server()
    leader = await acquired(server)
    acquired_at = server.spec["acquireTime"]
    async with holding(leader):
        await asyncio.sleep(0.5 * RETRY)  # the first renewal reads what the acquisition wrote
        server.calls.clear()
        await asyncio.sleep(3 * RETRY)
    assert server.calls == ["PUT"] * 3
    assert (server.spec["leaseTransitions"], server.spec["acquireTime"]) == (1, acquired_at)
    assert server.spec["renewTime"] > acquired_at


async def test_a_request_gets_half_of_the_renewal_time() -> None:
    server = Server()
    leader = await acquired(server)
    async with holding(leader):
        await asyncio.sleep(RETRY)
    assert set(server.deadlines) == {RENEW / 2}


async def test_a_renewal_is_dated_by_its_request_and_not_by_its_answer() -> None:
    server = Server()
    leader = await acquired(server)
    server.latency, asked = 3.0, now()
    async with holding(leader):
        await asyncio.sleep(3.5)
        assert leader.renewed == asked
        server.fault = failing(Retryable("503"))
        await asyncio.sleep(RENEW - 3.5 - 0.1)
        assert leader.renewed == asked
        await asyncio.sleep(0.2)
        assert leader.renewed == 0.0


@pytest.mark.parametrize("error", [Retryable("503"), Refused("Forbidden", "no right")])
async def test_a_holder_that_cannot_renew_stops_when_its_time_is_over(error: CoxswainError) -> None:
    server = Server()
    leader = await acquired(server)
    server.fault, start = failing(error), now()
    await leader.hold()
    assert (now() - start, leader.renewed) == (RENEW, 0.0)


async def test_a_holder_whose_server_never_answers_stops_when_its_time_is_over() -> None:
    server = Server()
    leader = await acquired(server)
    server.latency, start = 3600.0, now()
    await leader.hold()
    assert (now() - start, leader.renewed) == (RENEW, 0.0)


async def test_a_holder_survives_an_outage_shorter_than_its_time() -> None:
    server = Server()
    leader = await acquired(server)
    server.fault = failing(Retryable("503"), times=3)
    async with holding(leader) as task:
        await asyncio.sleep(2 * RENEW)
        assert not task.done()


async def test_a_holder_whose_lease_was_taken_stops_at_its_next_renewal() -> None:
    server = Server()
    leader = await acquired(server)
    server.write(holderIdentity="another")
    start = now()
    await leader.hold()
    assert (now(), leader.renewed, server.spec["holderIdentity"]) == (start, 0.0, "another")


async def test_a_holder_that_is_cancelled_is_no_leader() -> None:
    leader = await acquired(Server())
    async with holding(leader):
        await asyncio.sleep(RETRY)
        assert leader.renewed
    assert leader.renewed == 0.0


async def test_a_renewal_whose_answer_was_lost_costs_a_look_and_no_lease() -> None:
    server = Server()
    leader = await acquired(server)
    async with holding(leader) as task:
        await asyncio.sleep(0.5 * RETRY)
        server.write(renewTime="by its own lost write")
        server.calls.clear()
        await asyncio.sleep(RETRY)
        assert server.calls == ["PUT", "GET", "PUT"] and not task.done()


async def test_a_holder_whose_renewals_are_overtaken_looks_again_and_stays() -> None:
    server = Server()
    leader = await acquired(server)
    server.fault = failing(Conflict("again"), times=1, method="PUT")
    async with holding(leader) as task:
        await asyncio.sleep(1.5 * RETRY)
        assert not task.done() and leader.renewed == 1000 + RETRY


async def test_a_deleted_lease_is_created_again_by_its_holder() -> None:
    server = Server()
    leader = await acquired(server)
    async with holding(leader) as task:
        for _ in range(3):  # seen missing by a look, and by a write
            server.lease = None
            await asyncio.sleep(RETRY + 1.0)
            assert not task.done() and server.spec["holderIdentity"] == "a"


@pytest.mark.parametrize("outage", [0.0, 0.5, 1.9])
async def test_a_holder_that_is_cut_off_has_stopped_before_another_begins(outage: float) -> None:
    server, cut_off = Server(), Server()
    leader = await acquired(server)
    second = asyncio.create_task(candidate(server, "b").acquire())
    async with holding(leader) as task:
        await asyncio.sleep(7 * RETRY + outage)
        last, server.call = leader.renewed, cut_off_from(server, "a")  # type: ignore[method-assign]
        await task
        assert now() == last + RENEW and not second.done()
        await second
    assert now() > last + LEASE and cut_off.lease is None


def cut_off_from(server: Server, identity: str) -> Callable[..., Any]:
    """Writes of this holder get lost; its reads, which carry no name, do not occur while it has written."""
    call = server.call

    async def lossy(method: str, path: str, body: Any = None, deadline: float = 0.0) -> Any:
        if body is not None and body["spec"]["holderIdentity"] == identity:
            raise Retryable("no route to host")
        return await call(method, path, body, deadline)

    return lossy


@pytest.mark.parametrize(
    ("lease", "renew", "retry"),
    [
        (10, 10, 2),
        (15, 2, 2),
        (15, 10, 0),
        (15, 10, -1),
        (9, 10, 2),
        (15, 1, 2),
        (3601, 10, 2),
        (inf, 10, 2),
        (15, nan, 2),
    ],
)
def test_times_of_a_lease_that_leave_no_margin_are_refused(lease: float, renew: float, retry: float) -> None:
    with pytest.raises(Refused, match="each must be longer than the next"):
        Timing(lease, renew, retry)


@pytest.mark.parametrize(("lease", "written"), [(0.4, 1), (15.0, 15), (15.4, 16), (3600, 3600)])
async def test_a_lease_is_written_in_whole_seconds_and_never_as_shorter_than_it_is(lease: float, written: int) -> None:
    """A candidate that waits for fewer seconds could begin while this holder still acts."""
    server = Server()
    await candidate(server, timing=Timing(lease, lease - 0.1, 0.2)).acquire()
    assert server.spec["leaseDurationSeconds"] == written


async def test_what_keeps_a_candidate_from_the_lease_is_said_once_and_again_after_an_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It asks each two seconds, for as long as a right is missing."""
    server, failing = Server(), True

    def fault(_: str) -> None:
        if failing:
            raise Retryable("no right to leases")

    server.fault = fault
    leader = candidate(server)
    acquiring = asyncio.create_task(leader.acquire())
    await asyncio.sleep(100)
    assert len(server.calls) > 40 and caplog.text.count("no right to leases") == 1
    failing = False
    await acquiring
    failing, holding = True, asyncio.create_task(leader.hold())
    await holding
    assert caplog.text.count("no right to leases") == 2
