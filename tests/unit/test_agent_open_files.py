"""An agent, or its fork server, that may open no more files says so, and what was forked meanwhile ends."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coxswain.errors import Retryable
from coxswain_train.agent import agent
from coxswain_train.agent.processes import ForkServer, WorkerHandle
from tests.unit.agent_fakes import environment, is_alive, wait_until
from tests.unit.open_files import alone, files_left

MODULE = """
import os, pathlib, resource, socket
def work():
    pathlib.Path({folder!r}, str(os.getpid())).touch()
    socket.socket(fileno=int(os.environ["COXSWAIN_ORDERS"])).recv(1)
    os._exit(0)
free = os.dup(0)
os.close(free)
if {left} >= 0:
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + {left}, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
"""
SAYS = (
    r"no process can be forked: {} may open no more files \(limit \d+, `ulimit -n`\): "
    r"raise it .*, or lower trainers\.devicesPerTrainer"
)


@contextmanager
def forking(left: int = -1) -> Iterator[tuple[ForkServer, Path]]:
    """A fork server that is not started, and the folder into which its workers write their pid. `left`: files that it may open
    besides its epoll and its copy of the channel."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "small_worker.py").write_text(MODULE.format(folder=folder, left=left + 1 if left >= 0 else left))
        head = f"import sys; sys.path.insert(0, {folder!r}); sys.argv[1:] = ['small_worker']"
        start = f"{head}; from coxswain_train.agent import forkserver; forkserver.main('small_worker')"
        yield ForkServer((sys.executable, "-c", start), os.environ), Path(folder)


async def ready(server: ForkServer) -> None:
    await server.warm()
    await asyncio.wait_for(server.known.wait(), 30)
    await server.check()


def pids(folder: Path) -> list[int]:
    return [int(file.name) for file in folder.iterdir() if file.name.isdecimal()]


def test_an_agent_that_cannot_take_the_handle_of_a_fork_says_why_and_the_fork_ends() -> None:
    alone(cannot_take_the_handle)


def cannot_take_the_handle() -> None:
    asyncio.run(_cannot_take_the_handle())


async def _cannot_take_the_handle() -> None:
    """Three files for each of two forks, of which both close one, and one more for their two handles."""
    with forking() as (server, folder):
        await ready(server)
        try:
            with files_left(5):
                both = asyncio.gather(server.fork(0, {}), server.fork(1, {}), return_exceptions=True)
                first, second = await asyncio.wait_for(both, 20)
            assert isinstance(first, WorkerHandle)
            assert isinstance(second, Retryable)
            assert re.fullmatch(SAYS.format("this agent"), str(second))
            wait_until(lambda: len(pids(folder)) == 2)
            wait_until(lambda: len([pid for pid in pids(folder) if is_alive(pid)]) == 1)
            assert first.is_running
            third = await asyncio.wait_for(server.fork(1, {}), 20)
            assert third.is_running
        finally:
            await server.end()


@pytest.mark.parametrize("left", [0, 1, 2])
def test_an_agent_that_may_open_no_file_for_a_fork_says_so_and_keeps_none_open(left: int) -> None:
    alone(may_open_no_file, left)


def may_open_no_file(left: int) -> None:
    asyncio.run(_may_open_no_file(left))


async def _may_open_no_file(left: int) -> None:
    with forking() as (server, _):
        await ready(server)
        try:
            with files_left(left):
                for _ in range(2):
                    with pytest.raises(Retryable, match=SAYS.format("this agent")):
                        await asyncio.wait_for(server.fork(0, {}), 20)
                    held = [os.dup(2) for _ in range(left)]
                    for descriptor in held:
                        os.close(descriptor)
        finally:
            await server.end()


@pytest.mark.parametrize("left", [0, 1, 2])
async def test_a_fork_server_that_may_open_no_more_files_refuses_the_fork_and_says_so(left: int) -> None:
    """Two are the worker's own; the third is its handle."""
    with forking(left) as (server, folder):
        await ready(server)
        try:
            with pytest.raises(Retryable, match=SAYS.format("the fork server")):
                await asyncio.wait_for(server.fork(0, {}), 20)
            assert not [pid for pid in pids(folder) if is_alive(pid)]
        finally:
            await server.end()


def test_an_agent_raises_its_limit_of_open_files_and_so_that_of_its_workers_as_far_as_it_may() -> None:
    alone(raises_its_limit)


def raises_its_limit() -> None:
    async def serve(_: object) -> int:
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    agent.serve = serve  # type: ignore[assignment]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    assert agent.main(environment()) == hard
