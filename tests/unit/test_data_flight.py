"""Slices over Arrow Flight, server and client in one process."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import numpy as np
import pytest
from pyarrow import flight

from coxswain.errors import CoxswainError, Refused, Retryable, Stale
from coxswain.membership.values import Sequence
from coxswain_link.flight import (
    BATCH_TOKENS,
    Request,
    Serve,
    SliceClient,
    SlicePart,
    SliceRequest,
    SliceServer,
    into_batches,
)

ENDLESS = Sequence("a", 0, 0, 0, 1 << 40, 1 << 40)


@contextmanager
def served(serve: Serve, token: str = "t") -> Iterator[Callable[..., list[SlicePart]]]:
    """A function that fetches slices [start, stop) of one endless sequence."""
    server = SliceServer("127.0.0.1", 0, "t", serve)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    client = SliceClient("127.0.0.1", server.port, token)

    def fetch(*ranges: tuple[int, int], deadline: float = 20.0) -> list[SlicePart]:
        return list(client.fetch(Request(1, tuple(SliceRequest(ENDLESS, a, b) for a, b in ranges)), deadline))

    yield fetch
    client.close()
    server.shutdown()
    thread.join(10)


def come_and_go(rounds: int) -> None:
    """Pairs of servers, each pair closed before the next begins. Raises Retryable when one does not listen any more."""
    for _ in range(rounds):
        servers = [SliceServer("127.0.0.1", 0, "t", counting) for _ in range(2)]
        for server in servers:
            threading.Thread(target=server.serve, daemon=True).start()
        for server in servers:
            client = SliceClient("127.0.0.1", server.port, "t")
            assert len(list(client.fetch(Request(1, (SliceRequest(ENDLESS, 0, 3),)), 20.0))) == 1
            client.close()
        for server in servers:
            server.close()


def counting(request: Request) -> Iterator[SlicePart]:
    for item, wanted in enumerate(request.slices):
        yield SlicePart(
            item, np.arange(wanted.start, wanted.stop, dtype=np.int32), None if wanted.start else f"digest {item}"
        )


def failing(error: CoxswainError) -> Serve:
    """Delivers more than a batch before it fails."""

    def serve(request: Request) -> Iterator[SlicePart]:
        yield SlicePart(0, np.zeros(2 * BATCH_TOKENS, np.int32))
        raise error

    return serve


def test_slices_come_in_order_with_their_tokens_and_digests():
    with served(counting) as fetch:
        parts = fetch((0, 3), (5, 5), (7, 9))
    assert [(p.item, p.tokens.tolist(), p.digest) for p in parts] == [
        (0, [0, 1, 2], "digest 0"),
        (1, [], None),
        (2, [7, 8], None),
    ]


def test_a_slice_of_a_million_tokens_comes_in_several_batches_with_one_digest():
    with served(counting) as fetch:
        parts = fetch((0, 1_000_000))
    assert len(parts) == -(-1_000_000 // BATCH_TOKENS)
    assert np.array_equal(np.concatenate([p.tokens for p in parts]), np.arange(1_000_000))
    assert [p.digest for p in parts] == ["digest 0"] + [None] * (len(parts) - 1)


def test_nothing_asked_for_is_nothing_sent():
    with served(counting) as fetch:
        assert fetch() == []


def test_many_small_slices_share_batches():
    with served(counting) as fetch:
        parts = fetch(*((i, i + 10) for i in range(5000)))
    assert [p.tokens[0] for p in parts] == list(range(5000))


@pytest.mark.parametrize(
    ("sizes", "rows"), [([1] * 9, [4, 4, 1]), ([3, 3, 3], [2, 1]), ([4, 0, 4], [1, 2]), ([0], [1]), ([], [])]
)
def test_a_batch_is_sent_once_it_has_its_tokens(sizes, rows):
    batches = into_batches([SlicePart(0, np.zeros(size, np.int32)) for size in sizes], least=4)
    assert [len(batch) for batch in batches] == rows


def test_no_proxy_stands_between_a_constructor_and_its_loaders(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    with served(counting) as fetch:
        assert len(fetch((0, 3))) == 1


@pytest.mark.parametrize(
    "error",
    [Stale("generation 1 is over"), Refused("SourceChanged", "a.txt changed"), Retryable("the store is busy")],
    ids=repr,
)
def test_an_error_in_the_middle_of_a_stream_arrives_as_what_it_was(error):
    with served(failing(error)) as fetch, pytest.raises(type(error), match=str(error)) as caught:
        fetch((0, 1))
    assert getattr(caught.value, "reason", None) == getattr(error, "reason", None)


@pytest.mark.parametrize("first", [0, 2 * BATCH_TOKENS], ids=["at the begin", "in the middle"])
def test_a_bug_in_the_loader_is_named_and_not_taken_for_a_fault_of_the_user(first: int):
    def serve(request: Request) -> Iterator[SlicePart]:
        yield SlicePart(0, np.zeros(first, np.int32))
        raise PermissionError(13, "Permission denied", "/data/docs.jsonl")

    with served(serve) as fetch, pytest.raises(Retryable) as caught:
        fetch((0, 1))
    assert str(caught.value) == "the loader failed: PermissionError: [Errno 13] Permission denied: '/data/docs.jsonl'"


@pytest.mark.parametrize("letter", ["x", "é", "文", "\0"])
def test_an_error_that_is_too_long_for_the_headers_of_an_answer_arrives_with_its_reason(letter: str):
    """gRPC drops headers above some KiB: what is left of the error says that the loader is unreachable."""
    with served(failing(Refused("SourceChanged", "docs: " + 20_000 * letter))) as fetch:
        with pytest.raises(Refused, match=f"^docs: {letter}+…$") as caught:
            fetch((0, 1))
    assert caught.value.reason == "SourceChanged"


def test_a_wrong_token_is_refused():
    with served(counting, token="other") as fetch, pytest.raises(Refused, match="token") as caught:
        fetch((0, 1))
    assert caught.value.reason == "TokenRejected"


@pytest.mark.parametrize("headers", [[], [(b"authorization", b"")], [(b"authorization", b"Bearer ")]])
def test_a_call_without_a_token_is_refused(headers: list[tuple[bytes, bytes]]):
    server = SliceServer("127.0.0.1", 0, "t", counting)
    ticket = flight.Ticket(msgspec.json.encode(Request(1, (SliceRequest(ENDLESS, 0, 3),))))
    with (
        flight.FlightClient(f"grpc://127.0.0.1:{server.port}") as client,
        pytest.raises(flight.FlightUnauthenticatedError),
    ):
        client.do_get(ticket, flight.FlightCallOptions(timeout=20.0, headers=headers)).read_all()
    server.close()


def test_a_call_of_a_hanging_loader_ends_at_the_deadline():
    release = threading.Event()

    def serve(request: Request) -> Iterator[SlicePart]:
        release.wait(20)
        yield from ()

    with served(serve) as fetch:
        with pytest.raises(Retryable, match="is unreachable"):
            fetch((0, 1), deadline=0.2)
        release.set()


def test_a_loader_that_is_not_there_is_retryable():
    client = SliceClient("127.0.0.1", 1, "t")
    with pytest.raises(Retryable, match=r"127\.0\.0\.1:1 is unreachable"):
        list(client.fetch(Request(1, ()), 5.0))
    client.close()


def test_a_port_that_is_taken_is_named():
    server = SliceServer("127.0.0.1", 0, "t", counting)
    with pytest.raises(Retryable, match=str(server.port)):
        SliceServer("127.0.0.1", server.port, "t", counting)
    server.shutdown()


def test_a_server_leaves_while_a_request_is_under_way():
    begun, release, left = threading.Event(), threading.Event(), threading.Event()

    def stuck(request: Request) -> Iterator[SlicePart]:
        begun.set()
        release.wait(30)
        yield from counting(request)

    server = SliceServer("127.0.0.1", 0, "t", stuck)
    client = SliceClient("127.0.0.1", server.port, "t")
    request = Request(1, (SliceRequest(Sequence("a", 0, 0, 0, 9, 9), 0, 9),))
    asking = threading.Thread(target=lambda: list(client.fetch(request, 30)))
    asking.start()
    assert begun.wait(10)
    closing = threading.Thread(target=lambda: (server.close(), left.set()))
    closing.start()
    assert left.wait(10)
    release.set()
    for thread in (asking, closing):
        thread.join(10)
    client.close()
    server.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_server_that_ends_closes_no_descriptor_of_the_next_ones():
    """Processes take the cores from each other: with Arrow's own `serve`, one of the next servers soon ceased to listen."""
    command = [sys.executable, "-c", f"from {__name__} import come_and_go; come_and_go(1000)"]
    busy = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    try:
        said = [process.communicate(timeout=240)[1] for process in busy]
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert [process.returncode for process in busy] == [0] * 4, said
