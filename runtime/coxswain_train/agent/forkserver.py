"""The fork server of a trainer's workers: it imports what they need once, and forks a worker at each request of the agent.

Run as `python -m coxswain_train.agent.forkserver MODULE`, with a socket to the agent as standard input.
A worker is `MODULE.work()`; a request may name another module.
Importing torch takes seconds; a fork takes none. The fork server has no threads, so forking is safe.
"""

from __future__ import annotations

import gc
import importlib
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

import msgspec

from coxswain import names
from coxswain.structs import prepare
from coxswain_link.environment import end_with_parent, leave, why_not
from coxswain_train.worker.assignments import ENV_CHANNEL

MESSAGE = 64 << 10  # bytes


class ForkRequest(msgspec.Struct, frozen=True, tag=True):
    """To the fork server, with two descriptors: the worker's own fault file, and its socket for assignments."""

    environment: dict[str, str]
    module: str = ""  # another one with a `work`; empty: the worker's


class Ready(msgspec.Struct, frozen=True, tag=True):
    """From the fork server, once: what workers import is there, and a fork takes milliseconds."""


class Forked(msgspec.Struct, frozen=True, tag=True):
    """From the fork server, with the worker's pidfd. Answers come in the order of the requests."""

    pid: int


class NotForked(msgspec.Struct, frozen=True, tag=True):
    """From the fork server, in place of `Forked`: the system has refused it."""

    why: str


class Exited(msgspec.Struct, frozen=True, tag=True):
    """From the fork server: a worker ended."""

    pid: int
    exit_code: int  # negative: killed by that signal


def main(module: str) -> int:
    """Serves the agent until it ends. The workers are children of this process, so the kernel then ends them."""
    end_with_parent()
    agent = socket.socket(fileno=os.dup(0))
    gc.disable()  # of a hundred thousand new objects, imports leave none to collect: a fifth of their time
    work: Callable[[], NoReturn] = importlib.import_module(module).work
    gc.enable()
    gc.freeze()  # no collection in a worker touches, and so copies, the pages that all share
    with suppress(OSError):  # the agent is gone: the loop below ends
        agent.send(msgspec.json.encode(Ready()))
    with selectors.DefaultSelector() as ready, agent:
        ready.register(agent, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.data is not None:
                    _reap(agent, ready, key.fd, key.data)
                elif not _serve(agent, ready, work):
                    return 0


def _serve(agent: socket.socket, ready: selectors.BaseSelector, work: Callable[[], NoReturn]) -> bool:
    """Forks the worker that the agent requests. False: the agent is gone."""
    message, descriptors, _, _ = socket.recv_fds(agent, MESSAGE, 2, socket.MSG_CMSG_CLOEXEC)
    if not message:
        return False
    request = msgspec.json.decode(message, type=ForkRequest)
    me = os.getpid()
    try:
        pid, handle = _fork()
    except OSError as error:  # as many processes as a pod may have, or no memory: the workers that run go on
        agent.send(msgspec.json.encode(NotForked(why_not("the fork server", error))))
        return True
    finally:
        if os.getpid() == me:
            for descriptor in descriptors:
                os.close(descriptor)
    if pid == 0:
        agent.close()
        ready.close()
        _init_child(request, descriptors, me)
        (importlib.import_module(request.module).work if request.module else work)()
    ready.register(handle, selectors.EVENT_READ, pid)
    socket.send_fds(agent, [msgspec.json.encode(Forked(pid))], [handle])
    return True


def _fork() -> tuple[int, int]:
    """The pid and pidfd of a child; in the child (0, -1)."""
    pid = os.fork()
    if pid == 0:
        return 0, -1
    try:
        return pid, os.pidfd_open(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _init_child(request: ForkRequest, descriptors: list[int], fork_server: int) -> None:
    """Makes the fork a worker: it has its own environment, and ends with the fork server."""
    end_with_parent()
    if os.getppid() != fork_server:
        leave(1)
    fault_file, channel = descriptors
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.environ.update(request.environment)
    os.environ.update({names.ENV_TERMINATION_LOG: f"/proc/self/fd/{fault_file}", ENV_CHANNEL: str(channel)})


def _reap(agent: socket.socket, ready: selectors.BaseSelector, handle: int, pid: int) -> None:
    _, status = os.waitpid(pid, 0)
    ready.unregister(handle)
    os.close(handle)
    agent.send(msgspec.json.encode(Exited(pid, os.waitstatus_to_exitcode(status))))


prepare(__name__)

if __name__ == "__main__":
    leave(main(sys.argv[1]))
