"""docs/failures.md is what `python -m tests.local.failures` writes: it is current and names nothing of one machine."""

from __future__ import annotations

import re

import pytest

from tests.local.failures import (
    KILLS,
    PAGE,
    PARTS,
    RUNS,
    WORKDIR,
    Seen,
    claims_of,
    page,
    rules,
    saw,
    with_parts,
    with_rules,
    words,
)

TEXT = PAGE.read_text() if PAGE.exists() else ""


@pytest.mark.parametrize("file", [*RUNS, *KILLS, *PARTS], ids=lambda path: path.name)
def test_every_test_of_bad_input_has_its_line(file) -> None:
    _, names = claims_of(file)
    missing = [name for name in names if f"\n| {words(name)}" not in TEXT]
    assert not missing, "run `python -m tests.local.failures`"


def test_every_rule_is_there_in_the_words_of_today() -> None:
    assert TEXT.endswith("\n".join(rules()) + "\n"), "run `python -m tests.local.failures`"


def test_the_rules_are_written_again_without_the_rest_of_the_page() -> None:
    assert with_rules(TEXT.replace("; raise a weight", "; an old way out")) == TEXT


def test_the_parts_are_written_again_without_the_whole_runs() -> None:
    test = "tests/unit/test_data_bad_input.py::test_a_tokenizer_that_cannot_be_read_is_refused_with_the_way_out"
    found = with_parts(TEXT, [Seen(test, None, "TokenizerUnusable: a new word")])
    before, after = (text.partition("# Single parts")[0] for text in (TEXT, found))
    assert before == after
    assert "refused with the way out | TokenizerUnusable: a new word |" in found
    assert found.endswith("\n".join(rules()) + "\n")


def test_a_page_without_the_section_is_refused() -> None:
    with pytest.raises(ValueError, match="no section '# What the files may not say'"):
        with_rules("# A page\n")
    with pytest.raises(ValueError, match="no section '# Single parts'"):
        with_parts("# A page\n", [])


def test_the_page_has_no_path_or_address_of_the_machine_that_wrote_it() -> None:
    assert not re.search(r"(?<![\w…])/(tmp|work|home|root)/|pytest-\d|Traceback", TEXT)


@pytest.mark.parametrize("worker", ["", "popen-gw2/"])
def test_the_folder_of_a_test_is_left_out_whole_whichever_worker_ran_it(worker: str) -> None:
    assert (
        saw(f"cox run: refused /x/pytest-1/{worker}test_a_file0/job.yaml, document 1")
        == "refused …/job.yaml, document 1"
    )


def test_control_characters_are_escaped_as_a_table_has_none() -> None:
    assert saw("cox run: docs: \0\x1b[0m") == "docs: \\x00\\x1b[0m"


def test_a_reason_is_listed_without_the_rest_of_the_summary() -> None:
    output = "12:00:00 Queued\nsmall: Failed\n  SourceEmpty: source 'docs' at /tmp/x/pytest-of-me/pytest-1/bad_0/docs: none\n"
    rest = (
        "  events.jsonl runs/small/events.jsonl\n  logs         runs/small/logs\n  report       cox report runs/small\n"
    )
    assert saw(output + rest) == "SourceEmpty: source 'docs' at …/docs: none"


def test_a_refusal_is_listed_whole_without_numbers_that_vary() -> None:
    assert saw("cox run: /a/pytest-2/work is in use by another run (process 10213); wait") == (
        "… is in use by another run (process 4711); wait"
    )
    assert (
        saw(f"cox run: No space left: '/a/pytest-2/b0/{WORKDIR}/cluster/Pod/a-0.json'") == "No space left: '…/a-0.json'"
    )
    assert saw(f"shards/{'0a' * 32}.safetensors is missing") == "shards/0a0a0a0a….safetensors is missing"


def test_a_port_of_the_kernels_choice_is_left_out_also_where_its_address_is_in_brackets() -> None:
    assert saw("lost: [127.0.0.1]:26549: reset by 127.0.0.1:7") == "lost: [127.0.0.1]:…: reset by 127.0.0.1:…"


def test_cases_that_differ_in_numbers_only_share_a_line() -> None:
    name = "test_a_tokenizer_that_cannot_be_read_is_refused_with_the_way_out"
    seen = [Seen(f"tests/unit/{PARTS[0].name}::{name}[{case}] (call)", None, f"No: port {case}") for case in (7, 8, 9)]
    rows = [line for line in page(seen).splitlines() if words(name) in line]
    assert rows == [f"| {words(name)} (7) and 2 more like it | No: port 7 |"]
