"""The fork server imports once what workers need, forks a worker for each request, and says how each ends."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coxswain_link.environment import no_more_files
from coxswain_train.agent.forkserver import MESSAGE, Exited, Forked, ForkRequest, NotForked, Ready
from tests.unit.agent_fakes import is_alive, wait_until

REPORTS = """
import gc, json, os, socket, sys
from pathlib import Path
IMPORTED_BY, COLLECTS = os.getpid(), gc.isenabled()
def work():
    channel = socket.socket(fileno=int(os.environ["COXSWAIN_ORDERS"]))
    Path(os.environ["COXSWAIN_TERMINATION_LOG"]).write_text("fault")
    said = {
        "environment": dict(os.environ), "imported_by": IMPORTED_BY, "pid": os.getpid(), "parent": os.getppid(),
        "collected": [COLLECTS, gc.isenabled(), gc.get_freeze_count() > 0],
        "input": os.readlink("/proc/self/fd/0"), "open": len(os.listdir("/proc/self/fd")),
    }
    channel.send(json.dumps(said).encode())
    channel.recv(64)
    os._exit(7)
"""
OTHER = """
import os
def work():
    os._exit(9)
"""
MAIN = "from coxswain_train.agent import forkserver; raise SystemExit(forkserver.main('reports'))"


def environment(folder: Path) -> dict[str, str]:
    """Of a process that can import what is in the folder."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), *sys.path))}


class Server(ExitStack):
    """A fork server with this process as its agent. `close` ends it, and closes what the test has of its workers."""

    def __init__(self, folder: Path, first: str = "") -> None:
        super().__init__()
        for name, text in (("reports", REPORTS), ("other", OTHER)):
            (folder / f"{name}.py").write_text(text)
        self.agent, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.agent.settimeout(30)
        self.enter_context(self.agent)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", f"{first}\n{MAIN}"], stdin=theirs.fileno(), env=environment(folder)
            )
        self.callback(self.process.wait, 30)
        self.callback(self.process.kill)

    def hear(self) -> Any:
        message, handles, _, _ = socket.recv_fds(self.agent, MESSAGE, 1)
        for handle in handles:
            self.callback(os.close, handle)
        return msgspec.json.decode(message, type=Ready | Forked | NotForked | Exited)

    def request(self, module: str = "", **environment: str) -> tuple[int, socket.socket]:
        """Sends a request; returns the fault file and our end of the worker's channel."""
        fault, (ours, theirs) = os.memfd_create("fault"), socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(30)
        with theirs:
            request = msgspec.json.encode(ForkRequest(environment, module))
            socket.send_fds(self.agent, [request], [fault, theirs.fileno()])
        self.callback(os.close, fault)
        return fault, self.enter_context(ours)

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def children(self) -> list[str]:
        return Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()


def started(folder: Path, first: str = "") -> Server:
    server = Server(folder, first)
    assert server.hear() == Ready()
    return server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with started(tmp_path) as server:
        yield server


def test_a_worker_is_a_fork_with_its_own_environment_its_fault_file_and_its_channel_alone(server: Server) -> None:
    fault, channel = server.request(RANK="3")
    pid = server.hear().pid
    said = json.loads(channel.recv(1 << 20))
    assert (said["pid"], said["parent"], said["imported_by"]) == (pid, server.process.pid, server.process.pid)
    assert said["environment"]["RANK"] == "3" and said["environment"]["PATH"] == os.environ["PATH"]
    assert os.pread(fault, 100, 0) == b"fault"
    assert said["input"] == "/dev/null"
    assert said["open"] == 6  # input, output, errors, the fault file, the channel, and the folder that it reads


def test_the_modules_of_workers_are_imported_without_collections_and_kept_out_of_those_of_workers(
    server: Server,
) -> None:
    """A collection writes to each object that it looks at, and so copies the pages that all workers share."""
    _, channel = server.request()
    assert json.loads(channel.recv(1 << 20))["collected"] == [False, True, True]


def test_the_end_of_each_worker_is_said_with_its_pid_and_its_exit_code_or_signal(server: Server) -> None:
    (_, first), (_, second) = server.request(), server.request()
    pids = [server.hear().pid, server.hear().pid]
    first.recv(1 << 20), second.recv(1 << 20)
    os.kill(pids[1], 9)
    assert server.hear() == Exited(pids[1], -9)
    first.send(b"end")
    assert server.hear() == Exited(pids[0], 7)


def test_a_request_may_name_the_work_of_another_module(server: Server) -> None:
    server.request("other")
    pid = server.hear().pid
    assert server.hear() == Exited(pid, 9)


OPEN = 5  # input, output, errors, the agent, and the selector


def test_a_fork_server_keeps_nothing_open_of_workers_that_have_ended(server: Server) -> None:
    for _ in range(3):
        server.request("other")
        assert [type(server.hear()), type(server.hear())] == [Forked, Exited]
    assert (server.open_files(), server.children()) == (OPEN, [])


def test_a_fork_server_that_may_not_watch_its_fork_ends_it_and_keeps_nothing_of_it(tmp_path: Path) -> None:
    refuses = "import os\ndef refuse(_): raise OSError(24, 'Too many open files')\nos.pidfd_open = refuse"
    with started(tmp_path, refuses) as server:
        for _ in range(2):
            server.request()
            assert server.hear() == NotForked(no_more_files("the fork server"))
            assert server.children() == []
        wait_until(lambda: server.open_files() == OPEN)


def test_a_fork_server_whose_agent_is_gone_ends_well_and_its_workers_with_it(server: Server) -> None:
    _, channel = server.request()
    pid = server.hear().pid
    channel.recv(1 << 20)
    server.agent.shutdown(socket.SHUT_RDWR)
    assert server.process.wait(30) == 0
    wait_until(lambda: not is_alive(pid))


AGENT = """
import signal, socket, subprocess, sys
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=theirs)
signal.pause()
"""


AS_LATE_AS_ITS_END = """
import os
fork, server = os.fork, os.getpid()
def late():
    pid = fork()
    while pid == 0 and os.getppid() == server:
        os.sched_yield()
    return pid
os.fork = late
"""


def test_a_worker_whose_fork_server_ends_before_it_has_begun_ends_too(tmp_path: Path) -> None:
    """The kernel kills with a parent only those that have asked for it before."""
    with started(tmp_path, AS_LATE_AS_ITS_END) as server:
        server.request()
        pid = server.hear().pid
        server.process.kill()
        server.process.wait(30)
        wait_until(lambda: not is_alive(pid))


def test_a_fork_server_ends_with_its_agent_even_while_it_imports(tmp_path: Path) -> None:
    """The kernel ends it: an import of seconds does not look at the socket."""
    noted = tmp_path / "pid"
    (tmp_path / "reports.py").write_text(
        f"import os, signal\nopen({str(noted)!r}, 'w').write(str(os.getpid()))\nsignal.pause()"
    )
    agent = subprocess.Popen([sys.executable, "-c", AGENT, MAIN], env=environment(tmp_path))
    try:
        wait_until(lambda: noted.exists() and noted.read_text())
    finally:
        agent.kill()
        agent.wait(30)
    wait_until(lambda: not is_alive(int(noted.read_text())))
