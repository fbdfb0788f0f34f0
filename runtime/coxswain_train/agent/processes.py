"""The agent's workers: forked from a mold, ordered from world to world, and ended. No torch here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from coxswain.errors import Retryable
from coxswain.layout import Seat
from coxswain.wire import Fault
from coxswain_link.environment import die_with_parent
from coxswain_train.agent.forkserver import MESSAGE, Exited, Forked, ForkRequest
from coxswain_train.worker.assignments import Assignment

log = logging.getLogger(__name__)

_GRACE = 2.0  # seconds between SIGTERM and SIGKILL: a worker of a past world has nothing to save
KILLED = -signal.SIGKILL


@dataclass(eq=False, slots=True)
class WorkerHandle:
    """One running worker. `fault_file` is a memfd: nothing is left of it, whoever is killed."""

    device: int
    handle: int  # pidfd
    fault_file: int
    channel: socket.socket
    ended: asyncio.Future[int]  # its exit code
    assignment: Assignment = field(default_factory=lambda: Assignment(0, 0))  # the newest that it was ordered to
    seat: Seat | None = None

    @property
    def is_running(self) -> bool:
        return not self.ended.done()

    def signal(self, number: int) -> None:
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.handle, number)

    def assign(self, generation: int, seat: Seat) -> None:
        """Sends it into a world. One that died meanwhile does not hear it; its end says so."""
        self.assignment, self.seat = Assignment(generation, seat.rank), seat
        with contextlib.suppress(OSError):
            self.channel.send(msgspec.json.encode(self.assignment))

    async def wait_joined(self, deadline: float) -> bool:
        """Whether it has left the world before and begun in the one it was ordered to. True also when it ended: that is told
        elsewhere."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(deadline):
                while answer := await loop.sock_recv(self.channel, MESSAGE):
                    if msgspec.json.decode(answer, type=Assignment) == self.assignment:
                        return True
        except TimeoutError:
            return not self.is_running
        except OSError:  # it ended with orders unread
            return True
        return True

    async def end(self) -> None:
        self.signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE):
                await asyncio.shield(self.ended)
        await self.kill()

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        await self.ended

    def read_fault(self) -> Fault | None:
        """What it said last; None when it said nothing that can be read."""
        try:
            return msgspec.json.decode(os.pread(self.fault_file, 1 << 16, 0), type=Fault)
        except msgspec.DecodeError:
            return None

    def close(self) -> None:
        os.close(self.handle)
        os.close(self.fault_file)
        self.channel.close()


class ForkServer:
    """The agent's end of the mold. Started when it is first needed (or warmed), and again after it died."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command, self._environment = command, environment
        self._starting = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._channel: socket.socket | None = None
        self._requests: deque[asyncio.Future[tuple[int, int]]] = deque()  # (pid, pidfd) to come
        self._running: dict[int, asyncio.Future[int]] = {}

    async def warm(self) -> None:
        """Starts importing, if nothing has."""
        async with self._starting:
            if self._channel is None:
                await self._start()

    async def _start(self) -> None:
        if self._process is not None:
            await self._process.wait()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, env=dict(self._environment), stdin=theirs.fileno(), preexec_fn=die_with_parent
            )
        ours.setblocking(False)
        self._channel = ours
        asyncio.get_running_loop().add_reader(ours, self._listen)

    async def fork(self, device: int, environment: Mapping[str, str]) -> WorkerHandle:
        """A new worker, without a place yet. Raises Retryable when the mold ends first."""
        await self.warm()
        assert self._channel is not None
        fault_file = os.memfd_create("coxswain-fault")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        wish: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        self._requests.append(wish)
        try:
            with theirs:
                wanted = msgspec.json.encode(ForkRequest(dict(environment)))
                socket.send_fds(self._channel, [wanted], [fault_file, theirs.fileno()])
            pid, handle = await wish
        except BaseException:
            ours.close()
            os.close(fault_file)
            raise
        return WorkerHandle(device, handle, fault_file, ours, self._running[pid])

    async def end(self) -> None:
        """Ends it, and with it whatever worker still lives."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        if self._channel is not None:
            self._lost()

    def _listen(self) -> None:
        assert self._channel is not None
        try:
            message, handles, _, _ = socket.recv_fds(self._channel, MESSAGE, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            message, handles = b"", []
        if not message:
            self._lost()
            return
        said: Forked | Exited = msgspec.json.decode(message, type=Forked | Exited)
        if isinstance(said, Forked):
            self._running[said.pid] = asyncio.get_running_loop().create_future()
            wish = self._requests.popleft()
            if wish.cancelled():
                os.close(handles[0])
            else:
                wish.set_result((said.pid, handles[0]))
        else:
            self._running.pop(said.pid).set_result(said.exit_code)

    def _lost(self) -> None:
        """The mold is gone, and the kernel has killed what it had forked."""
        assert self._channel is not None
        asyncio.get_running_loop().remove_reader(self._channel)
        self._channel.close()
        self._channel = None
        for ended in self._running.values():
            ended.set_result(KILLED)
        for wish in self._requests:
            if not wish.done():
                wish.set_exception(Retryable("the process that forks the workers ended; its log says why"))
        self._running, self._requests = {}, deque()
