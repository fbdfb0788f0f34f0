"""What the coordinator must get of one world, in order, however often it goes away and comes back without its memory.

A message is kept until a checkpoint makes it history, and sent again to a coordinator that is another one than before: that
is how a new coordinator takes up a world that went on without it.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import Any

from coxswain.errors import CoxswainError, Retryable
from coxswain.wire import Beat, Received
from coxswain_link.http import Client

log = logging.getLogger(__name__)

_ATTEMPT = 2.0  # seconds of one try; then the coordinator counts as away
_BEAT = 1.0  # seconds without a message after which a sign of life is sent
_PATIENCE = 120.0  # seconds without a coordinator until the sender gives up


@dataclass(frozen=True, slots=True)
class Message:
    path: str
    step: int  # history once a checkpoint of a later step is made
    body: Any


class Outbox:
    """Sends in a thread of its own. `beat`: the sign of life of this sender."""

    def __init__(self, client: Client, beat: Beat, patience: float = _PATIENCE) -> None:
        self._client, self._beat, self._patience = client, beat, patience
        self._change = threading.Condition()
        self._kept: list[Message] = []
        self._sent = 0  # how many of those kept this coordinator has
        self._coordinator = ""
        self._fault: CoxswainError | None = None
        self._closed = False
        self.reachable = True
        threading.Thread(target=self._run, name="outbox", daemon=True).start()

    def put(self, path: str, step: int, body: Any) -> None:
        with self._change:
            self._kept.append(Message(path, step, body))
            self._change.notify_all()

    def check(self) -> None:
        """Raises what the sending ran into: Stale, Refused, the job's end, or Retryable when the coordinator stays away."""
        if self._fault is not None:
            raise self._fault

    def flush(self, seconds: float) -> None:
        """Returns once everything is sent. Raises like `check`, and Retryable at the deadline."""
        with self._change:
            done = self._change.wait_for(lambda: self._fault or self._sent == len(self._kept), seconds)
        self.check()
        if not done:
            raise Retryable(
                f"{len(self._kept) - self._sent} messages did not reach the coordinator within {seconds:g} s"
            )

    def close(self) -> None:
        with self._change:
            self._closed = True
            self._change.notify_all()

    def _run(self) -> None:
        heard = time.monotonic()
        while not self._closed and self._fault is None:
            message = self._next()
            try:
                received = self._post(message)
                heard, self.reachable = time.monotonic(), True
                self._note(message, received)
            except Retryable as error:
                self.reachable = False
                if time.monotonic() - heard > self._patience:
                    self._fail(error)
            except CoxswainError as error:
                self._fail(error)
            except RuntimeError:  # who closed this has closed the client as well
                if not self._closed:
                    raise

    def _next(self) -> Message | None:
        """What is to be sent; None: nothing, so a sign of life is due."""
        with self._change:
            self._change.wait_for(lambda: self._closed or self._sent < len(self._kept), _BEAT)
            return self._kept[self._sent] if self._sent < len(self._kept) else None

    def _post(self, message: Message | None) -> Received | None:
        path, body = ("/v1/beats", self._beat) if message is None else (message.path, message.body)
        return self._client.post(path, body, Received, generation=self._beat.generation, deadline=_ATTEMPT)

    def _note(self, message: Message | None, received: Received | None) -> None:
        with self._change:
            self._sent += message is not None
            if received is not None:
                self._forget(received.saved)
                if self._coordinator not in ("", received.coordinator):
                    log.info("another coordinator: it gets %d messages again", len(self._kept))
                    self._sent = 0
                self._coordinator = received.coordinator
            self._change.notify_all()

    def _forget(self, saved: int) -> None:
        history = sum(m.step < saved for m in self._kept[: self._sent])
        self._kept = [m for i, m in enumerate(self._kept) if i >= self._sent or m.step >= saved]
        self._sent -= history

    def _fail(self, error: CoxswainError) -> None:
        with self._change:
            self._fault = error
            self._change.notify_all()
