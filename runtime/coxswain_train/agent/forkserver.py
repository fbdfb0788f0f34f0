"""The mold of a trainer's workers: it has imported what they need once, and forks one of them whenever the agent asks.

Run as `python -m coxswain_train.agent.forkserver MODULE`, with a socket to the agent as standard input.
A worker is `MODULE.work()`.
Importing torch takes seconds; a fork takes none. The mold has no threads, so forking is safe.
"""

from __future__ import annotations

import gc
import importlib
import os
import selectors
import socket
import sys
from collections.abc import Callable
from typing import NoReturn

import msgspec

from coxswain import names
from coxswain_link.environment import die_with_parent, leave
from coxswain_train.worker.assignments import ENV_CHANNEL

MESSAGE = 64 << 10  # bytes


class ForkRequest(msgspec.Struct, frozen=True, tag=True):
    """To the mold, with two descriptors: the file for the last words (they are not the pod's), and the socket for orders."""

    environment: dict[str, str]


class Forked(msgspec.Struct, frozen=True, tag=True):
    """From the mold, with the worker's pidfd. Answers come in the order of the wishes."""

    pid: int


class Exited(msgspec.Struct, frozen=True, tag=True):
    """From the mold: a worker ended."""

    pid: int
    exit_code: int  # negative: killed by that signal


def main(module: str) -> int:
    """Serves the agent until it goes away; then the kernel ends the workers, whose parent this is."""
    die_with_parent()
    agent = socket.socket(fileno=os.dup(0))
    work: Callable[[], NoReturn] = importlib.import_module(module).work
    gc.freeze()  # no collection in a worker touches, and so copies, the pages that all share
    with selectors.DefaultSelector() as ready, agent:
        ready.register(agent, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.data is not None:
                    _reap(agent, ready, key.fd, key.data)
                elif not _serve(agent, ready, work):
                    return 0


def _serve(agent: socket.socket, ready: selectors.BaseSelector, work: Callable[[], NoReturn]) -> bool:
    """Forks the worker that the agent wants. False: the agent is gone."""
    message, descriptors, _, _ = socket.recv_fds(agent, MESSAGE, 2, socket.MSG_CMSG_CLOEXEC)
    if not message:
        return False
    wanted = msgspec.json.decode(message, type=ForkRequest)
    me, pid = os.getpid(), os.fork()
    if pid == 0:
        agent.close()
        ready.close()
        _init_child(wanted, descriptors, me)
        work()
    for descriptor in descriptors:
        os.close(descriptor)
    handle = os.pidfd_open(pid)
    ready.register(handle, selectors.EVENT_READ, pid)
    socket.send_fds(agent, [msgspec.json.encode(Forked(pid))], [handle])
    return True


def _init_child(wanted: ForkRequest, descriptors: list[int], fork_server: int) -> None:
    """In the fork: another environment, and an end with the mold's."""
    die_with_parent()
    if os.getppid() != fork_server:
        leave(1)
    fault, channel = descriptors
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.environ.update(wanted.environment)
    os.environ.update({names.ENV_TERMINATION_LOG: f"/proc/self/fd/{fault}", ENV_CHANNEL: str(channel)})


def _reap(agent: socket.socket, ready: selectors.BaseSelector, handle: int, pid: int) -> None:
    _, status = os.waitpid(pid, 0)
    ready.unregister(handle)
    os.close(handle)
    agent.send(msgspec.json.encode(Exited(pid, os.waitstatus_to_exitcode(status))))


if __name__ == "__main__":
    leave(main(sys.argv[1]))
