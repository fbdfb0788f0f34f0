"""Servers that tests start: their binaries, an address of their own, and a certain end."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from e2e.tools.build import BIN, is_current
from e2e.tools.other_kubernetes import SERVERS, VARIABLE, chosen, folder

REPOSITORY = Path(__file__).resolve().parents[2]
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)

Argument = str | Path


class NotBuilt(RuntimeError):
    """A pinned tool has no current binary, and only a command builds one: a build takes minutes."""


def binary(name: str) -> Path:
    """The pinned tool `name`, or a server of the release that COXSWAIN_KUBERNETES names. Raises NotBuilt with the command that
    builds it."""
    if (release := chosen()) and name in SERVERS:
        return _other(release, name)
    if not is_current(name):
        raise NotBuilt(f"{name} is not built: run `{sys.executable} -m e2e.tools.build {name}` in {REPOSITORY}")
    return BIN / name


def _other(release: str, name: str) -> Path:
    found = folder(release) / name
    if not found.exists():
        command = f"{sys.executable} -m e2e.tools.other_kubernetes {release}"
        raise NotBuilt(f"{name} {release} ({VARIABLE}) is not built: run `{command}` in {REPOSITORY}")
    return found


def own_address() -> str:
    """A loopback address made from this process's id: no other running process uses its ports."""
    pid = os.getpid()
    return f"127.{192 + (pid >> 16 & 63)}.{pid >> 8 & 255}.{pid & 255}"


class ReservedPort:
    """A port that the kernel chose, and gives to no other socket while this object exists.

    Only a server that sets SO_REUSEADDR, as those written in Go do, can listen on it: the port is
    bound, but not listened on.
    """

    def __init__(self, address: str) -> None:
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind((address, 0))
        self.number: int = self._held.getsockname()[1]

    def __del__(self) -> None:
        self._held.close()


def accepts(address: str, port: int) -> bool:
    """Whether something listens there.

    An address that cannot be reached (yet) is a no within a second.
    """
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((address, port)) == 0


def wait_until(ready: Callable[[], bool], what: str, deadline: float = 30.0) -> None:
    """Returns when `ready()` does; raises TimeoutError naming `what` after `deadline` seconds."""
    end = time.monotonic() + deadline
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError(f"after {deadline:g} s still waiting for {what}")
        time.sleep(0.02)


def end_with_parent() -> None:
    """For `preexec_fn`: SIGKILL when the thread that spawned us ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Child:
    """A server process in a group of its own, with its output in a file.

    SIGKILL of the tests kills it as well.

    Start it from the main thread: the parent-death signal follows the thread that spawned. With
    `outlives` only its own end or `stop` ends it: for processes that end with their namespace.
    """

    def __init__(
        self, command: Sequence[Argument], log: Path, env: dict[str, str] | None = None, *, outlives: bool = False
    ) -> None:
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=env,
                start_new_session=True, preexec_fn=None if outlives else end_with_parent,
            )  # fmt: skip

    def wait_until(self, ready: Callable[[], bool], deadline: float = 60.0) -> None:
        """Returns when `ready()` does; raises RuntimeError with the log's tail when the process
        ends or time runs out.
        """
        end = time.monotonic() + deadline
        while not ready():
            if self.process.poll() is not None or time.monotonic() > end:
                tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
                raise RuntimeError(f"{self.process.args!r} is not ready, exit code {self.process.poll()}:\n{tail}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Kills the whole group: these servers have nothing to save."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
