"""Starts, watches and ends one process, which never outlives this one.

Linux only: pidfd and PR_SET_PDEATHSIG.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LOOKS = 10  # a process that SIGKILL does not end at once is found again
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Command:
    """Program, folder and log file of a process. `keep`: file descriptors that it inherits."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    folder: Path
    log: Path
    keep: tuple[int, ...] = ()


class Process:
    """One running process, leader of its own group."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self.pid = popen.pid
        self._popen = popen
        self._pidfd = os.pidfd_open(popen.pid)
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[int] = self._loop.create_future()
        self._loop.add_reader(self._pidfd, self._reap)

    async def wait(self) -> int:
        """Returns the exit code; negative: killed by that signal."""
        return await asyncio.shield(self._exit)

    @property
    def alive(self) -> bool:
        return not self._exit.done()

    async def stop(self, grace: float) -> int:
        """Sends SIGTERM to the process and, after the grace (seconds), SIGKILL to its group."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
            await asyncio.wait([self._exit], timeout=grace)
        if self.alive:
            self._kill_group()
        return await self.wait()

    def _reap(self) -> None:
        """Kills the rest of the process's group, as a container's end does.

        Before the wait, since the kernel may reuse the pid after it.
        """
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._kill_group()
        self._exit.set_result(self._popen.wait())

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def kill_those_with(folder: Path, variables: Collection[str]) -> None:
    """Sends SIGKILL to each process that began with one of these (`NAME=value`), and this folder as PWD, in its environment.

    No group holds what a process has put in a session of its own. It may start others meanwhile: another look finds those.
    """
    marks = {os.fsencode(variable) for variable in variables}
    for _ in range(_LOOKS if marks else 0):
        if not sum(_kill_if_marked(int(entry.name), folder, marks) for entry in Path("/proc").glob("[0-9]*")):
            return


def _kill_if_marked(pid: int, folder: Path, marks: set[bytes]) -> bool:
    """By a handle: another process may have that pid by now."""
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if os.fsencode(f"PWD={folder}") in variables and not marks.isdisjoint(variables):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                return True
        finally:
            os.close(handle)
    return False


def spawn(command: Command) -> Process:
    """Starts a process that the kernel kills when this one ends.

    Raises OSError when the program cannot be started. The parent-death signal belongs to the
    spawning *thread*, so only the main thread may spawn: it runs as long as the process.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("containers are spawned from the main thread only")
    parent = os.getpid()
    command.log.parent.mkdir(parents=True, exist_ok=True)
    with command.log.open("ab") as log:
        popen = subprocess.Popen(
            command.argv,
            env=command.environment,
            cwd=command.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=command.keep,
            preexec_fn=lambda: _kill_with(parent),  # safe: the cluster has no thread that could hold a lock now
        )
    try:
        return Process(popen)
    except OSError:  # it could not be watched, and would run beside its successor
        popen.kill()
        popen.wait()
        raise


def _kill_with(parent: int) -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the prctl
        os._exit(1)
