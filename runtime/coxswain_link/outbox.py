"""Sends the messages of one world to the coordinator, in order, across restarts of the coordinator.

The outbox keeps a message until a checkpoint covers its step, and sends it again to a new
coordinator: so a new coordinator can adopt a world that kept running.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from coxswain.errors import CoxswainError, Retryable, crashed
from coxswain.wire import Ack, Heartbeat
from coxswain_link.http_client import Client

log = logging.getLogger(__name__)

ATTEMPT_SECONDS = 10.0  # seconds of one attempt: a coordinator that answers more slowly counts as unreachable
HEARTBEAT_SECONDS = 1.0  # seconds without a message until a heartbeat, as long as no Ack says otherwise
_FLUSH_SECONDS = 0.1  # the same when `flush` begins to wait; it doubles: all ranks may wait for one manifest
_PATIENCE = 120.0  # seconds without a coordinator until the sender gives up
_MOST_KEPT = 4096  # sent messages that no checkpoint covers
_MOST_BYTES = 64 << 20  # of these: a constructor's have a digest for each sequence
_WAY_OUT = "the world begins again at the last checkpoint; set checkpoint.everySteps to lose fewer steps"


@dataclass(frozen=True, slots=True)
class Message:
    path: str
    step: int  # covered by a checkpoint of any later step
    body: Any
    size: int = 0  # bytes


class MessageLog:
    """Which messages are kept, and how many of them the current coordinator has. Pure."""

    def __init__(self, most: int = _MOST_KEPT, most_bytes: int = _MOST_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._kept = deque[Message]()
        self._sent = self._bytes = 0  # of those kept: messages that were sent, and their size
        self._forgot = 0  # messages of steps below were looked for among the sent ones
        self._gone = -1  # the latest step of a dropped message
        self._coordinator = ""
        self.saved = 0  # steps below are in a checkpoint
        self.end: int | None = None  # work ends before this step, by the latest Ack
        self.heartbeat_seconds = 0.0  # that it wishes; 0: no wish
        self.saving = 0  # changes while ranks save for an end, by the latest Ack

    def put(self, message: Message) -> None:
        self._kept.append(message)

    @property
    def waiting(self) -> int:
        return len(self._kept) - self._sent

    def next(self) -> Message | None:
        """The next message to send; None: there is none."""
        return self._kept[self._sent] if self.waiting else None

    def acknowledge(self, message: Message | None, received: Ack | None) -> None:
        """Records that a message (None: a heartbeat) was received.

        Raises Retryable when a new coordinator needs a dropped message.
        """
        if message is not None:
            self._sent, self._bytes = self._sent + 1, self._bytes + message.size
        if received is None:
            return
        self.saved, self.end, self.heartbeat_seconds = received.saved, received.end, received.heartbeat_seconds
        self.saving = received.saving
        self._forget()
        if self._coordinator not in ("", received.coordinator):
            log.info("new coordinator: sending %d messages again", len(self._kept))
            self._sent = self._bytes = 0
            if self._gone >= received.saved:
                raise Retryable(
                    f"a new coordinator needs messages of step {self._gone} and before, which were dropped; {_WAY_OUT}"
                )
        self._coordinator = received.coordinator

    def _forget(self) -> None:
        """Drops what a checkpoint covers, and the oldest messages above the limits. Looks at all kept ones only where there is a
        new checkpoint, or a message came behind its own: this runs at every message."""
        if self.saved != self._forgot or (self._sent and self._kept[self._sent - 1].step < self.saved):
            sent, self._forgot = [self._take() for _ in range(self._sent)], self.saved
            covered = [message for message in sent if message.step < self.saved]
            self._gone = max([self._gone, *(message.step for message in covered)])
            self._return([message for message in sent if message.step >= self.saved])
        while self._sent > self._most or self._bytes > self._most_bytes:
            self._gone = max(self._gone, self._take().step)

    def _take(self) -> Message:
        """The oldest sent message, which is no longer kept."""
        message = self._kept.popleft()
        self._sent, self._bytes = self._sent - 1, self._bytes - message.size
        return message

    def _return(self, sent: list[Message]) -> None:
        self._kept.extendleft(reversed(sent))
        self._sent, self._bytes = self._sent + len(sent), self._bytes + sum(message.size for message in sent)


class Outbox:
    """Sends from its own thread. `beat`: the heartbeat to send when there is no message."""

    def __init__(
        self, client: Client, beat: Heartbeat, patience: float = _PATIENCE, pause: float = HEARTBEAT_SECONDS,
        messages: MessageLog | None = None,
    ) -> None:  # fmt: skip
        self._client, self._beat, self._patience = client, beat, patience
        self._change = threading.Condition()
        self._log, self._pause, self._flushing = messages or MessageLog(), pause, False
        self._flush_pause = _FLUSH_SECONDS
        self._fault: CoxswainError | None = None
        self._closed = False
        self.reachable = True
        threading.Thread(target=self._run, name="outbox", daemon=True).start()

    def put(self, path: str, step: int, body: Any) -> None:
        encoded = msgspec.json.encode(body)  # takes a fraction of what it is made of
        with self._change:
            self._log.put(Message(path, step, msgspec.Raw(encoded), len(encoded)))
            self._change.notify_all()

    def advance(self) -> None:
        """Shows in the next heartbeat that this member gets on with its start, or with a save."""
        with self._change:
            self._beat = replace(self._beat, progress=self._beat.progress + 1)

    def begin(self, step: int) -> None:
        """Shows in the next heartbeats that this member has begun a step: without a coordinator no directive says so."""
        with self._change:
            self._beat = replace(self._beat, begun=step)

    def mark_unreachable(self) -> None:
        """Records that another caller got no answer.

        The next message that is received resets it: heartbeats look for a new coordinator at once.
        """
        with self._change:
            self.reachable = False
            self._change.notify_all()

    def await_answer(self, seconds: float) -> None:
        """Returns once the coordinator can be reached, or after `seconds`."""
        with self._change:
            self._change.wait_for(lambda: self.reachable or self._fault or self._closed, seconds)

    @property
    def end(self) -> int | None:
        """Work ends before this step, as the coordinator said last; None: it did not say so."""
        return self._log.end

    @property
    def saving(self) -> int:
        """Changes while any rank writes its part of the last checkpoint, as the coordinator said last."""
        return self._log.saving

    def check(self) -> None:
        """Raises the sender's error: Stale, Refused, JobEnded, or Retryable."""
        if self._fault is not None:
            raise self._fault

    def has_sent(self, seconds: float, saved: int = 0) -> bool:
        """Whether everything is sent and the steps below `saved` are in a checkpoint, after so many seconds at most.

        Raises like `check`.
        """
        log = self._log
        with self._change:
            self._flushing = True
            self._change.notify_all()
            done = self._change.wait_for(lambda: self._fault or (not log.waiting and log.saved >= saved), seconds)
        self.check()
        return bool(done)

    def flush(self, seconds: float, saved: int = 0) -> None:
        """Returns once everything is sent and the steps below `saved` are in a checkpoint.

        Raises like `check`, and Retryable at the deadline.
        """
        if not self.has_sent(seconds, saved):
            missing = f"{self._log.waiting} messages are not sent, {self._log.saved} of {saved} steps are saved"
            raise Retryable(f"the coordinator did not receive everything within {seconds:g} s: {missing}")

    def close(self) -> None:
        with self._change:
            self._closed = True
            self._change.notify_all()

    def _run(self) -> None:
        try:
            self._send()
        except Exception as error:
            log.exception("no more messages are sent")
            self._fail(crashed("the thread that sends messages", error))

    def _send(self) -> None:
        last_answer = time.monotonic()
        while not self._closed and self._fault is None:
            message = self._next()
            try:
                received = self._post(message)
                last_answer, self.reachable = time.monotonic(), True
            except Retryable as error:
                self.reachable = False
                if time.monotonic() - last_answer > self._patience:
                    self._fail(error)
            except CoxswainError as error:
                self._fail(error)
            else:
                self._acknowledge(message, received)

    def _next(self) -> Message | None:
        """The next message; None: there is none, so a heartbeat is due."""
        with self._change:
            flushing, pause = self._flushing, self._heartbeat_pause()
            self._change.wait_for(
                lambda: self._closed or self._log.waiting or not self.reachable or self._flushing != flushing, pause
            )
            message = self._log.next()
            if flushing and message is None:
                self._flush_pause = 2 * pause
            return message

    def _heartbeat_pause(self) -> float:
        usual = self._log.heartbeat_seconds or self._pause
        return min(usual, self._flush_pause) if self._flushing else usual

    def _post(self, message: Message | None) -> Ack | None:
        path, body = ("/v1/beats", self._beat) if message is None else (message.path, message.body)
        return self._client.post(path, body, Ack, generation=self._beat.generation, deadline=ATTEMPT_SECONDS)

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
