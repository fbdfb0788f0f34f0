"""The agent's workers: forked by a fork server, assigned to successive worlds, and ended. No torch here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from coxswain.errors import Retryable
from coxswain.layout import Seat
from coxswain.structs import UNDECODABLE
from coxswain.wire import Fault
from coxswain_link.environment import end_with_parent, no_more_files, why_not
from coxswain_train.agent.forkserver import MESSAGE, Exited, Forked, ForkRequest, NotForked, Ready
from coxswain_train.worker.assignments import Assignment, Leave, Leaving, Left

log = logging.getLogger(__name__)

_GRACE = 2.0  # seconds between SIGTERM and SIGKILL: a worker of a past world has nothing to save
_END = 60.0  # seconds from SIGKILL until a process has ended: of a GPU it frees the memory
_FORK = 300.0  # seconds of a fork: milliseconds, or another import of torch by a fork server that replaces one
KILLED = -signal.SIGKILL
_Answer = Ready | Forked | NotForked | Exited


class ForkServerEnded(Retryable):
    """The process that forks the workers ended. `code`: how, negative where a signal killed it."""

    def __init__(self, code: int) -> None:
        what = f"was killed by signal {-code} ({signal.strsignal(-code)})" if code < 0 else "ended; its log says why"
        super().__init__(f"the process that forks the workers {what}")
        self.code = code


class Unkillable(Retryable):
    """A process has not ended after SIGKILL."""

    def __init__(self, device: int, seconds: float) -> None:
        super().__init__(
            f"the process on device {device} has not ended {seconds:g} s after SIGKILL; the device's driver may hold it: look at "
            "the kernel's log of the node, and drain it"
        )


@dataclass(eq=False, slots=True)
class WorkerHandle:
    """One running worker. `fault_file` is a memfd: it leaves no file behind, whichever process is killed."""

    device: int
    handle: int  # pidfd
    fault_file: int
    channel: socket.socket
    ended: asyncio.Future[int]  # its exit code
    assignment: Assignment = field(default_factory=lambda: Assignment(0, 0))  # the newest one sent to it
    seat: Seat | None = None
    joined: Assignment | None = None  # the newest world that it has begun in
    leaving: bool = False  # it has the order to leave, and still computes
    left: Left | None = None  # it is in no world: what it said as it left the last one
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    listener: asyncio.Task[None] | None = None
    patience: float = _END

    @property
    def is_running(self) -> bool:
        return not self.ended.done()

    def signal(self, number: int) -> None:
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.handle, number)

    def assign(self, generation: int, seat: Seat) -> None:
        """Sends it into a world. A worker that has ended misses it; its exit is reported."""
        self.assignment, self.seat, self.left, self.leaving = Assignment(generation, seat.rank), seat, None, False
        self._send(self.assignment)

    def leave(self, generation: int) -> None:
        """Makes it leave this world."""
        self._send(Leave(generation))

    def _send(self, order: Assignment | Leave) -> None:
        with contextlib.suppress(OSError):
            self.channel.send(msgspec.json.encode(order))

    async def wait_joined(self, deadline: float) -> bool:
        """Whether it has begun in the world of its assignment. True also when it ended: its exit is reported."""
        return await self._wait(lambda: self.joined == self.assignment, deadline)

    async def wait_left(self, deadline: float, patience: float = 0.0) -> bool:
        """Whether it is in no world any more. True also when it ended. `patience`: seconds more for one that answers."""

        def has_left() -> bool:
            return self.left is not None

        return await self._wait(has_left, deadline) or (self.leaving and await self._wait(has_left, patience))

    async def _wait(self, holds: Callable[[], bool], deadline: float) -> bool:
        try:
            async with asyncio.timeout(deadline):
                while self.is_running and not holds():
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            return not self.is_running or holds()  # an answer may have come as this process was stopped
        return True

    async def listen(self, notify: Callable[[], None]) -> None:
        """Takes what the worker says, until it ends. `notify` is called when it has left its world."""
        self.ended.add_done_callback(lambda _: self.changed.set())
        with contextlib.suppress(OSError):  # it ended with an order unread
            while answer := await asyncio.get_running_loop().sock_recv(self.channel, MESSAGE):
                said: Assignment | Leaving | Left = msgspec.json.decode(answer, type=Assignment | Leaving | Left)
                if isinstance(said, Assignment):
                    self.joined = said
                elif isinstance(said, Leaving):
                    self.leaving = said.generation == self.assignment.generation
                elif said.generation == self.assignment.generation or self.joined is None:
                    self.left = said
                    notify()
                self.changed.set()

    async def end(self) -> None:
        """Raises Unkillable."""
        self.signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE):
                await asyncio.shield(self.ended)
        await self.kill()

    async def kill(self) -> None:
        """Raises Unkillable."""
        self.signal(signal.SIGKILL)
        await asyncio.wait({self.ended}, timeout=self.patience)
        if self.is_running:
            raise Unkillable(self.device, self.patience)

    def read_fault(self) -> Fault | None:
        """The fault that it wrote; None when there is none that can be read."""
        try:
            return msgspec.json.decode(os.pread(self.fault_file, 1 << 16, 0), type=Fault)
        except UNDECODABLE:
            return None

    async def close(self) -> None:
        """Closes what is open of it, also where the caller is cancelled meanwhile."""
        if self.listener is None or self.listener.done():
            self._close_files()
            return
        self.listener.add_done_callback(lambda _: self._close_files())  # it reads from the channel until it has ended
        self.listener.cancel()
        await asyncio.wait({self.listener})

    def _close_files(self) -> None:
        os.close(self.handle)
        os.close(self.fault_file)
        self.channel.close()


class ForkServer:
    """The agent's end of the fork server, which starts when it is first needed (or warmed), and again after it ended.

    `patience`: seconds of a fork, behind which a fork server that has imported what workers need hangs, and is ended.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], patience: float = _FORK) -> None:
        self._command, self._environment, self._patience = command, environment, patience
        self._starting = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._channel: socket.socket | None = None
        self._requests: deque[asyncio.Future[tuple[int, int]]] = deque()  # (pid, pidfd) to come
        self._running: dict[int, asyncio.Future[int]] = {}
        self.is_ready = False  # one has imported what workers need; one that replaces it takes less long
        self.known = asyncio.Event()  # whether workers can be imported

    async def warm(self) -> None:
        """Starts the process unless it runs."""
        async with self._starting:
            if self._channel is None:
                await self._start()

    async def check(self) -> None:
        """Raises ForkServerEnded where the first one ended before it had imported what workers need: nothing says that another
        will."""
        if self.known.is_set() and not self.is_ready:
            raise await self._ended()

    async def _ended(self) -> ForkServerEnded:
        assert self._process is not None
        return ForkServerEnded(await self._process.wait())

    async def _start(self) -> None:
        if self._process is not None:
            await self._process.wait()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command, env=dict(self._environment), stdin=theirs.fileno(), preexec_fn=end_with_parent
                )
        except BaseException:
            ours.close()
            raise
        ours.setblocking(False)
        self._channel = ours
        asyncio.get_running_loop().add_reader(ours, self._listen)

    async def fork(self, device: int, environment: Mapping[str, str], module: str = "") -> WorkerHandle:
        """A new worker, without an assignment yet, or the work of another module. Raises ForkServerEnded when the fork server
        ends first, Retryable when it may not fork."""
        await self.warm()
        fault_file, ours, theirs = _files_of_a_worker()
        forked: asyncio.Future[tuple[int, int]] | None = None
        try:
            with theirs:
                forked = self._request(ForkRequest(dict(environment), module), fault_file, theirs)
            pid, handle = await self._answer(forked)
        except BaseException as error:
            ours.close()
            os.close(fault_file)
            if forked is not None:
                forked.cancel()
            if isinstance(error, ConnectionError):  # also where the event loop has not seen the end yet
                raise await self._ended() from error
            if forked is not None and not forked.cancelled() and forked.exception() is None:
                os.close(forked.result()[1])  # the answer came as the caller was cancelled
            raise
        return WorkerHandle(device, handle, fault_file, ours, self._running[pid])

    async def _answer(self, forked: asyncio.Future[tuple[int, int]]) -> tuple[int, int]:
        await self.known.wait()
        await asyncio.wait({forked}, timeout=self._patience)
        if not forked.done() and self._process is not None:
            log.warning("the process that forks the workers has not answered for %g s: killing it", self._patience)
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        return await forked

    def _request(
        self, request: ForkRequest, fault_file: int, channel: socket.socket
    ) -> asyncio.Future[tuple[int, int]]:
        assert self._channel is not None
        socket.send_fds(self._channel, [msgspec.json.encode(request)], [fault_file, channel.fileno()])
        forked: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        self._requests.append(forked)
        return forked

    async def end(self) -> None:
        """Ends it, and with it every worker that still runs."""
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
        answer: _Answer = msgspec.json.decode(message, type=_Answer)
        if isinstance(answer, Ready):
            self.is_ready = True
            self.known.set()
        elif isinstance(answer, Forked):
            self._running[answer.pid] = asyncio.get_running_loop().create_future()
            self._forked(answer.pid, handles)
        elif isinstance(answer, NotForked):
            self._not_forked(answer.why)
        else:
            self._running.pop(answer.pid).set_result(answer.exit_code)

    def _forked(self, pid: int, handles: list[int]) -> None:
        """Answers the oldest request. The kernel drops a handle for which this process may open no file: then the caller closes
        its end of the worker's channel, and so ends the worker."""
        if not handles:
            self._not_forked(no_more_files("this agent"))
            return
        request = self._requests.popleft()
        if request.cancelled():
            os.close(handles[0])
        else:
            request.set_result((pid, handles[0]))

    def _not_forked(self, why: str) -> None:
        request = self._requests.popleft()
        if not request.cancelled():
            request.set_exception(Retryable(f"no process can be forked: {why}"))

    def _lost(self) -> None:
        """The fork server is gone, and the kernel has killed its workers."""
        assert self._channel is not None
        asyncio.get_running_loop().remove_reader(self._channel)
        self._channel.close()
        self._channel = None
        self.known.set()
        for ended in self._running.values():
            ended.set_result(KILLED)
        for request in self._requests:
            if not request.done():
                request.set_exception(ConnectionResetError())
        self._running, self._requests = {}, deque()


def _files_of_a_worker() -> tuple[int, socket.socket, socket.socket]:
    """The fault file, and both ends of the channel. Raises Retryable where this process may open no more files."""
    try:
        fault_file = os.memfd_create("coxswain-fault")
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            os.close(fault_file)
            raise
    except OSError as error:
        raise Retryable(f"no process can be forked: {why_not('this agent', error)}") from error
    ours.setblocking(False)
    return fault_file, ours, theirs
