"""A fetch of slices: from the loaders that own them, across their restarts, until the generation is over."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from coxswain.errors import Refused, Stale
from coxswain.index import BlockEntry
from coxswain.layout import Layout
from coxswain.membership.values import Sequence
from coxswain.planlog import LoaderShare
from coxswain.wire import LoaderAddress, LoaderAddresses, SourceBlocks, World
from coxswain_data.fetcher import Fetcher
from coxswain_link.flight import Request, Serve, SliceClient, SlicePart, SliceRequest, SliceServer
from coxswain_link.metrics import build

BLOCKS = tuple(BlockEntry("a", ordinal, 0, 1, 1, "", samples=2) for ordinal in range(3))
SHARES = tuple(LoaderShare(f"loader-{share}", "code", share, 2) for share in range(2))
WORLD = World(3, 0, Layout(()), (), (), SHARES)


def wanted(index: int, start: int = 0, stop: int = 5, source: str = "code") -> SliceRequest:
    return SliceRequest(Sequence(source, 0, index, 0, 9, 9), start, stop)


def serve(request: Request) -> Iterator[SlicePart]:
    """Token t of sample i is 100 i + t. Long slices come in parts of three tokens, all first parts first."""
    for first in (True, False):
        for item, part in enumerate(request.slices):
            tokens = np.arange(part.start, part.stop, dtype=np.int32) + 100 * part.sequence.index
            digest = f"digest {part.sequence.index}" if first and not part.start else None
            yield SlicePart(item, tokens[:3] if first else tokens[3:], digest)


class Job:
    """Two loaders, and what the coordinator says of them. `serve` may be replaced for each."""

    def __init__(self) -> None:
        self.serve: dict[str, Serve] = {"loader-0": serve, "loader-1": serve}
        self.requests: list[tuple[str, Request]] = []
        self.asked = Counter[str]()
        self.servers = {name: self._start(name) for name in self.serve}
        self.addresses = [LoaderAddress(n, "127.0.0.1", s.port, n) for n, s in self.servers.items()]
        self.early: list[list[LoaderAddress]] = []  # answered before `addresses`, once each
        self.without_index = 0  # so many requests for blocks are answered with nothing

    def _start(self, name: str) -> SliceServer:
        def answer(request: Request) -> Iterator[SlicePart]:
            self.requests.append((name, request))
            return self.serve[name](request)

        server = SliceServer("127.0.0.1", 0, "t", answer)
        threading.Thread(target=server.serve, daemon=True).start()
        return server

    def get(self, path: str, type_: type, **query: Any) -> Any:
        """A call of the coordinator."""
        self.asked[path] += 1
        if path == "/v1/blocks":
            if self.without_index:
                self.without_index -= 1
                return None
            start = query["from"]  # two at a time
            return SourceBlocks("code", BLOCKS[start : start + 2], 3) if query["source"] == "code" else None
        return LoaderAddresses(tuple(self.early.pop(0) if self.early else self.addresses))

    def fetch(self, *slices: SliceRequest, active: Any = lambda: True) -> tuple[list[list[int]], dict[int, str]]:
        coordinator: Any = self
        with closing(Fetcher(WORLD, coordinator, "t", build("constructor"))) as fetcher:
            tokens, digests = fetcher.fetch(slices, active)
            return [part.tolist() for part in tokens], dict(digests)


@pytest.fixture
def job() -> Iterator[Job]:
    found = Job()
    yield found
    for server in found.servers.values():
        server.close()


def test_slices_come_in_the_order_asked_for_from_the_loaders_that_own_them(job: Job) -> None:
    """Blocks of two samples go to the loaders in turn."""
    tokens, digests = job.fetch(wanted(2), wanted(0, 4, 6), wanted(5, 0, 0), wanted(3, 1, 9))
    assert tokens == [[200, 201, 202, 203, 204], [4, 5], [], list(range(301, 309))]
    assert digests == {0: "digest 2", 2: "digest 5"}
    asked = {name: (r.generation, [s.sequence.index for s in r.slices]) for name, r in job.requests}
    assert asked == {"loader-0": (3, [0, 5]), "loader-1": (3, [2, 3])}


def test_blocks_and_addresses_are_asked_for_once(job: Job) -> None:
    coordinator: Any = job
    with closing(Fetcher(WORLD, coordinator, "t", build("constructor"))) as fetcher:
        for _ in range(3):
            fetcher.fetch([wanted(0), wanted(2)], lambda: True)
    assert job.asked == {"/v1/blocks": 2, "/v1/loaders": 2}


def test_the_bytes_of_each_loader_are_counted(job: Job) -> None:
    coordinator: Any = job
    metrics = build("constructor")
    with closing(Fetcher(WORLD, coordinator, "t", metrics)) as fetcher:
        fetcher.fetch([wanted(0), wanted(4), wanted(2)], lambda: True)
    assert b'coxswain_constructor_bytes_total{loader="loader-0"} 40.0' in metrics.exposition()
    assert b'coxswain_constructor_bytes_total{loader="loader-1"} 20.0' in metrics.exposition()


def moved(job: Job) -> None:
    job.early = [[replace(job.addresses[0], port=1)]]


def unregistered(job: Job) -> None:
    job.early = [[]]


def short(job: Job) -> None:
    """The first answer lacks the second part of each slice."""

    def once(request: Request) -> Iterator[SlicePart]:
        job.serve["loader-0"] = serve
        return (part for part in serve(request) if part.tokens.size == 3)

    job.serve["loader-0"] = once


def long(job: Job) -> None:
    """The first answer has the first part of each slice twice."""

    def once(request: Request) -> Iterator[SlicePart]:
        job.serve["loader-0"] = serve
        return (part for part in (*serve(request), *serve(request)) if part.tokens.size == 3)

    job.serve["loader-0"] = once


@pytest.mark.parametrize(("trouble", "connections"), [(moved, 2), (unregistered, 1), (short, 2), (long, 2)])
def test_a_loader_that_fails_at_first_is_looked_up_and_asked_again(
    job: Job, trouble: Any, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No connection stays open."""
    closed, close = list[SliceClient](), SliceClient.close
    monkeypatch.setattr(SliceClient, "close", lambda client: (closed.append(client), close(client)))
    trouble(job)
    assert job.fetch(wanted(0)) == ([[0, 1, 2, 3, 4]], {0: "digest 0"})
    assert job.asked["/v1/loaders"] == 2
    assert len(set(closed)) == connections


def test_a_refusal_of_a_loader_is_not_repeated(job: Job) -> None:
    def refuse(request: Request) -> Iterator[SlicePart]:
        raise Refused("SourceChanged", "a.txt is not what was indexed")

    job.serve["loader-0"] = refuse
    with pytest.raises(Refused, match=r"a\.txt"):
        job.fetch(wanted(0))
    assert len(job.requests) == 1


def test_a_fetch_from_an_absent_loader_ends_with_its_generation(job: Job) -> None:
    job.addresses.clear()
    active = iter([True, True, True, False])  # for the blocks, and twice for the loader
    with pytest.raises(Stale, match="generation 3 is over"):
        job.fetch(wanted(0), active=lambda: next(active))
    assert job.asked["/v1/loaders"] == 2


def test_a_loader_that_stays_away_is_a_line_of_the_log_and_not_one_for_each_try(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be away for hours, as where no node has room for it, and is asked for several times a second."""
    job.addresses.clear()
    active = iter([*[True] * 8, False])
    with pytest.raises(Stale):
        job.fetch(wanted(0), active=lambda: next(active))
    assert (job.asked["/v1/loaders"], caplog.text.count("no data from loader-0")) == (7, 1)


def test_each_loader_that_is_away_has_a_line_of_its_own(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    job.addresses.clear()
    with pytest.raises(Stale):
        job.fetch(wanted(0), wanted(2), active=lambda: any(f"loader-{n} has" not in caplog.text for n in (0, 1)))
    assert [caplog.text.count(f"no data from loader-{n}") for n in (0, 1)] == [1, 1]


def test_an_index_that_a_new_coordinator_lacks_is_waited_for(job: Job) -> None:
    """Loaders send it again, which may take minutes; workers train meanwhile."""
    job.without_index = 2
    assert job.fetch(wanted(0)) == ([[0, 1, 2, 3, 4]], {0: "digest 0"})
    assert job.asked["/v1/blocks"] == 2 + 2


def test_a_source_without_an_index_is_waited_for_until_the_generation_is_over(job: Job) -> None:
    active = iter([True, True, False])
    with pytest.raises(Stale, match="generation 3 is over"):
        job.fetch(wanted(0, source="docs"), active=lambda: next(active))
    assert job.asked["/v1/blocks"] == 2


@pytest.mark.parametrize(("refusing", "absent"), [(0, 1), (1, 0)])
def test_what_a_loader_refuses_waits_for_no_absent_one_nor_does_a_fetcher_that_is_closed(
    job: Job, refusing: int, absent: int
) -> None:
    """The generation goes on without a builder."""

    def refuse(request: Request) -> Iterator[SlicePart]:
        raise Refused("SourceChanged", "a.txt is not what was indexed")

    job.serve[f"loader-{refusing}"] = refuse
    del job.addresses[absent]
    coordinator: Any = job
    fetcher = Fetcher(WORLD, coordinator, "t", build("constructor"))
    with pytest.raises(Refused, match=r"a\.txt"):
        fetcher.fetch([wanted(0), wanted(2)], lambda: True)
    fetcher.close()
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("fetch")]
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
