"""A world whose peer is silent is left at once by all who wait in it, and the same processes join the next one."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from coxswain.errors import Retryable
from coxswain_train.parallel.process_groups import ProcessGroups, WorldAborter, leave_world
from coxswain_train.worker.assignments import Assignment, AssignmentChannel
from coxswain_train.worker.worlds import run_worlds
from tests.distributed.ranks import run_ranks

CPU = torch.device("cpu")
RANKS = 3


def wait_in_vain(world: ProcessGroups, escape: WorldAborter, folder: Path) -> None:
    """Rank 2 is silent, rank 0 waits for it, and rank 1 for rank 0, until another thread aborts. Rank 2 waits for both."""
    if world.rank == 2:
        end = time.monotonic() + 60
        while len(list(folder.glob("freed-*"))) < 2 and time.monotonic() < end:
            time.sleep(0.02)
        escape.abort_world()
        return
    timer = threading.Timer(0.3, escape.abort_world)
    timer.start()
    with pytest.raises(RuntimeError):
        dist.recv(torch.zeros(1), {0: 2, 1: 0}[world.rank])
    timer.join()
    (folder / f"freed-{world.rank}").touch()


def silent_peer(world: ProcessGroups, folder: str) -> float:
    """Joins a world in which one rank is silent, is freed, and sums in the next world."""
    leave_world()
    escape = WorldAborter()
    first = ProcessGroups(dist.FileStore(f"{folder}/first", RANKS), world.rank, RANKS, CPU)
    wait_in_vain(first, escape, Path(folder))
    leave_world()
    escape.begin()
    second = ProcessGroups(dist.FileStore(f"{folder}/second", RANKS), world.rank, RANKS, CPU)
    return sum(row[0] for row in second.scalars([float(second.rank)]))


def test_all_who_wait_for_a_silent_peer_are_freed_and_meet_again_in_the_same_processes(tmp_path: Path) -> None:
    assert run_ranks(RANKS, silent_peer, str(tmp_path)) == [3.0] * RANKS


def test_a_meeting_to_which_nobody_comes_is_left_too(tmp_path: Path) -> None:
    """The store of rank 0 waits for the others for minutes, and is freed like any collective."""
    escape = WorldAborter()
    store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    timer = threading.Timer(0.3, escape.abort_world)
    timer.start()
    with pytest.raises(RuntimeError):
        store.get("what nobody sets")
    timer.join()


class Agent:
    """The agent's end of the socket for orders."""

    def __init__(self) -> None:
        self.channel, mine = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.freed = threading.Event()
        self.orders = AssignmentChannel(mine, self.freed.set)

    def order(self, generation: int) -> None:
        self.channel.send(json.dumps({"generation": generation, "rank": 0}).encode())

    def answer(self) -> int:
        self.channel.settimeout(10)
        return int(json.loads(self.channel.recv(4096))["generation"])

    def close(self) -> None:
        self.orders.close()
        self.channel.close()


@pytest.fixture
def agent():
    agent = Agent()
    yield agent
    agent.close()


def test_a_worker_is_freed_only_from_a_world_that_is_over_and_says_when_it_has_come(agent: Agent) -> None:
    agent.order(1)
    assert agent.orders.next(10) == Assignment(1, 0)
    assert not agent.freed.is_set()
    agent.order(2)
    assert agent.freed.wait(10)
    assert agent.orders.next(10) == Assignment(2, 0)
    assert [agent.answer(), agent.answer()] == [1, 2]


def test_a_worker_whose_world_broke_goes_to_the_next_and_leaves_when_there_is_none(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coxswain_train.worker.worlds._NEXT_WORLD_SECONDS", 0.2)
    seen = []

    def work(place: Assignment) -> int:
        seen.append(place.generation)
        if place.generation == 1:
            agent.order(2)
        raise RuntimeError("Connection closed by peer")

    agent.order(1)
    with pytest.raises(Retryable, match="rank 0: Connection closed by peer"):
        run_worlds(agent.orders, WorldAborter(), work)
    assert seen == [1, 2]


def test_only_connections_opened_since_the_world_began_are_cut() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    before = socket.create_connection(listener.getsockname())
    escape = WorldAborter()
    after = socket.create_connection(listener.getsockname())
    ours, theirs = socket.socketpair()
    escape.abort_world()
    try:
        assert before.send(b"x") == ours.send(b"x") == 1
        with pytest.raises(OSError, match=os.strerror(32)):
            after.send(b"x")
        socket.create_connection(listener.getsockname()).close()
    finally:
        for each in (listener, before, after, ours, theirs):
            each.close()
