"""Events: what is news, what only counts up, and how many there can be."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coxswain.errors import Retryable
from coxswain_operator.cluster import AlreadyExists, Conflict, Denied
from coxswain_operator.kubernetes.connection import JSON, MERGE, NotFound
from coxswain_operator.kubernetes.event_aggregator import WINDOW_SECONDS, EventAggregator
from coxswain_operator.kubernetes.events import ATTEMPT_SECONDS, COUNT_SECONDS, Events
from coxswain_operator.views import Event, Manifest
from tests.unit.fake_cluster import training_job

SUBJECT = ("uid", "NodeLost")


def added(book: EventAggregator, *messages: str, at: float = 0.0) -> list[bool]:
    """Which of them are new Events; each has its number as path."""
    new = [book.add(SUBJECT, message, f"/e/{number}", at) for number, message in enumerate(messages)]
    assert all(series is None or series.path == f"/e/{number}" for number, series in enumerate(new))
    return [series is not None for series in new]


def test_the_same_message_counts_up_its_own_event_and_the_sixth_of_a_reason_the_last_one() -> None:
    book = EventAggregator()
    assert added(book, "a", "b", "a", "c", "d", "e", "f", "g") == [True, True, False, True, True, True, False, False]
    assert [(s.path, s.count, s.published) for s in book.unpublished()] == [("/e/0", 2, 1), ("/e/5", 3, 1)]


def test_another_reason_or_job_gets_an_event_of_its_own() -> None:
    book = EventAggregator()
    subjects = [SUBJECT, ("uid", "Failed"), ("other", "NodeLost")]
    assert all(book.add(subject, "x", "/e", 0.0) for subject in subjects)


@pytest.mark.parametrize(("passed", "new"), [(599.0, False), (600.0, True)])
def test_ten_minutes_after_its_last_count_the_same_message_is_a_new_event(passed: float, new: bool) -> None:
    book = EventAggregator()
    assert added(book, "x") == [True]
    assert added(book, "x", at=599.0) == [False]
    assert added(book, "x", at=599.0 + passed) == [new]


def test_what_is_older_than_ten_minutes_is_forgotten_once_its_count_is_published() -> None:
    book = EventAggregator()
    added(book, "counted", "counted", "plain")
    book.add(("other", "Failed"), "young", "/e", 1.0)
    assert book.remembered == 3
    book.forget(600.0)
    assert book.remembered == 2
    (counted,) = book.unpublished()
    assert counted.message == "counted"
    counted.published = 2
    book.forget(600.0)
    assert (book.remembered, book.unpublished()) == (1, [])
    assert book.add(("other", "Failed"), "young", "/e", 600.0) is None


class Server:
    """Keeps what it is sent. `errors`: what it answers first, one for each request; None: no error."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors, self.sent = list(errors), list[tuple[str, str, Manifest, str]]()

    async def send(self, method: str, path: str, body: Manifest, content_type: str, deadline: float) -> bytes:
        self.sent.append((method, path, body, content_type))
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error
        return b""

    @property
    def bodies(self) -> list[Manifest]:
        return [body for _, _, body, _ in self.sent]


def job() -> Manifest:
    found = training_job()
    found["metadata"]["uid"] = "u"
    return found


async def published(server: Server, *published: Event) -> None:
    async with Events(server) as events:  # type: ignore[arg-type]
        for event in published:
            events.put(job(), event)


@pytest.mark.parametrize(("warning", "type_"), [(True, "Warning"), (False, "Normal")])
async def test_an_event_says_about_which_job_what_happened_when_and_how_bad_it_is(warning: bool, type_: str) -> None:
    server = Server()
    await published(server, Event("NodeLost", "n is gone", warning, time=1.5))
    ((method, path, body, content_type),) = server.sent
    assert (method, path, content_type) == ("POST", "/apis/events.k8s.io/v1/namespaces/lab/events", JSON)
    assert (body["reason"], body["note"], body["type"]) == ("NodeLost", "n is gone", type_)
    assert body["eventTime"] == "1970-01-01T00:00:01.500000Z"
    assert body["regarding"] == {
        "apiVersion": "coxswain.dev/v1alpha1", "kind": "TrainingJob", "name": "demo", "namespace": "lab", "uid": "u",
    }  # fmt: skip


async def test_an_event_of_a_time_that_cannot_be_written_has_the_nearest_that_can() -> None:
    server = Server()
    await published(server, Event("Failed", "early", time=-1e300), Event("Failed", "late", time=1e300))
    assert [body["eventTime"][:10] for body in server.bodies] == ["1970-01-01", "9999-12-31"]


async def test_what_is_said_again_is_counted_in_the_event_that_is_there_at_the_latest_when_the_operator_leaves() -> (
    None
):
    server = Server()
    await published(server, *[Event("NodeLost", "n is gone")] * 3)
    (_, _, made, _), (method, path, counted, content_type) = server.sent
    assert (method, content_type) == ("PATCH", MERGE)
    assert path == f"/apis/events.k8s.io/v1/namespaces/lab/events/{made['metadata']['name']}"
    assert counted["series"]["count"] == 3


async def test_a_count_is_written_once_and_an_event_that_is_old_is_forgotten() -> None:
    server, book, looked = Server(), EventAggregator(), asyncio.Event()
    pauses = iter((None, None, looked))
    now = 1000.0

    async def pause(seconds: float) -> None:
        assert seconds == COUNT_SECONDS
        nonlocal now
        now += WINDOW_SECONDS
        if (last := next(pauses)) is not None:
            last.set()
            await asyncio.Event().wait()

    async with Events(server, book, lambda: now, pause) as events:  # type: ignore[arg-type]
        for _ in range(3):
            events.put(job(), Event("NodeLost", "n is gone"))
        assert book.remembered == 1
        await looked.wait()
        assert book.remembered == 0
    assert [method for method, *_ in server.sent] == ["POST", "PATCH"]


@pytest.mark.parametrize(
    "error", [AlreadyExists("x"), Conflict("x"), Denied("Forbidden", "no"), Retryable("503"), ValueError("unexpected")]
)
async def test_an_event_that_the_server_does_not_take_keeps_no_other_from_being_written(error: Exception) -> None:
    server = Server(error)
    await published(server, Event("NodeLost", "lost"), Event("Completed", "done"))
    assert [body["note"] for body in server.bodies] == ["lost", "done"]


async def test_a_job_that_was_made_again_under_its_name_gets_events_of_its_own() -> None:
    """Those of the former one name its uid: `kubectl describe` does not show them."""
    server, again = Server(), job()
    again["metadata"]["uid"] = "another"
    async with Events(server) as events:  # type: ignore[arg-type]
        for each in (job(), again):
            events.put(each, Event("NodeLost", "n is gone"))
    assert [method for method, *_ in server.sent] == ["POST", "POST"]
    assert [body["regarding"]["uid"] for body in server.bodies] == [job()["metadata"]["uid"], "another"]


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ([Retryable("503"), None], ["POST", "POST"]),
        ([Denied("Forbidden", "no right yet"), None], ["POST", "POST"]),
        ([AlreadyExists("its own lost answer"), None], ["POST", "PATCH"]),
        ([None, NotFound("deleted by hand"), None], ["POST", "PATCH", "POST"]),
        ([None, Retryable("503"), None], ["POST", "PATCH", "PATCH"]),
    ],
    ids=["not made", "not permitted", "made", "deleted", "not counted"],
)
async def test_what_is_said_again_is_a_new_event_where_the_server_does_not_have_the_first_one(
    first: list[Exception | None], then: list[str]
) -> None:
    """Else an Event that one outage has lost stays lost for as long as its message comes again."""
    server, rounds = Server(*first), asyncio.Queue[None]()
    async with Events(server, pause=lambda seconds: rounds.get()) as events:  # type: ignore[arg-type]
        for _ in first:
            events.put(job(), Event("NodeLost", "n is gone"))
            rounds.put_nowait(None)
            await settled()
    assert [method for method, *_ in server.sent] == then


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.looptime(start=1000)
async def test_a_server_that_takes_no_event_holds_the_end_of_the_operator_up_for_five_seconds() -> None:
    class Silent(Server):
        async def send(self, *_: Any, **__: Any) -> bytes:
            await asyncio.Event().wait()
            return b""

    clock = asyncio.get_running_loop().time
    began = clock()
    async with asyncio.timeout(3600):
        await published(Silent(), *[Event("NodeLost", f"{node} is gone") for node in "abc"])
    assert clock() - began == ATTEMPT_SECONDS


@pytest.mark.parametrize(("letters", "left"), [(511, 511), (512, 511), (9000, 511)])
async def test_a_text_is_cut_where_the_server_takes_no_more_bytes_and_never_inside_a_letter(
    letters: int, left: int
) -> None:
    server = Server()
    await published(server, Event("Failed", "x" + "ü" * letters))
    assert [body["note"] for body in server.bodies] == ["x" + "ü" * left]


@pytest.mark.parametrize(("letters", "left"), [(1024, 1024), (1025, 1024)])
async def test_a_text_has_as_many_bytes_as_the_server_takes(letters: int, left: int) -> None:
    server = Server()
    await published(server, Event("Failed", "x" * letters))
    assert [len(body["note"]) for body in server.bodies] == [left]
