"""Workers leave a world that is over, and say what they hold of it; the agent ends those that do not."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from msgspec import UNSET

from coxswain.live import Held
from coxswain_train.agent.processes import WorkerHandle
from coxswain_train.worker.assignments import Assignment, Leaving, Left
from tests.fake_coordinator import FakeCoordinator
from tests.unit.agent_fakes import TOKEN, Started, is_alive, workers, workers_out, world


@pytest.fixture
def coordinator():
    with FakeCoordinator(TOKEN) as coordinator:
        yield coordinator


async def test_workers_leave_a_world_that_is_lost_say_what_they_hold_and_join_the_next(tmp_path, coordinator):
    mine = [{"device": 9, "generation": 1, "rank": 3, "step": 7, "pending": "Agreed", "copies": [2]}]
    async with Started(coordinator.url, tmp_path, f"global HELD\nHELD = {mine}\nwhile True: take()"):
        coordinator.publish(world(1))
        old = await workers(tmp_path, 1, 2)
        coordinator.lose(1)
        out = await workers_out(coordinator, 1)
        assert out.held == tuple(Held(device, 1, 3, 7, "Agreed", (2,)) for device in range(2))
        coordinator.publish(world(2))
        assert [w["pid"] for w in await workers(tmp_path, 2, 2)] == [w["pid"] for w in old]


async def test_a_worker_that_ends_after_it_has_left_a_lost_world_holds_nothing_any_more(tmp_path, coordinator):
    mine = [{"device": 9, "generation": 1, "rank": 3, "step": 7}]
    async with Started(coordinator.url, tmp_path, f"global HELD\nHELD = {mine}\nwhile True: take()"):
        coordinator.publish(world(1))
        old = await workers(tmp_path, 1, 2)
        coordinator.lose(1)
        await workers_out(coordinator, 1)
        os.kill(old[0]["pid"], 9)
        await coordinator.seen("/v1/exits")
        coordinator.stop()
        coordinator.received.pop("/v1/register")
        coordinator.start()
        again = (await coordinator.seen("/v1/register"))[0]
        assert ([held.device for held in again.held], again.left, again.generation) == ([1], 1, 0)


@pytest.mark.parametrize("code", [0, 3])
async def test_after_a_good_end_the_agent_does_not_wait_for_workers_that_are_in_no_world(tmp_path, coordinator, code):
    """As at a stop behind a loss or a planned change. They get no directive, so before, it waited for them for 20 s."""
    async with Started(coordinator.url, tmp_path, "while True: take()") as started:
        coordinator.publish(world(1))
        pids = [w["pid"] for w in await workers(tmp_path, 1, 2)]
        coordinator.lose(1)
        await workers_out(coordinator, 1)
        coordinator.finish(code)
        assert await asyncio.wait_for(started.running, 10) == code
        assert not any(is_alive(pid) for pid in pids)


async def test_an_agent_whose_workers_have_left_waits_for_the_next_world_and_registers_no_more(tmp_path, coordinator):
    async with Started(coordinator.url, tmp_path, "while True: take()"):
        coordinator.publish(world(1))
        await workers(tmp_path, 1, 2)
        coordinator.lose(1)
        await workers_out(coordinator, 1)
        before = len(coordinator.received["/v1/register"])
        with pytest.raises(AssertionError, match="not within"):
            await asyncio.to_thread(
                coordinator.wait_until, lambda: len(coordinator.received["/v1/register"]) > before + 4, 0.5
            )


async def test_a_worker_that_does_not_leave_a_lost_world_is_killed_and_holds_nothing(tmp_path, coordinator):
    async with Started(
        coordinator.url, tmp_path, "while True: take()", join_timeout=3.0
    ):  # the other one leaves within that
        coordinator.publish(world(1))
        old = await workers(tmp_path, 1, 2)
        os.kill(old[0]["pid"], 19)  # SIGSTOP
        coordinator.lose(1)
        await workers_out(coordinator, 1)
        assert [is_alive(w["pid"]) for w in old] == [False, True]


ANSWERS = """
channel = socket.socket(fileno=os.dup(int(os.environ["COXSWAIN_ORDERS"])))
generation = json.loads(channel.recv(4096))["generation"]
channel.send(json.dumps({"type": "Leaving", "generation": generation}).encode())
"""


async def test_a_worker_that_answers_while_it_computes_has_longer_to_leave_and_keeps_what_it_holds(
    tmp_path, coordinator
):
    say = '{"type": "Left", "generation": 1, "held": [{"device": 0, "generation": 1, "rank": 0, "step": 7}]}'
    program = f"{ANSWERS}\nimport time\ntime.sleep(2.0)\nchannel.send({say!r}.encode())\nwhile True: take()"
    async with Started(coordinator.url, tmp_path, program, join_timeout=0.5):
        coordinator.publish(world(1))
        old = await workers(tmp_path, 1, 2)
        coordinator.lose(1)
        assert [held.step for held in (await workers_out(coordinator, 1)).held] == [7, 7]
        assert all(is_alive(w["pid"]) for w in old)


async def test_a_worker_that_answers_and_stays_in_a_world_that_hung_is_killed_as_one_that_does_not_answer(
    tmp_path, coordinator
):
    program = f"signal.signal(signal.SIGUSR1, lambda *_: None)\n{ANSWERS}\nwhile True: signal.pause()"
    async with Started(coordinator.url, tmp_path, program, join_timeout=0.5):
        coordinator.publish(world(1))
        old = await workers(tmp_path, 1, 2)
        coordinator.lose(1, stacks=True)
        await workers_out(coordinator, 1)
        assert not any(is_alive(w["pid"]) for w in old)


def leaving(field: str, text: str) -> str:
    """A worker that leaves its first world unasked and says so in this field."""
    say = f'{{"type": "Left", "generation": 1, "held": [], "{field}": "{text}"}}'
    return (
        f"socket.socket(fileno=os.dup(int(os.environ['COXSWAIN_ORDERS']))).send({say!r}.encode())\nwhile True: take()"
    )


async def test_a_worker_that_has_lost_its_peers_is_reported_at_once(tmp_path, coordinator):
    async with Started(coordinator.url, tmp_path, leaving("why", "Connection closed by peer")):
        coordinator.publish(world(1))
        registered = coordinator.received["/v1/register"]
        await asyncio.to_thread(coordinator.wait_until, lambda: any(r.broken for r in registered))
        assert next((r.left, r.broken) for r in registered if r.broken) == (1, "Connection closed by peer")
        # Once all have left, it is in no world that could be lost.
        await asyncio.to_thread(coordinator.wait_until, lambda: registered[-1].generation == 0)


async def test_a_workers_own_error_goes_with_the_registration_behind_the_world_that_its_peers_have_ended(
    tmp_path, coordinator
):
    async with Started(coordinator.url, tmp_path, leaving("fault", "CUDA out of memory")):
        coordinator.publish(world(1))
        registered = coordinator.received["/v1/register"]
        await asyncio.to_thread(coordinator.wait_until, lambda: any(r.fault for r in registered))
        assert next((r.left, r.broken, r.fault) for r in registered if r.fault) == (1, UNSET, "CUDA out of memory")


@asynccontextmanager
async def handled() -> AsyncIterator[tuple[WorkerHandle, list[bool], socket.socket]]:
    """A handle, how often it has notified of a worker that left, and the worker's end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    worker = WorkerHandle(0, -1, -1, ours, asyncio.get_running_loop().create_future())
    news = list[bool]()
    listener = asyncio.create_task(worker.listen(lambda: news.append(True)))
    with ours, theirs:
        yield worker, news, theirs
        listener.cancel()
        await asyncio.wait([listener])


def say(theirs: socket.socket, *messages: Assignment | Leaving | Left) -> None:
    for message in messages:
        theirs.send(msgspec.json.encode(message))


async def test_what_a_worker_says_of_a_former_world_does_not_take_it_out_of_the_present_one():
    seat = world(1).seats[0]
    async with handled() as (worker, news, theirs):
        worker.assign(1, seat)
        say(theirs, Assignment(1, 0))
        assert await worker.wait_joined(30)
        worker.assign(2, seat)
        say(theirs, Left(1, (), "Connection closed by peer"), Assignment(2, 0))
        assert await worker.wait_joined(30)
        assert worker.left is None and not news
        say(theirs, Left(2, ()))
        assert await worker.wait_left(30)
        assert worker.left == Left(2, ()) and news


async def test_a_worker_that_is_sent_on_has_not_left_and_not_joined_until_it_says_so_of_the_new_world():
    seats = world(1).seats
    async with handled() as (worker, _, theirs):
        worker.assign(1, seats[0])
        say(theirs, Assignment(1, 0), Leaving(1), Left(1, ()))
        assert await worker.wait_left(30) and worker.leaving
        worker.assign(2, seats[1])
        assert (worker.assignment, worker.seat) == (Assignment(2, 1), seats[1])
        assert worker.left is None and not worker.leaving
        for stale in (Assignment(1, 0), Assignment(2, 0)):
            say(theirs, stale)
            assert not await worker.wait_joined(0.05)
        say(theirs, Assignment(2, 1))
        assert await worker.wait_joined(30)


async def test_a_worker_that_has_ended_is_waited_for_no_more_and_an_order_to_it_is_dropped():
    async with handled() as (worker, _, theirs):
        worker.assign(1, world(1).seats[0])
        joining, leaving = asyncio.create_task(worker.wait_joined(3600)), asyncio.create_task(worker.wait_left(3600))
        await asyncio.sleep(0)  # both wait
        worker.ended.set_result(-9)
        async with asyncio.timeout(30):
            assert await joining and await leaving
        assert not worker.is_running
        theirs.close()
        worker.leave(1)
        worker.signal(9)  # to no process: its number may be another's


@pytest.mark.parametrize(("answers", "leaves"), [((Leaving(2),), True), ((Leaving(1),), False), ((), False)])
async def test_only_a_worker_that_answers_from_the_world_that_it_is_to_leave_has_longer_for_it(answers, leaves):
    seat = world(1).seats[0]
    async with handled() as (worker, _, theirs):
        worker.assign(1, seat)
        worker.assign(2, seat)
        say(theirs, *answers, Assignment(2, 0))
        assert await worker.wait_joined(30)
        waiting = asyncio.create_task(worker.wait_left(0.0, 3600))
        if leaves:
            assert not (await asyncio.wait([waiting], timeout=0.05))[0]
            say(theirs, Left(2, ()))
        async with asyncio.timeout(30):
            assert await waiting == leaves


@pytest.mark.parametrize("answers", [True, False])
async def test_a_worker_that_has_answered_while_its_agent_was_stopped_is_not_taken_for_one_that_hangs(
    answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a SIGSTOP the timer comes before the answer that waits in the socket: the worker was killed with its state."""
    async with handled() as (worker, _, theirs):
        worker.assign(2, world(2).seats[0])
        waiting = asyncio.create_task(worker.wait_joined(60.0))
        await asyncio.sleep(0.0)
        loop = asyncio.get_running_loop()
        plain = loop.time
        monkeypatch.setattr(loop, "time", lambda: plain() + 90.0)
        say(theirs, *[Assignment(2, 0)] * answers)
        assert await waiting == answers


async def test_a_worker_that_has_begun_in_no_world_yet_can_leave_the_one_that_it_is_sent_into():
    async with handled() as (worker, news, theirs):
        worker.assign(3, world(3).seats[0])
        say(theirs, Left(0, ()))
        assert await worker.wait_left(30) and news
