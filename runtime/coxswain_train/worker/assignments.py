"""Assignments from the agent to a worker: its rank in which world. One socket connects the two."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

import msgspec

ENV_CHANNEL = "COXSWAIN_ORDERS"  # descriptor of the worker's end of the socket
_MESSAGE = 4096  # bytes
_RETRY_SECONDS = 0.1  # seconds between two aborts of a world that the worker does not leave


class Assignment(msgspec.Struct, frozen=True):
    """Which rank of which world a worker is. The worker sends it back once it has begun there."""

    generation: int
    rank: int


class AssignmentChannel:
    """A worker's end. While the worker is in an older world than its newest assignment's, `abort` is called repeatedly.

    `abort` runs in a thread. Whatever the main thread waits for in that world then raises.
    """

    def __init__(self, channel: socket.socket, abort: Callable[[], None]) -> None:
        self._channel, self._abort = channel, abort
        self._newest: Assignment | None = None
        self._current = 0  # generation of the world that the main thread is in; 0: in none
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._listen, name="assignments", daemon=True)
        self._thread.start()

    @staticmethod
    def detect(variable: str, abort: Callable[[], None]) -> AssignmentChannel:
        return AssignmentChannel(socket.socket(fileno=int(os.environ[variable])), abort)

    def next(self, patience: float | None) -> Assignment | None:
        """Takes and acknowledges the newest assignment to a later world; None: none came within `patience` seconds."""
        with self._change:
            if not self._change.wait_for(lambda: self._pending, patience):
                return None
            assert self._newest is not None
            self._current = self._newest.generation
            self._change.notify_all()
            self._channel.send(msgspec.json.encode(self._newest))
            return self._newest

    def close(self) -> None:
        with self._change:
            self._current = 0  # in no world: nothing is left to abort
            self._change.notify_all()
        self._channel.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._channel.close()

    @property
    def _pending(self) -> bool:
        return self._newest is not None and self._newest.generation > self._current

    def _listen(self) -> None:
        while message := self._receive():
            with self._change:
                self._newest = msgspec.json.decode(message, type=Assignment)
                self._change.notify_all()
                while self._current and self._pending:
                    self._abort()
                    self._change.wait(_RETRY_SECONDS)

    def _receive(self) -> bytes:
        with suppress(OSError):  # the agent ended with answers unread; the kernel ends this process too
            return self._channel.recv(_MESSAGE)
        return b""
