"""Events: what is news, what only counts up, and how many there can be."""

from __future__ import annotations

from coxswain_operator.kubernetes.event_aggregator import DIFFERENT, WINDOW_SECONDS, EventAggregator

SUBJECT = ("uid", "NodeLost")


def test_the_same_message_again_counts_up_the_event() -> None:
    book = EventAggregator()
    first = book.add(SUBJECT, "trainer-1 is lost", "/e/1", 0.0)
    assert first is not None and book.add(SUBJECT, "trainer-1 is lost", "/e/2", 1.0) is None
    assert [(s.path, s.count) for s in book.unpublished()] == [("/e/1", 2)]


def test_a_thousand_different_losses_are_a_few_events() -> None:
    book = EventAggregator()
    new = [book.add(SUBJECT, f"trainer-{i} is lost", f"/e/{i}", 0.0) for i in range(1000)]
    assert sum(series is not None for series in new) == DIFFERENT
    assert [s.count for s in book.unpublished()] == [1000 - DIFFERENT + 1]


def test_another_reason_or_job_gets_an_event_of_its_own() -> None:
    book = EventAggregator()
    subjects = [SUBJECT, ("uid", "Failed"), ("other", "NodeLost")]
    assert all(book.add(subject, "x", "/e", 0.0) for subject in subjects)


def test_after_its_window_the_same_message_is_a_new_event() -> None:
    book = EventAggregator()
    book.add(SUBJECT, "x", "/e/1", 0.0)
    assert book.add(SUBJECT, "x", "/e/2", WINDOW_SECONDS + 1) is not None


def test_a_count_that_is_not_published_is_not_forgotten() -> None:
    book = EventAggregator()
    book.add(SUBJECT, "x", "/e/1", 0.0)
    book.add(SUBJECT, "x", "/e/2", 1.0)
    book.forget(2 * WINDOW_SECONDS)
    assert len(book.unpublished()) == 1
    book.unpublished()[0].published = 2
    book.forget(2 * WINDOW_SECONDS)
    assert book.unpublished() == []


def test_a_window_begins_again_with_each_count_and_ends_exactly_after_its_time() -> None:
    book = EventAggregator()
    book.add(SUBJECT, "x", "/e/1", 0.0)
    assert book.add(SUBJECT, "x", "/e/2", WINDOW_SECONDS - 1) is None
    assert book.add(SUBJECT, "x", "/e/3", 2 * WINDOW_SECONDS - 2) is None
    assert book.add(SUBJECT, "x", "/e/4", 3 * WINDOW_SECONDS - 2) is not None
