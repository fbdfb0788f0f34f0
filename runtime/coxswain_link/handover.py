"""Hands a step's tokens from a constructor to its pod's workers: memfds over an abstract socket."""

from __future__ import annotations

import hmac
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
import tenacity

from coxswain.errors import CoxswainError, Refused, Retryable, Stale, crashed
from coxswain.structs import UNDECODABLE, prepare
from coxswain_link.environment import no_more_files
from coxswain_link.step_buffer import Buffer, StepArrays, unpack

log = logging.getLogger(__name__)

_MESSAGE = 16 << 10  # bytes: requests and replies are small, the data travels as a descriptor
_MOST_SAID = 2 << 10  # characters of an error, so that a reply fits into a message
_ACCEPT_AGAIN = 0.1  # seconds after an error, such as too many open files
MAX_WAIT = 1.0  # seconds that one request may stay open; then the client looks whether its world is over


class HandoverRequest(msgspec.Struct, frozen=True):
    """Of a worker, for its arrays of a step."""

    token: str
    generation: int
    step: int
    rank: int
    wait: float  # seconds


class HandoverReply(msgspec.Struct, frozen=True):
    """`ready` comes with the descriptor of the arrays' memory. `reason` is that of a refusal."""

    status: Literal["ready", "later", "stale", "refused", "failed"]
    reason: str = ""
    message: str = ""


Provide = Callable[[int, int, int, float], Buffer | None]


class HandoverServer:
    """Answers the workers of a pod, each connection on its own thread.

    `provide(generation, step, rank, wait)` returns the buffer, or None when it is not built within
    `wait` seconds. It raises Stale for an older generation, Refused or Retryable when the step
    cannot be built. `observe` gets the seconds from request to reply of every buffer handed over.
    """

    def __init__(self, name: str, token: str, provide: Provide, observe: Callable[[float], None] | None = None) -> None:
        self._token, self._provide, self._observe = token, provide, observe or (lambda _: None)
        self._closed = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(name)
        self._listener.listen(64)
        self._accepting = threading.Thread(target=self._accept, name="handover", daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """Stops listening, so that the name is free; connections end with their peers."""
        self._closed.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()  # its call holds the name, also of a socket that is closed
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError as error:
                if self._closed.wait(_ACCEPT_AGAIN):
                    return
                log.warning("a worker cannot be served now: %s", error)
                continue
            try:
                threading.Thread(target=self._serve, args=(peer,), name="handover-peer", daemon=True).start()
            except RuntimeError as error:  # the process may have no more threads now
                peer.close()
                log.warning("a worker cannot be served now: %s", error)
                self._closed.wait(_ACCEPT_AGAIN)

    def _serve(self, peer: socket.socket) -> None:
        with peer:
            try:
                while message := peer.recv(_MESSAGE):
                    self._answer(peer, message)
            except OSError as error:
                log.info("a worker disconnected during a hand-over: %s", error)

    def _answer(self, peer: socket.socket, message: bytes) -> None:
        began = time.monotonic()
        reply, buffer = self._decide(message)
        data = msgspec.json.encode(reply)
        if buffer is None:
            peer.send(data)
            return
        socket.send_fds(peer, [data], [buffer.fd])
        self._observe(time.monotonic() - began)

    def _decide(self, message: bytes) -> tuple[HandoverReply, Buffer | None]:
        try:
            request = msgspec.json.decode(message, type=HandoverRequest)
            self._admit(request)
            wait = min(request.wait, MAX_WAIT)
            buffer = self._provide(request.generation, request.step, request.rank, wait)
        except (CoxswainError, *UNDECODABLE) as error:
            return _refusal(error), None
        except Exception as error:  # else its worker would ask a thread that has ended, again and again
            log.exception("a step cannot be handed over")
            return _refusal(crashed("the constructor", error)), None
        return HandoverReply("later" if buffer is None else "ready"), buffer

    def _admit(self, request: HandoverRequest) -> None:
        if not hmac.compare_digest(request.token.encode(), self._token.encode()):
            raise Refused(
                "TokenRejected", "the constructor refused the job's token; restart the pod to mount the current Secret"
            )


def _refusal(error: Exception) -> HandoverReply:
    if isinstance(error, Stale):
        return HandoverReply("stale", message=str(error)[:_MOST_SAID])
    if isinstance(error, Refused):
        return HandoverReply("refused", error.reason, error.message[:_MOST_SAID])
    return HandoverReply("failed", message=str(error)[:_MOST_SAID])


class _Broken(Exception):
    """The constructor is unreachable; it may restart under the same name."""


class Handover:
    """A worker's side: one connection, made again after the constructor restarts.

    For one thread. `is_over`: whether the worker is to leave its world, which no data are worth waiting for. `grace`:
    seconds for which a constructor may be silent beyond what a request waits; then it counts as unreachable.
    """

    def __init__(self, name: str, token: str, is_over: Callable[[], bool] = lambda: False, grace: float = 5.0) -> None:
        self._name, self._token, self._is_over, self._grace = name, token, is_over, grace
        self._peer: socket.socket | None = None

    def receive(self, generation: int, step: int, rank: int, deadline: float) -> StepArrays:
        """The arrays of `rank` in `step`, within `deadline` seconds.

        Raises Stale when `generation` is over or `is_over`, the constructor's Refused or Retryable, and
        Retryable at the deadline.
        """
        end = time.monotonic() + deadline
        policy = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_Broken),
            stop=tenacity.stop_after_delay(deadline),
            wait=tenacity.wait_random_exponential(multiplier=0.01, max=0.5),
            reraise=True,
        )
        try:
            return policy(self._receive, generation, step, rank, end)
        except _Broken as error:
            raise Retryable(f"no data for step {step} (rank {rank}) within {deadline:g} s: {error}") from error

    def close(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    def __enter__(self) -> Handover:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _receive(self, generation: int, step: int, rank: int, end: float) -> StepArrays:
        while True:
            if self._is_over():
                raise Stale(f"generation {generation} is over, and step {step} has no data yet")
            wait = min(max(0.0, end - time.monotonic()), MAX_WAIT)
            reply, fds = self._ask(HandoverRequest(self._token, generation, step, rank, wait))
            if reply.status == "ready":
                return _checked(fds, generation, step)
            _raise(reply)
            if time.monotonic() >= end:
                raise _Broken("the constructor has not built the step yet; its log says what it waits for")

    def _ask(self, request: HandoverRequest) -> tuple[HandoverReply, list[int]]:
        try:
            peer = self._connected()
            peer.settimeout(request.wait + self._grace)
            peer.send(msgspec.json.encode(request))
            data, fds, flags, _ = socket.recv_fds(peer, _MESSAGE, 1, socket.MSG_CMSG_CLOEXEC)
        except OSError as error:
            self.close()
            raise _Broken(f"the constructor is unreachable ({error})") from error
        if not data:
            self.close()
            raise _Broken("the constructor ended")
        if flags & socket.MSG_CTRUNC:
            raise _Broken(f"the step's data cannot be taken: {no_more_files('this worker')}")
        return msgspec.json.decode(data, type=HandoverReply), list(fds)

    def _connected(self) -> socket.socket:
        if self._peer is None:
            peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            peer.settimeout(self._grace)  # else it waits behind those that a hung constructor lets in no more
            try:
                peer.connect(self._name)
            except OSError:
                peer.close()
                raise
            self._peer = peer
        return self._peer


def _checked(fds: Sequence[int], generation: int, step: int) -> StepArrays:
    try:
        arrays = unpack(fds[0])
    finally:
        for fd in fds:
            os.close(fd)
    if (arrays.generation, arrays.step) != (generation, step):
        raise Retryable(f"asked for step {step} of generation {generation}, got {arrays.step} of {arrays.generation}")
    return arrays


def _raise(reply: HandoverReply) -> None:
    if reply.status == "stale":
        raise Stale(reply.message)
    if reply.status == "refused":
        raise Refused(reply.reason, reply.message)
    if reply.status == "failed":
        raise Retryable(reply.message)


prepare(__name__)
