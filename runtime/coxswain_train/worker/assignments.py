"""Orders from the agent to a worker: which place it has in which world. One socket between the two."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

import msgspec

ENV_CHANNEL = "COXSWAIN_ORDERS"  # descriptor of the worker's end of the socket
_MESSAGE = 4096  # bytes
_RETRY_SECONDS = 0.1  # seconds between two tries to free a worker that does not come


class Assignment(msgspec.Struct, frozen=True):
    """Which rank of which world a worker is. Also its answer, once it has begun there."""

    generation: int
    rank: int


class AssignmentChannel:
    """A worker's end. While the worker is in an older world than it was ordered to, `free` is called again and again.

    `free` runs in a thread and makes whatever the main thread waits for in that world raise.
    """

    def __init__(self, channel: socket.socket, abort: Callable[[], None]) -> None:
        self._channel, self._abort = channel, abort
        self._newest: Assignment | None = None
        self._current = 0  # generation of the world that the main thread is in
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._listen, name="orders", daemon=True)
        self._thread.start()

    @staticmethod
    def detect(variable: str, abort: Callable[[], None]) -> AssignmentChannel:
        return AssignmentChannel(socket.socket(fileno=int(os.environ[variable])), abort)

    def next(self, patience: float | None) -> Assignment | None:
        """The newest place that is not yet taken, waiting for it at most `patience` seconds; None: there is none."""
        with self._change:
            if not self._change.wait_for(lambda: self._pending, patience):
                return None
            assert self._newest is not None
            self._current = self._newest.generation
            self._change.notify_all()
            self._channel.send(msgspec.json.encode(self._newest))
            return self._newest

    def _receive(self) -> bytes:
        with suppress(OSError):  # the agent died with answers unread; the kernel ends this process, too
            return self._channel.recv(_MESSAGE)
        return b""

    def close(self) -> None:
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
