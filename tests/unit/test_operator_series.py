"""Events: what is news, what only counts up, and how many there can be."""

from __future__ import annotations

from coxswain_operator.kubernetes.series import DIFFERENT, WINDOW_SECONDS, Book

SUBJECT = ("uid", "NodeLost")


def test_the_same_words_again_count_up_the_event_that_is_there() -> None:
    book = Book()
    first = book.take(SUBJECT, "trainer-1 is lost", "/e/1", 0.0)
    assert first is not None and book.take(SUBJECT, "trainer-1 is lost", "/e/2", 1.0) is None
    assert [(s.path, s.count) for s in book.behind()] == [("/e/1", 2)]


def test_a_thousand_different_losses_are_a_few_events() -> None:
    book = Book()
    new = [book.take(SUBJECT, f"trainer-{i} is lost", f"/e/{i}", 0.0) for i in range(1000)]
    assert sum(series is not None for series in new) == DIFFERENT
    assert [s.count for s in book.behind()] == [1000 - DIFFERENT + 1]


def test_another_reason_or_job_is_news_of_its_own() -> None:
    book = Book()
    subjects = [SUBJECT, ("uid", "Failed"), ("other", "NodeLost")]
    assert all(book.take(subject, "x", "/e", 0.0) for subject in subjects)


def test_after_a_while_the_same_is_news_again() -> None:
    book = Book()
    book.take(SUBJECT, "x", "/e/1", 0.0)
    assert book.take(SUBJECT, "x", "/e/2", WINDOW_SECONDS + 1) is not None


def test_what_has_not_been_told_is_not_forgotten() -> None:
    book = Book()
    book.take(SUBJECT, "x", "/e/1", 0.0)
    book.take(SUBJECT, "x", "/e/2", 1.0)
    book.forget(2 * WINDOW_SECONDS)
    assert len(book.behind()) == 1
    book.behind()[0].told = 2
    book.forget(2 * WINDOW_SECONDS)
    assert book.behind() == []
