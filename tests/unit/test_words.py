"""The lint of words that must not come back: what it finds, what it leaves alone, and that it says what to write instead."""

from __future__ import annotations

import pytest

from tests import words


def found(text: str, path: str = "core/coxswain/some.py") -> list[str]:
    return [f.word for f in words.scan(path, text)]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("# told by the coordinator", "told"),
        ("def test_who_leads_first() -> None:", "who"),
        ("def test_a_ring_that_dies() -> None:", "dies"),
        ("Nobody waits.", "nobody"),
        ("the plan at hand", "at hand"),
        ("a worker who is gone", "who"),
        ("class Mold:", "mold"),
        ("state = SaveBook()", "SaveBook"),
        ("raise Damaged(key)", "Damaged"),
        ("def pick(rank: Wanted) -> None:", "Wanted"),
        ("a `Walk` runs tasks", "Walk"),
        ("see `core/coxswain/plan/balances.py`", "core/coxswain/plan/balances"),
        ("from coxswain.plan.balances import plan", "core/coxswain/plan/balances"),
        ("as design 04 has it", "design 04"),
    ],
)
def test_a_private_word_is_found_in_prose_in_names_and_in_paths(text: str, word: str) -> None:
    assert word in found(text)


@pytest.mark.parametrize(
    "text",
    [
        "people who read a report",
        "Damaged files are refused. Following the plan, Orders differ.",
        "unfold the shelves",  # parts of longer words
        "golden, modelled, intelligible",
        "coxswain.plan.balances_of = 1",
        "a design of 4 rings",
        "docs/design/placement.md",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert found(text) == []


def test_a_file_with_a_former_name_is_found_by_its_name() -> None:
    (moved,) = words.scan("core/coxswain/plan/balances.py", "")
    assert (moved.line, moved.instead) == (0, "core/coxswain/plan/planners")


def test_a_finding_says_file_line_and_the_word_to_use() -> None:
    (line,) = words.scan("docs/x.md", "one\nwhat it was told\n")
    assert str(line) == f"docs/x.md:2: 'told': {words.WORDS['told']}"


def test_a_passage_that_shows_old_words_is_left_out_and_lines_keep_their_numbers() -> None:
    text = "a\n<!-- old words -->\nnobody\n<!-- end of old words -->\nanew\n"
    assert [(f.line, f.word) for f in words.scan("docs/x.md", text)] == [(5, "anew")]


def test_a_use_that_a_library_asks_for_is_allowed_in_its_file_only() -> None:
    (path, word), *_ = words.ALLOWED
    assert found(f"def {word}(self):", path) == []
    assert found(f"def {word}(self):") == [word]


def test_every_exception_is_in_use() -> None:
    unused = [
        (p, w)
        for p, w in words.ALLOWED
        if (words.ROOT / p).exists() and w.lower() not in (words.ROOT / p).read_text().lower()
    ]
    assert unused == []


def test_no_replacement_is_itself_forbidden() -> None:
    bad = {old: new for old, new in words.NAMES.items() if new in words.NAMES}
    assert bad == {}
