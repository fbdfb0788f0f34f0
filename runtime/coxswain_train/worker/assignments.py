"""Between the agent and a worker: which rank of which world it is, when it leaves that world, and what it then holds."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

import msgspec

from coxswain.live import Held
from coxswain.structs import prepare

ENV_CHANNEL = "COXSWAIN_ORDERS"  # descriptor of the worker's end of the socket
_MESSAGE = 4096  # bytes
_RETRY_SECONDS = 0.1  # seconds between two aborts of a world that the worker does not leave


class Assignment(msgspec.Struct, frozen=True, tag=True):
    """Which rank of which world a worker is. The worker sends it back once it has begun there."""

    generation: int
    rank: int


class Leave(msgspec.Struct, frozen=True, tag=True):
    """To a worker: its world is over. It answers with `Left` and waits for its next assignment."""

    generation: int


class Leaving(msgspec.Struct, frozen=True, tag=True):
    """From a worker that holds state, at once: it has the order to leave, and does so once what it computes has ended."""

    generation: int


class Left(msgspec.Struct, frozen=True, tag=True):
    """From a worker that is in no world any more. The agent knows its device."""

    generation: int  # of the world that it has left
    held: tuple[Held, ...]
    why: str = ""  # it has left unasked: its world broke
    fault: str = ""  # an error of its own broke its world


class Probed(msgspec.Struct, frozen=True, tag=True):
    """From the process that probes a device on standby: of one product."""

    seconds: float


class AssignmentChannel:
    """A worker's end. While the worker is in a world that is over, `abort` is called repeatedly.

    `abort` runs in a thread. Whatever the main thread waits for in that world then raises. `held` is called between worlds,
    and in the thread to see whether anything is held.
    """

    def __init__(
        self,
        channel: socket.socket,
        abort: Callable[[], None],
        held: Callable[[], tuple[Held, ...]] = lambda: (),
    ) -> None:
        self._channel, self._abort, self._held = channel, abort, held
        self._newest: Assignment | None = None
        self._taken = 0  # generation of the latest world that the main thread has begun in
        self._over = 0  # worlds up to this generation are over
        self._inside = self._waits = False  # whether the main thread is in a world, or waits for one
        self._alone = False  # the agent is gone
        self._said = -1  # the latest world of which `Left` is sent
        self._fault = ""  # of its own, with which the main thread waits for the next world
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._listen, name="assignments", daemon=True)
        self._thread.start()

    @staticmethod
    def detect(
        variable: str, abort: Callable[[], None], held: Callable[[], tuple[Held, ...]] = lambda: ()
    ) -> AssignmentChannel:
        return AssignmentChannel(socket.socket(fileno=int(os.environ[variable])), abort, held)

    def next(self, patience: float | None, fault: str = "") -> Assignment | None:
        """Takes and acknowledges the newest assignment to a later world; None: none came within `patience` seconds, or the agent
        is gone.

        A worker that the agent has asked to leave waits as long as its agent is there, and answers also with its own `fault`.
        """
        with self._change:
            self._waits, self._fault = True, fault
            if self._is_over:  # the order came as it was on its way out, or before it waited for its first world
                self._send_left()
            self._change.wait_for(lambda: self._pending or self._alone or self._is_over, patience)
            if self._is_over:
                self._change.wait_for(lambda: self._pending or self._alone)
            if not self._pending:
                return None
            assert self._newest is not None
            self._taken, self._inside, self._waits, self._fault = self._newest.generation, True, False, ""
            self._change.notify_all()
            self._channel.send(msgspec.json.encode(self._newest))
            return self._newest

    def step_out(self) -> None:
        """The main thread is in no collective any more: nothing is left to abort."""
        with self._change:
            self._inside = False
            self._change.notify_all()

    def leave(self, why: str = "") -> None:
        """Says to the agent that the worker has left its world. `why`: unasked."""
        with self._change:
            self._send_left(why)

    def close(self) -> None:
        self.step_out()
        self._channel.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._channel.close()

    @property
    def _pending(self) -> bool:
        return self._newest is not None and self._newest.generation > max(self._taken, self._over)

    @property
    def _is_over(self) -> bool:
        """Whether the world that was begun last is over; before the first one, that into which the worker was sent."""
        return 0 < self._over >= self._taken

    @property
    def _must_leave(self) -> bool:
        return self._inside and (self._pending or self._over >= self._taken)

    def _listen(self) -> None:
        """Whatever ends this thread, the worker ends too once it waits for a world: it would hear of none."""
        try:
            while message := self._receive():
                self._obey(msgspec.json.decode(message, type=Assignment | Leave))
        finally:
            with self._change:
                self._alone = True
                self._change.notify_all()

    def _obey(self, order: Assignment | Leave) -> None:
        with self._change:
            self._take(order)
            self._change.notify_all()
            while self._must_leave:
                self._abort()
                self._change.wait(_RETRY_SECONDS)

    def _take(self, order: Assignment | Leave) -> None:
        if isinstance(order, Assignment):
            self._newest = order
            return
        self._over = order.generation
        if self._waits:  # it has left by itself, or not begun
            self._send_left()
        elif self._inside and self._held():  # else nothing is lost with it: its agent need not wait
            self._send(Leaving(self._taken))

    def _send_left(self, why: str = "") -> None:
        if self._said == self._taken:
            return
        self._said = self._taken
        self._send(Left(self._taken, self._held(), why, self._fault))

    def _send(self, answer: Leaving | Left) -> None:
        with suppress(OSError):  # the agent is gone
            self._channel.send(msgspec.json.encode(answer))

    def _receive(self) -> bytes:
        with suppress(OSError):  # the agent ended with answers unread; the kernel ends this process too
            return self._channel.recv(_MESSAGE)
        return b""


prepare(__name__)
