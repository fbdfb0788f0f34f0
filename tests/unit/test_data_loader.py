"""A loader without its sockets: what it sends to coordinators that come and go, and which requests it answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from coxswain.config import JobConfig
from coxswain.digests import tokens_digest
from coxswain.errors import CoxswainError, Refused, Retryable, Stale
from coxswain.exits import Exit
from coxswain.layout import Layout
from coxswain.membership.values import Sequence
from coxswain.planlog import LoaderShare
from coxswain.wire import Finished, Indexed, Register, Registered, Shares, SourceBlocks, World
from coxswain_data import indexer, loader, source
from coxswain_data.loader import Loader
from coxswain_data.samples import Samples
from coxswain_link.environment import Environment
from coxswain_link.flight import Request, SlicePart, SliceRequest
from coxswain_link.http_client import JobEnded
from coxswain_link.metrics import MetricsRegistry, build
from coxswain_link.store import Denied, Store, StoreUnavailable
from tests.local.data_plane import Corpus, job_of, write_corpus

ME = Register("loader", "loader-0", "pod", "one", "127.0.0.1", 1)
DOCS = LoaderShare("loader-0", "docs", 0, 1)


def nothing() -> None:
    """The coordinator stays as it is."""


class Coordinator:
    """Answers as it is in each round, and ends the job behind the last one."""

    def __init__(self) -> None:
        self.rounds: list[Callable[[], None]] = []
        self.generation, self.shares, self.blocks = 0, (DOCS,), ()
        self.registered: list[Register] = []
        self.indexed: list[Indexed] = []
        self.ready: list[bool] = []  # as the loader was when it asked for the world
        self.meanwhile: Callable[[], Any] = nothing  # happens while the loader waits for a world
        self.loader: Loader
        self.metrics: MetricsRegistry  # of the loader

    def post(self, path: str, body: Any, type_: Any = None) -> Any:
        if path == "/v1/register":
            if not self.rounds:
                raise JobEnded(Finished(Exit.DONE, "Completed", ""))
            self.rounds.pop(0)()
            self.registered.append(body)
            return Registered(self.generation)
        self.indexed.append(body)
        return None

    def get(self, path: str, type_: Any, **query: Any) -> Any:
        if path == "/v1/shares":
            assert query["loader"] == "loader-0"
            return Shares(self.shares) if self.shares else None
        if path == "/v1/blocks":
            assert self.blocks or query["wait"] == 0  # the loader has what is asked for: each share would wait
            return SourceBlocks(query["source"], self.blocks, len(self.blocks)) if self.blocks else None
        self.ready.append(self.loader.ready)
        newer = self.generation > query["after"]
        self.meanwhile()
        return World(self.generation, 0, Layout(()), (), (), self.shares) if newer else None

    def goes_through(self, *rounds: Callable[[], None]) -> None:
        """The loader follows it to the job's end."""
        self.rounds = list(rounds)
        with pytest.raises(JobEnded):
            self.loader.follow(ME)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def coordinator(corpus: Corpus, tmp_path: Path) -> Iterator[Coordinator]:
    found = Coordinator()
    starts(found, job_of(corpus, tmp_path / "runs", 1))
    return found


def starts(coordinator: Any, job: JobConfig) -> None:
    """A loader of this job."""
    env = Environment(
        name="loader-0", index=0, coordinator_url="", job=job, token="t", pod_name="pod", pod_ip="127.0.0.1", pod_uid="",
    )  # fmt: skip
    coordinator.metrics = build("loader")
    coordinator.loader = Loader(env, coordinator, coordinator.metrics)


def test_every_coordinator_that_lacks_the_index_gets_it_and_it_is_made_once(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, make = [0], indexer.index_share

    def count(*args: Any) -> Indexed:
        made[0] += 1
        return make(*args)

    monkeypatch.setattr(loader, "index_share", count)
    coordinator.goes_through(nothing, nothing)
    first, again = coordinator.indexed
    assert (first, made[0]) == (again, 1)
    assert (first.share, sum(block.samples for block in first.blocks)) == (DOCS, 60)
    coordinator.goes_through(lambda: setattr(coordinator, "blocks", first.blocks))
    assert len(coordinator.indexed) == 2


def test_a_large_index_is_sent_in_parts(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "messages", lambda indexed: indexer.messages(indexed, most=4))
    coordinator.goes_through(nothing)
    assert [(i.part, i.parts, len(i.blocks)) for i in coordinator.indexed] == [(0, 2, 4), (1, 2, 2)]


def test_a_loader_is_ready_once_its_shares_are_indexed_or_there_is_a_world(coordinator: Coordinator) -> None:
    coordinator.shares = ()
    coordinator.goes_through(nothing, lambda: setattr(coordinator, "shares", (DOCS,)))
    assert coordinator.ready == [False, True]
    coordinator.shares, coordinator.indexed = (), []
    coordinator.goes_through(nothing, lambda: setattr(coordinator, "generation", 3))
    assert (coordinator.ready[2:], coordinator.indexed) == ([False, True], [])


def test_a_source_that_is_refused_is_reported_with_its_reason_and_ends_the_loader(
    coordinator: Coordinator, corpus: Corpus, tmp_path: Path
) -> None:
    job = job_of(corpus, tmp_path / "runs", 1)
    sources = tuple(replace(each, include="*.none") for each in job.mix.sources)
    starts(coordinator, replace(job, mix=replace(job.mix, sources=sources)))
    coordinator.rounds = [nothing]
    with pytest.raises(Refused, match="none matches include"):
        coordinator.loader.follow(ME)
    (found,) = coordinator.indexed
    assert found.fault is not None and (found.share, found.fault.reason) == (DOCS, "SourceEmpty")


@pytest.mark.parametrize("opens", [loader, source])
def test_what_a_store_answers_instead_of_data_is_reported_to_the_coordinator(
    coordinator: Coordinator, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opens: Any
) -> None:
    """Of the checkpoints, which the loader opens, and of a source."""
    stores, plain = [], opens.open_store

    def opened(*args: Any, **options: Any) -> Store:
        stores.append(plain(*args, **options))
        return stores[-1]

    monkeypatch.setattr(opens, "open_store", opened)
    starts(coordinator, job_of(corpus, tmp_path / "runs", 1))
    coordinator.goes_through(nothing)
    (store,) = stores
    store.last_error = "the server answers 503"
    coordinator.shares = ()  # no call that would succeed
    coordinator.goes_through(nothing)
    assert [r.last_error for r in coordinator.registered] == ["", "the server answers 503"]


# --- requests -------------------------------------------------------------------------------------------------------


def request(generation: int, *sequences: Sequence, start: int = 0) -> Request:
    return Request(generation, tuple(SliceRequest(s, start, s.tokens) for s in sequences))


def document(corpus: Corpus, index: int, start: int = 0, stop: int = 0) -> Sequence:
    length = len(corpus.documents["docs"][index].encode()) + 1
    return Sequence("docs", 0, index, start, stop or length, length)


@pytest.fixture
def serving(coordinator: Coordinator) -> Loader:
    """A loader whose coordinator has the index."""
    coordinator.goes_through(nothing)
    coordinator.blocks = coordinator.indexed[0].blocks
    return coordinator.loader


def served(loader: Loader, request: Request) -> list[SlicePart]:
    return list(loader.serve(request))


def test_a_request_of_a_generation_that_is_over_is_refused(
    serving: Loader, coordinator: Coordinator, corpus: Corpus
) -> None:
    """A caller or the coordinator names the newer one."""
    first = document(corpus, 0)
    assert len(served(serving, request(5, first))) == len(served(serving, request(5, first))) == 1
    assert b'coxswain_loader_samples_total{source="docs"} 1.0' in coordinator.metrics.exposition()  # made once
    with pytest.raises(Stale, match="generation 4 is over; the current one is 5"):
        served(serving, request(4, first))
    coordinator.goes_through(lambda: setattr(coordinator, "generation", 6))
    with pytest.raises(Stale, match="generation 5 is over; the current one is 6"):
        served(serving, request(5, first))
    coordinator.generation, coordinator.meanwhile = 7, lambda: served(serving, request(8, first))
    coordinator.goes_through(nothing)
    with pytest.raises(Stale, match="generation 7 is over; the current one is 8"):
        served(serving, request(7, first))


def test_the_digest_of_a_sequence_comes_with_its_first_token_and_covers_all_of_it(
    serving: Loader, coordinator: Coordinator, corpus: Corpus
) -> None:
    index = max(range(60), key=lambda i: len(corpus.documents["docs"][i]))
    whole = [*corpus.documents["docs"][index].encode(), 256]
    piece = document(corpus, index, 7, len(whole) - 5)
    (first,), (rest,) = served(serving, request(1, piece)), served(serving, request(1, piece, start=1))
    assert (first.tokens.tolist(), rest.tokens.tolist()) == (whole[7:-5], whole[8:-5])
    assert (first.digest, rest.digest) == (tokens_digest(first.tokens), None)
    (head,) = served(serving, Request(1, (SliceRequest(piece, 0, 4),)))
    assert (head.tokens.tolist(), head.digest) == (whole[7:11], first.digest)
    count = len(first.tokens) + len(rest.tokens) + len(head.tokens)
    assert (
        f'coxswain_loader_tokens_served_total{{source="docs"}} {count}.0'.encode() in coordinator.metrics.exposition()
    )


@pytest.mark.parametrize("more", [1, -1])
def test_a_plan_that_counts_other_tokens_than_the_index_is_refused(serving: Loader, corpus: Corpus, more: int) -> None:
    one = document(corpus, 3)
    with pytest.raises(Refused, match=f"counts {one.length + more} tokens in sample 3 of source 'docs'") as caught:
        served(serving, request(1, replace(one, length=one.length + more)))
    assert caught.value.reason == "PlanBroken"


@pytest.mark.parametrize(
    "error",
    [
        StoreUnavailable("s3://corpus/docs/5.jsonl: there is no such bucket"),
        Denied("s3://corpus/docs/5.jsonl: credentials of Secret 's3' refused"),
    ],
    ids=["away", "denied"],
)
def test_a_store_that_stays_away_while_a_request_is_answered_ends_the_loader(
    serving: Loader, coordinator: Coordinator, corpus: Corpus, monkeypatch: pytest.MonkeyPatch, error: CoxswainError
) -> None:
    """The job ends by what is missing. A constructor may have given the request up: refused keys are waited for longer."""

    def away(samples: Samples, source: str, index: int) -> Any:
        raise error

    monkeypatch.setattr(Samples, "tokens", away)
    with pytest.raises(type(error)):
        served(serving, request(1, document(corpus, 0)))
    coordinator.rounds = [nothing]
    with pytest.raises(type(error), match=re.escape(str(error))):
        serving.follow(ME)


def test_a_bug_that_shows_while_a_request_is_answered_ends_the_loader_with_its_name(
    serving: Loader, coordinator: Coordinator, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart may help, and restarts are counted: a constructor alone repeats the request for ever."""

    def broken(samples: Samples, source: str, index: int) -> Any:
        raise PermissionError(13, "Permission denied", "/data/5.jsonl")

    monkeypatch.setattr(Samples, "tokens", broken)
    with pytest.raises(PermissionError):
        served(serving, request(1, document(corpus, 0)))
    coordinator.rounds = [nothing]
    with pytest.raises(Retryable, match=r"^the loader failed: PermissionError: .* '/data/5\.jsonl'$"):
        serving.follow(ME)
