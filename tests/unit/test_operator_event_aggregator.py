"""Events: what is news, what only counts up, and how many there can be."""

from __future__ import annotations

from typing import Any

import pytest

from coxswain_operator.kubernetes.event_aggregator import EventAggregator
from coxswain_operator.kubernetes.events import Events
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
    book.forget(600.0)
    assert [s.message for series in book._series.values() for s in series] == ["counted", "young"]
    book.unpublished()[0].published = 2
    book.forget(600.0)
    assert list(book._series) == [("other", "Failed")]
    assert book.unpublished() == []


class Server:
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.bodies: list[Manifest] = []

    async def send(self, method: str, path: str, body: Manifest, *_: Any, **__: Any) -> bytes:
        self.bodies.append(body)
        return b""


@pytest.mark.parametrize(("letters", "left"), [(511, 511), (512, 511), (9000, 511)])
async def test_a_text_is_cut_where_the_server_takes_no_more_bytes_and_never_inside_a_letter(
    letters: int, left: int
) -> None:
    server, job = Server(), training_job()
    job["metadata"]["uid"] = "u"
    async with Events(server) as events:  # type: ignore[arg-type]
        events.put(job, Event("Failed", "x" + "ü" * letters))
    assert [body["note"] for body in server.bodies] == ["x" + "ü" * left]
