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
from coxswain.wire import Ack, Heartbeat
from coxswain_link.http_client import Client

log = logging.getLogger(__name__)

_ATTEMPT = 2.0  # seconds of one try; then the coordinator counts as away
_HEARTBEAT_SECONDS = 1.0  # seconds without a message after which a sign of life is sent
_HURRY = 0.1  # and when nothing remains but to hear that all is saved
_PATIENCE = 120.0  # seconds without a coordinator until the sender gives up
_MOST_KEPT = 4096  # messages that a coordinator has and no checkpoint holds: some MB
_WAY_OUT = "its world begins again at that checkpoint; with checkpoint.everySteps above 0 fewer steps are at stake"


@dataclass(frozen=True, slots=True)
class Message:
    path: str
    step: int  # history once a checkpoint of a later step is made
    body: Any


class MessageLog:
    """Which messages are kept, and how many of them the coordinator at hand has. Pure."""

    def __init__(self, most: int = _MOST_KEPT) -> None:
        self._most = most
        self._kept: list[Message] = []
        self._sent = 0  # of those kept
        self._gone = -1  # the latest step of which something was sent and is not kept any more
        self._coordinator = ""
        self.saved = 0  # steps below are in a checkpoint

    def put(self, message: Message) -> None:
        self._kept.append(message)

    @property
    def waiting(self) -> int:
        return len(self._kept) - self._sent

    def next(self) -> Message | None:
        """What is to be sent; None: nothing."""
        return self._kept[self._sent] if self.waiting else None

    def acknowledge(self, message: Message | None, received: Ack | None) -> None:
        """A message (None: a sign of life) has been received. Raises Retryable when another coordinator needs what is gone."""
        self._sent += message is not None
        if received is None:
            return
        self.saved = received.saved
        self._forget(received.saved)
        if self._coordinator not in ("", received.coordinator):
            log.info("another coordinator: it gets %d messages again", len(self._kept))
            self._sent = 0
            if self._gone >= received.saved:
                raise Retryable(f"what was told of step {self._gone} and before is not kept any more: {_WAY_OUT}")
        self._coordinator = received.coordinator

    def _forget(self, saved: int) -> None:
        """What is history, and the oldest of what is too much."""
        sent = [m for m in self._kept[: self._sent] if m.step >= saved]
        surplus = sent[: -self._most]
        self._gone = max([self._gone, *(m.step for m in surplus)])
        self._kept = sent[len(surplus) :] + self._kept[self._sent :]
        self._sent = len(sent) - len(surplus)


class Outbox:
    """Sends in a thread of its own. `beat`: the sign of life of this sender."""

    def __init__(self, client: Client, beat: Heartbeat, patience: float = _PATIENCE) -> None:
        self._client, self._beat, self._patience = client, beat, patience
        self._change = threading.Condition()
        self._log, self._pause = MessageLog(), _HEARTBEAT_SECONDS
        self._fault: CoxswainError | None = None
        self._closed = False
        self.reachable = True
        threading.Thread(target=self._run, name="outbox", daemon=True).start()

    def put(self, path: str, step: int, body: Any) -> None:
        with self._change:
            self._log.put(Message(path, step, body))
            self._change.notify_all()

    def mark_unreachable(self) -> None:
        """Somebody else got no answer. The next message that is taken says otherwise."""
        self.reachable = False

    def check(self) -> None:
        """Raises what the sending ran into: Stale, Refused, the job's end, or Retryable when the coordinator stays away."""
        if self._fault is not None:
            raise self._fault

    def flush(self, seconds: float, saved: int = 0) -> None:
        """Returns once everything is sent and the steps below `saved` are in a checkpoint.

        Raises like `check`, and Retryable at the deadline.
        """
        log = self._log
        with self._change:
            self._pause = _HURRY
            self._change.notify_all()
            done = self._change.wait_for(lambda: self._fault or (not log.waiting and log.saved >= saved), seconds)
        self.check()
        if not done:
            missing = f"{log.waiting} messages are not sent, {log.saved} of {saved} steps are saved"
            raise Retryable(f"the coordinator did not take leave within {seconds:g} s: {missing}")

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
            except Retryable as error:
                self.reachable = False
                if time.monotonic() - heard > self._patience:
                    self._fail(error)
            except CoxswainError as error:
                self._fail(error)
            else:
                self._acknowledge(message, received)

    def _next(self) -> Message | None:
        """What is to be sent; None: nothing, so a sign of life is due."""
        with self._change:
            self._change.wait_for(lambda: self._closed or self._log.waiting, self._pause)
            return self._log.next()

    def _post(self, message: Message | None) -> Ack | None:
        path, body = ("/v1/beats", self._beat) if message is None else (message.path, message.body)
        return self._client.post(path, body, Ack, generation=self._beat.generation, deadline=_ATTEMPT)

    def _acknowledge(self, message: Message | None, received: Ack | None) -> None:
        with self._change:
            try:
                self._log.acknowledge(message, received)
            except Retryable as error:
                self._fault = error
            self._change.notify_all()

    def _fail(self, error: CoxswainError) -> None:
        with self._change:
            self._fault = error
            self._change.notify_all()
