"""An abort ends every wait of a rank in a world with a silent peer; the same processes then join the next world."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
import torch
import torch.distributed as dist

from coxswain.errors import Refused, Retryable
from coxswain.live import Held
from coxswain_train.parallel.process_groups import ProcessGroups, WorldAborter, leave_world, listen
from coxswain_train.worker.assignments import Assignment, AssignmentChannel, Leave, Leaving, Left
from coxswain_train.worker.worlds import run_worlds
from tests.distributed.ranks import run_ranks

CPU = torch.device("cpu")
RANKS = 3


def wait_in_vain(world: ProcessGroups, aborter: WorldAborter, folder: Path) -> None:
    """Rank 2 is silent, rank 0 waits for it, and rank 1 for rank 0, until another thread aborts. Rank 2 waits for both."""
    if world.rank == 2:
        end = time.monotonic() + 60
        while len(list(folder.glob("aborted-*"))) < 2 and time.monotonic() < end:
            time.sleep(0.02)
        aborter.abort_world()
        return
    timer = threading.Timer(0.3, aborter.abort_world)
    timer.start()
    with pytest.raises(RuntimeError):
        dist.recv(torch.zeros(1), {0: 2, 1: 0}[world.rank])
    timer.join()
    (folder / f"aborted-{world.rank}").touch()


def silent_peer(world: ProcessGroups, folder: str) -> float:
    """Joins a world in which one rank is silent, is aborted, and sums in the next world."""
    leave_world()
    aborter = WorldAborter()
    first = ProcessGroups(dist.FileStore(f"{folder}/first", RANKS), world.rank, RANKS, CPU)
    wait_in_vain(first, aborter, Path(folder))
    leave_world()
    aborter.begin()
    second = ProcessGroups(dist.FileStore(f"{folder}/second", RANKS), world.rank, RANKS, CPU)
    return sum(row[0] for row in second.scalars([float(second.rank)]))


def test_an_abort_ends_direct_and_indirect_waits_for_a_silent_peer_and_the_same_processes_join_the_next_world(
    tmp_path: Path,
) -> None:
    assert run_ranks(RANKS, silent_peer, str(tmp_path)) == [3.0] * RANKS


def broken_off(world: ProcessGroups, folder: str) -> float:
    """Rank 0 joins a world whose other rank never comes, and is aborted. Then both sum in the next world."""
    leave_world()
    if world.rank == 0:
        aborter = WorldAborter()
        store = listen("127.0.0.1", 2)
        timer = threading.Timer(0.3, aborter.abort_world)
        timer.start()
        with pytest.raises(RuntimeError):
            ProcessGroups(store, 0, 2, CPU)
        timer.join()
        leave_world()
    second = ProcessGroups(dist.FileStore(f"{folder}/second", 2), world.rank, 2, CPU)
    return sum(row[0] for row in second.scalars([float(second.rank)]))


def test_a_rank_that_an_abort_broke_off_while_it_joined_a_world_joins_the_next_with_one_that_never_did(
    tmp_path: Path,
) -> None:
    assert run_ranks(2, broken_off, str(tmp_path), deadline=30) == [1.0, 1.0]


def abort_within_a_collective(world: ProcessGroups, folder: str) -> list[str]:
    """An aborted NCCL kernel just ends: here the collective of a vote and the wait of a ring return as if all were well."""
    leave_world()
    aborter = WorldAborter()
    aborted = ProcessGroups(dist.FileStore(f"{folder}/aborted", 1), 0, 1, CPU, aborter.is_aborted)
    gather, errors = dist.all_gather_into_tensor, []
    assert aborted.scalars([3.0]) == [[3.0]]
    transfer = aborted.exchange((0,)).start([], [])
    transfer.wait()
    dist.all_gather_into_tensor = lambda *args, **more: (gather(*args, **more), aborter.abort_world())
    try:
        for use in (lambda: aborted.scalars([3.0]), transfer.wait):
            with pytest.raises(RuntimeError, match="the world was aborted") as raised:
                use()
            errors.append(str(raised.value))
    finally:
        dist.all_gather_into_tensor = gather
    aborter.begin()
    assert not aborter.is_aborted()
    return errors


def test_what_a_collective_returns_that_an_abort_cut_short_is_discarded(tmp_path: Path) -> None:
    ((first, second),) = run_ranks(1, abort_within_a_collective, str(tmp_path))
    assert first == second == "the world was aborted: what its collectives returned is discarded"


def test_torchs_watchdog_leaves_the_end_of_a_world_to_the_abort(tmp_path: Path) -> None:
    """Its default ends the process, which is to join the next world."""
    (found,) = run_ranks(1, error_handling)
    assert found == {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_BLOCKING_WAIT": "0", "TORCH_NCCL_ENABLE_MONITORING": "0",
    }  # fmt: skip


def error_handling(_: ProcessGroups) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("TORCH_NCCL_")}


def test_an_abort_ends_the_wait_for_a_key_that_no_rank_sets(tmp_path: Path) -> None:
    """The store of rank 0 waits for the others for minutes."""
    aborter = WorldAborter()
    store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    timer = threading.Timer(0.3, aborter.abort_world)
    timer.start()
    with pytest.raises(RuntimeError):
        store.get("a key that no rank sets")
    timer.join()


class Counted(socket.socket):
    """Counts the reads that have begun."""

    begun: threading.Semaphore

    def recv(self, size: int, flags: int = 0) -> bytes:
        self.begun.release()
        return super().recv(size, flags)


class Agent:
    """The agent's end of the socket for assignments."""

    def __init__(self) -> None:
        self.channel, mine = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._reads = threading.Semaphore(0)
        theirs = Counted(fileno=mine.detach())
        theirs.begun = self._reads
        self.aborted = threading.Event()
        self.held: tuple[Held, ...] = ()
        self.assignments = AssignmentChannel(theirs, self.aborted.set, lambda: self.held)

    def assign(self, generation: int) -> None:
        self.channel.send(msgspec.json.encode(Assignment(generation, 0)))

    def leave(self, generation: int) -> None:
        self.channel.send(msgspec.json.encode(Leave(generation)))

    def reads(self, orders: int) -> bool:
        """Whether the worker begins to read so many orders, each once it has handled the one before."""
        return all(self._reads.acquire(timeout=10) for _ in range(orders))

    def hears(self) -> Assignment | Leaving | Left:
        self.channel.settimeout(10)
        return msgspec.json.decode(self.channel.recv(4096), type=Assignment | Leaving | Left)

    def said(self) -> Assignment | Leaving | Left:
        """But for the answer of one that is to leave and still computes."""
        while isinstance(found := self.hears(), Leaving):
            pass
        return found

    def answer(self) -> int:
        self.channel.settimeout(10)
        return int(json.loads(self.channel.recv(4096))["generation"])

    def close(self) -> None:
        self.assignments.close()
        self.channel.close()


@pytest.fixture
def agent():
    agent = Agent()
    yield agent
    agent.close()


def test_a_world_is_aborted_only_when_it_is_over_and_the_worker_acknowledges_each_assignment(agent: Agent) -> None:
    agent.assign(1)
    assert agent.assignments.next(10) == Assignment(1, 0)
    assert not agent.aborted.is_set()
    agent.assign(2)
    assert agent.aborted.wait(10)
    assert agent.assignments.next(10) == Assignment(2, 0)
    assert [agent.answer(), agent.answer()] == [1, 2]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_waits_for_no_world_that_it_could_not_hear_of(agent: Agent) -> None:
    agent.channel.send(b"no order")
    assert agent.assignments.next(600) is None


@pytest.mark.parametrize("held", [(Held(0, 1, 0, 5),), ()])
def test_a_worker_that_holds_state_and_is_to_leave_answers_at_once_whatever_it_computes(
    agent: Agent, held: tuple[Held, ...]
) -> None:
    agent.held = held
    agent.assign(1)
    assert agent.assignments.next(10) == agent.hears() == Assignment(1, 0)
    agent.leave(1)
    assert agent.aborted.wait(10)
    agent.assignments.step_out()
    agent.assignments.leave()
    assert (not held or agent.hears() == Leaving(1)) and agent.hears() == Left(1, held)


def test_a_worker_that_is_to_leave_before_it_waits_for_its_first_world_says_so_and_joins_the_next(agent: Agent) -> None:
    """It still opens its store when the world that it is sent into is lost."""
    worker = agent.assignments
    agent.assign(1)
    agent.leave(1)
    assert agent.reads(3), "the worker has handled both"
    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(worker.next, 10)
        assert agent.said() == Left(0, ())
        agent.assign(2)
        assert following.result(10) == Assignment(2, 0) == agent.said()


def test_a_worker_says_once_that_it_has_left_a_world_with_the_reason_that_it_had(agent: Agent) -> None:
    """The order to leave comes behind its own word of it: without the reason, the cause of the loss would be another."""
    worker = agent.assignments
    agent.assign(1)
    worker.next(10)
    worker.step_out()
    worker.leave("shapes do not match")
    assert [agent.said(), agent.said()] == [Assignment(1, 0), Left(1, (), "shapes do not match")]
    agent.leave(1)
    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(worker.next, 10)
        agent.assign(2)
        assert following.result(10) == Assignment(2, 0) == agent.said()


def test_a_worker_whose_agent_is_gone_leaves_without_a_word_and_gets_no_other_world(agent: Agent) -> None:
    agent.assign(1)
    agent.assignments.next(10)
    agent.channel.close()
    agent.assignments.step_out()
    agent.assignments.leave("the agent is gone")
    assert agent.assignments.next(600) is None


def test_a_worker_whose_world_broke_joins_the_next_and_ends_when_there_is_none(agent: Agent) -> None:
    seen = []

    def train(assignment: Assignment) -> int:
        seen.append(assignment.generation)
        if assignment.generation == 1:
            agent.assign(2)
        raise RuntimeError("shapes do not match")

    agent.assign(1)
    with pytest.raises(Retryable, match="rank 0: shapes do not match"):
        run_worlds(agent.assignments, WorldAborter(), train, next_world_seconds=0.2)
    assert seen == [1, 2]


def run_beside(
    order: Callable[[], None], agent: Agent, train: Callable[[Assignment], int | None], aborter: WorldAborter | None = None,
    *, next_world_seconds: float,
) -> int:  # fmt: skip
    """The worker's worlds in this thread, what its agent does in another one."""
    thread = threading.Thread(target=order)
    thread.start()
    code = run_worlds(agent.assignments, aborter or WorldAborter(), train, next_world_seconds=next_world_seconds)
    thread.join()
    return code


def test_a_worker_that_has_lost_its_peers_says_so_and_waits_as_long_as_its_agent_is_there(agent: Agent) -> None:
    agent.held = (Held(0, 1, 0, 5),)
    words = "[pair.cc:538] gloo/transport/tcp Connection closed by peer"

    def train(assignment: Assignment) -> int:
        if assignment.generation == 1:
            raise RuntimeError(words)
        return 0

    def order() -> None:
        assert agent.said() == Assignment(1, 0)
        said.append(agent.said())
        agent.leave(1)
        agent.assign(2)

    said: list[Assignment | Leaving | Left] = []
    agent.assign(1)
    assert run_beside(order, agent, train, next_world_seconds=0) == 0
    assert said == [Left(1, agent.held, words)]


def test_a_worker_that_is_asked_to_leave_after_an_error_of_its_own_says_what_it_holds_and_waits(agent: Agent) -> None:
    def train(assignment: Assignment) -> int:
        if assignment.generation == 1:
            agent.leave(1)
            raise RuntimeError("shapes do not match")
        return 0

    def order() -> None:
        said.extend([agent.said(), agent.said()])
        agent.assign(2)

    said: list[Assignment | Leaving | Left] = []
    agent.assign(1)
    assert run_beside(order, agent, train, next_world_seconds=10) == 0
    assert said == [Assignment(1, 0), Left(1, (), fault="shapes do not match")]
    agent.assignments.step_out()
    agent.assignments.leave()
    assert [agent.said(), agent.said()] == [Assignment(2, 0), Left(2, ())], "the fault is of one world"


def too_large() -> None:
    torch.empty(1 << 60, dtype=torch.uint8)


def without_memory() -> None:
    bytearray(1 << 62)


def without_device_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.parametrize("allocate", [too_large, without_memory, without_device_memory])
@pytest.mark.parametrize("over", [True, False])
def test_a_worker_without_memory_names_the_ways_out_although_its_peers_end_the_world_first(
    agent: Agent, allocate: Callable[[], None], over: bool
) -> None:
    aborter = WorldAborter()

    def train(assignment: Assignment) -> int:
        if assignment.generation == 2:
            return 0
        agent.leave(1)
        if over:
            aborter.abort_world()
        allocate()
        return 1

    def order() -> None:
        said.extend([agent.said(), agent.said()])
        agent.assign(2)

    said: list[Assignment | Leaving | Left] = []
    agent.assign(1)
    assert run_beside(order, agent, train, aborter, next_world_seconds=10) == 0
    (left,) = (s for s in said if isinstance(s, Left))
    ways = "out of memory; lower hybridData.tokensPerReplica, or set recompute: Full or offload: Auto"
    assert left.fault.startswith(ways) and not left.why


def test_a_worker_without_memory_and_without_peers_ends_with_the_ways_out(agent: Agent) -> None:
    def train(_: Assignment) -> int:
        too_large()
        return 0

    agent.assign(1)
    with pytest.raises(Retryable, match=r"rank 0: out of memory; lower hybridData\.tokensPerReplica"):
        run_worlds(agent.assignments, WorldAborter(), train, next_world_seconds=0)


def test_a_worker_that_is_asked_to_leave_is_aborted_until_it_has_left_and_says_what_it_holds(agent: Agent) -> None:
    aborter = WorldAborter()
    agent.held = (Held(0, 1, 0, 5, "Agreed", (1,)),)

    def train(assignment: Assignment) -> int:
        if assignment.generation == 2:
            return 0
        agent.leave(1)
        assert agent.aborted.wait(10)
        aborter.abort_world()
        raise RuntimeError("cut")

    def order() -> None:
        assert agent.said() == Assignment(1, 0)
        assert agent.said() == Left(1, agent.held)
        agent.assign(2)

    agent.assign(1)
    assert run_beside(order, agent, train, aborter, next_world_seconds=0) == 0


@pytest.mark.parametrize("error", [ValueError("Invalid process group"), KeyError("a group that is aborted")])
@pytest.mark.parametrize("aborted", [True, False])
def test_a_group_that_is_used_while_it_is_aborted_breaks_the_world_and_any_other_wrong_value_the_worker(
    agent: Agent, aborted: bool, error: Exception
) -> None:
    """torch forgets an aborted NCCL group: it raises ValueError where that is used, and KeyError in the midst of it."""
    aborter = WorldAborter()

    def train(assignment: Assignment) -> int:
        if assignment.generation == 2:
            return 0
        if aborted:
            aborter.abort_world()
            agent.assign(2)
        raise error

    agent.assign(1)
    if aborted:
        assert run_worlds(agent.assignments, aborter, train) == 0
        return
    with pytest.raises(type(error)):
        run_worlds(agent.assignments, aborter, train)


def test_an_abort_that_torch_cannot_end_raises_nothing_in_the_thread_that_hears_orders_and_cuts_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken() -> None:
        raise KeyError("pg_coalesce_state")

    listener, aborter = socket.create_server(("127.0.0.1", 0)), WorldAborter()
    connection = socket.create_connection(listener.getsockname())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist.distributed_c10d, "_abort_process_group", broken)
    aborter.abort_world()
    with pytest.raises(OSError, match=os.strerror(32)):
        connection.send(b"x")
    assert aborter.is_aborted() and aborter.is_over()
    connection.close()
    listener.close()


@pytest.mark.parametrize("error", [Retryable("no data")])
def test_an_error_of_ours_that_breaks_the_last_world_is_raised_as_it_is(agent: Agent, error: Exception) -> None:
    def train(_: Assignment) -> int:
        raise error

    agent.assign(1)
    with pytest.raises(type(error)) as raised:
        run_worlds(agent.assignments, WorldAborter(), train, next_world_seconds=0)
    assert raised.value is error


def test_a_refusal_ends_the_worker_although_another_world_follows(agent: Agent) -> None:
    def train(assignment: Assignment) -> int:
        agent.assign(assignment.generation + 1)
        raise Refused("SourceChanged", "it is another")

    agent.assign(1)
    with pytest.raises(Refused):
        run_worlds(agent.assignments, WorldAborter(), train)


@pytest.mark.parametrize("generation", [1, 2])
def test_an_assignment_to_this_world_or_an_older_one_is_not_taken_and_aborts_nothing(
    agent: Agent, generation: int
) -> None:
    agent.assign(2)
    assert agent.assignments.next(10) == Assignment(2, 0)
    agent.assign(generation)
    assert agent.assignments.next(0.2) is None
    assert not agent.aborted.is_set()


def test_only_connections_opened_since_the_world_began_are_cut() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    before = socket.create_connection(listener.getsockname())
    aborter = WorldAborter()
    after = socket.create_connection(listener.getsockname())
    ours, theirs = socket.socketpair()
    aborter.abort_world()
    try:
        assert before.send(b"x") == ours.send(b"x") == 1
        with pytest.raises(OSError, match=os.strerror(32)):
            after.send(b"x")
        socket.create_connection(listener.getsockname()).close()
    finally:
        for each in (listener, before, after, ours, theirs):
            each.close()
