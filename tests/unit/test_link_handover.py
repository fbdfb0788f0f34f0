"""What a worker refuses of a hand-over, and how long a constructor lets it wait."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import msgspec
import pytest

from coxswain.errors import CoxswainError, Refused, Retryable, Stale
from coxswain_link.handover import Handover, HandoverReply, HandoverRequest, HandoverServer
from coxswain_link.step_buffer import Buffer, pack, unpack
from tests.unit.open_files import alone, files_left
from tests.unit.test_data_handover import arrays, served


@pytest.mark.parametrize(("generation", "step"), [(1, 4), (3, 4), (2, 3), (2, 5)])
def test_a_step_or_a_generation_that_was_not_asked_for_is_refused(generation, step):
    with served(lambda *_: pack(arrays(generation, step))) as connect:
        with pytest.raises(Retryable, match=f"asked for step 4 of generation 2, got {step} of {generation}"):
            connect().receive(2, 4, 0, 5.0)


@pytest.mark.parametrize(("deadline", "longest"), [(0.0, 0.0), (0.5, 0.5), (60.0, 1.0)])
def test_a_request_waits_as_long_as_the_worker_asks_and_at_most_a_second(deadline, longest):
    waits = []

    def provide(generation: int, step: int, rank: int, wait: float) -> Buffer:
        waits.append(wait)
        return pack(arrays(generation, step))

    with served(provide) as connect:
        connect().receive(1, 0, 0, deadline)
    assert longest - 0.5 <= waits[0] <= longest


def test_a_request_that_asks_for_more_than_a_second_waits_for_one():
    """A worker of another release may ask for more: each request has a thread of the constructor as long as it waits."""
    waits, name = [], f"\0coxswain-test-{secrets.token_hex(8)}"
    with closing(HandoverServer(name, "t", lambda *asked: waits.append(asked[3]))):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
            peer.settimeout(20)
            peer.connect(name)
            peer.send(msgspec.json.encode(HandoverRequest("t", 1, 0, 0, wait=60.0)))
            assert msgspec.json.decode(peer.recv(1024), type=HandoverReply).status == "later"
    assert waits == [1.0]


def test_a_buffer_that_holds_no_step_is_refused():
    with served(lambda *_: foreign()) as connect, pytest.raises(Retryable, match="something else than a step"):
        connect().receive(1, 0, 0, 5.0)


def foreign() -> Buffer:
    buffer = Buffer(os.memfd_create("other", os.MFD_CLOEXEC))
    os.write(buffer.fd, b"\0" * 64)
    return buffer


@pytest.mark.parametrize("error", [Stale, Retryable, lambda text: Refused("Bad", text)])
def test_the_first_2048_characters_of_an_error_of_any_length_reach_the_worker(error):
    def provide(*_: object) -> Buffer:
        raise error("first " + "\x01" * 20_000)

    with served(provide) as connect, pytest.raises(CoxswainError, match="first") as received:
        connect().receive(1, 0, 0, 5.0)
    assert str(received.value).count("\x01") == 2_048 - len("first ")


def test_a_worker_that_comes_while_its_constructor_may_open_no_file_is_served_once_it_may():
    alone(serves_once_it_may)


def serves_once_it_may() -> None:
    """Of two workers: a waiting `accept` has a descriptor in reserve, so the first one may be let in."""
    said, packed = threading.Event(), pack(arrays(1, 0))
    handler = logging.Handler()
    handler.emit = lambda record: said.set() if "cannot be served now" in record.getMessage() else None
    logging.getLogger("coxswain_link.handover").addHandler(handler)
    name = f"\0coxswain-test-{os.getpid()}-{secrets.token_hex(4)}"
    with closing(HandoverServer(name, "t", lambda *_: packed)):
        workers = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
        with files_left(0):
            for worker in workers:
                worker.connect(name)
            assert said.wait(20)
        for worker in workers:
            worker.settimeout(20.0)
            worker.send(msgspec.json.encode(HandoverRequest("t", 1, 0, 0, 1.0)))
        assert [received(worker) for worker in workers] == [("ready", 0), ("ready", 0)]


def received(worker: socket.socket) -> tuple[str, int]:
    """The status of a reply, and the step of the arrays that came with it."""
    data, [fd], _, _ = socket.recv_fds(worker, 1 << 14, 1)
    return msgspec.json.decode(data, type=HandoverReply).status, unpack(fd).step


def test_a_worker_that_may_open_no_file_for_its_data_says_so():
    alone(says_that_it_may_open_none)


def says_that_it_may_open_none() -> None:
    packed = pack(arrays(1, 0))
    with served(lambda *_: packed) as connect:
        worker = connect()
        assert worker.receive(1, 0, 0, 5.0).step == 0
        with files_left(0), pytest.raises(Retryable, match="this worker may open no more files"):
            worker.receive(1, 0, 0, 0.0)


@contextmanager
def hung(peers: int = 0) -> Iterator[str]:
    """The name of a constructor that lets `peers` workers in and answers none: it is stopped, or waits for a disk."""
    name = f"\0coxswain-test-hung-{os.getpid()}-{secrets.token_hex(4)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, ExitStack() as waiting:
        listener.bind(name)
        listener.listen(peers)
        if not peers:
            waiting.enter_context(full(name))
        yield name


def full(name: str) -> socket.socket:
    """A worker behind which no other one is let in."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.connect(name)
    return peer


@pytest.mark.timeout(20)
@pytest.mark.parametrize("peers", [0, 1])
def test_a_constructor_that_hangs_keeps_no_worker_beyond_its_deadline(peers):
    with hung(peers) as name, Handover(name, "token", grace=0.1) as worker:
        with pytest.raises(Retryable, match=r"no data for step 3 \(rank 0\) within 0.2 s"):
            worker.receive(1, 3, 0, 0.2)


def test_a_constructor_that_takes_as_long_as_a_request_waits_is_no_hung_one():
    def provide(generation: int, step: int, rank: int, wait: float) -> Buffer | None:
        threading.Event().wait(0.5)
        return pack(arrays(generation, step))

    with served(provide) as connect:
        assert connect(grace=0.1).receive(1, 3, 0, 5.0).step == 3


@pytest.mark.timeout(20)
@pytest.mark.parametrize("peers", [0, 1])
def test_a_constructor_that_hangs_keeps_no_worker_in_a_world_that_is_over(peers):
    over = iter([False, True])
    with hung(peers) as name, Handover(name, "token", lambda: next(over), grace=0.1) as worker:
        with pytest.raises(Stale, match="generation 1 is over"):
            worker.receive(1, 3, 0, 600.0)
