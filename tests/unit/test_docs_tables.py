"""The comparison with peers and the measured rows: current, and each cell backed by a test, a page or a recorded result."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from bench import simulate
from coxswain.simulate.compare import world_of
from coxswain.simulate.generate import generate
from docs.tools import comparison, failures, measured, simulated, tables

ROOT = comparison.ROOT
CELLS = [
    pytest.param(cell, id=f"{system}-{number}")
    for number, cells in enumerate(comparison.read().rows.values())
    for system, cell in cells.items()
]
RESULTS = measured.read()
ROWS = [row for rows in failures.read().values() for row in rows]
each_cell = pytest.mark.parametrize("cell", CELLS)


@pytest.mark.parametrize("path", sorted(tables.pages()))
def test_the_tables_of_a_page_are_those_of_the_results(path: str) -> None:
    assert (ROOT / path).read_text() == tables.generated()[path], "run `make generate`"


@cache
def names_of_tests(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(f.name for f in functions if f.name.startswith("test_"))


@each_cell
def test_a_cell_names_a_test_that_exists_or_a_page(cell: comparison.Cell) -> None:
    if cell.is_test:
        path, _, name = cell.source.partition("::")
        assert name in names_of_tests(path)
    else:
        assert cell.source.startswith("https://") or (ROOT / cell.source).is_file()


@each_cell
def test_a_cell_has_a_known_mark_and_words(cell: comparison.Cell) -> None:
    assert cell.mark in comparison.MARKS
    assert cell.words


def test_what_we_claim_to_have_is_shown_by_a_test() -> None:
    ours = [cells[comparison.OURS] for cells in comparison.read().rows.values()]
    assert [cell.words for cell in ours if cell.mark in ("yes", "part") and not cell.is_test] == []


def test_peers_are_judged_by_their_own_pages_only() -> None:
    peers = [c for cells in comparison.read().rows.values() for key, c in cells.items() if key != comparison.OURS]
    assert [cell.source for cell in peers if not cell.source.startswith("https://")] == []


@pytest.mark.parametrize("test", sorted({test for row in ROWS for test in row.tests}))
def test_what_a_failure_leads_to_is_shown_by_a_test_that_exists(test: str) -> None:
    path, _, name = test.partition("::")
    assert name in names_of_tests(path)


def test_every_failure_is_listed_once_with_what_follows_and_a_test() -> None:
    assert len({row.wrong for row in ROWS}) == len(ROWS) > 40
    assert [row.wrong for row in ROWS if not (row.does and row.tests)] == []


def test_a_failure_is_a_row_with_a_link_for_each_of_its_tests() -> None:
    text = (
        "- title: On land\n  rows: [{wrong: It rains., does: It dries., tests: [a/b.py::test_it_dries, c.py::test_d]}]"
    )
    assert failures.tables(failures.read(text)).splitlines()[2:] == [
        "| what goes wrong | what Coxswain does | shown by |",
        "|---|---|---|",
        "| It rains. | It dries. | [it dries](../a/b.py)<br>[d](../c.py) |",
    ]


def leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for child in value.values() if isinstance(value, dict) else value:
            yield from leaves(child)
    else:
        yield str(value)


@pytest.mark.parametrize("name", [name for name, r in RESULTS.items() if r["from"].startswith("docs/")])
def test_every_figure_that_is_quoted_from_a_page_stands_there(name: str) -> None:
    result = RESULTS[name]
    page = (ROOT / result["from"]).read_text()
    assert [figure for figure in leaves(result["figures"]) if figure not in page] == []


@pytest.mark.parametrize("name", RESULTS)
def test_every_result_names_its_command_commit_date_and_machine(name: str) -> None:
    result = RESULTS[name]
    assert re.fullmatch(r"make [a-z-]+", result["command"])
    assert f"\n{result['command'].removeprefix('make ')}:" in (ROOT / "Makefile").read_text()
    assert re.fullmatch(r"[0-9a-f]{7}", result["commit"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", result["recorded"])
    assert result["machine"]


@pytest.mark.parametrize("path", ["README.md", "docs/compare.md"])
def test_the_figures_of_where_it_does_not_win_are_recorded_ones(path: str) -> None:
    _, _, rest = (ROOT / path).read_text().partition("Where it does not win")
    said = set(re.findall(r"\b\d+\.\d+\b", rest.partition("\n## ")[0]))
    known = set(leaves(RESULTS["operator-scale"]["figures"])) | {"1.3"}  # the target
    assert said
    assert said - known == set()


def test_a_page_without_the_marks_of_its_table_is_refused() -> None:
    with pytest.raises(ValueError, match="the page lacks <!-- measured"):
        tables.into_page("# A page\n", "measured", "| a |")


def test_only_what_stands_between_the_marks_changes() -> None:
    page = "before\n<!-- x: make generate -->\nold\n<!-- end of x -->\nafter\n"
    assert tables.into_page(page, "x", "new") == page.replace("\nold\n", "\n\nnew\n\n")


def test_the_tables_of_the_simulation_have_a_row_for_each_trace_and_say_where_none_is_recorded() -> None:
    world = world_of(generate("quiet", 1, 8, 60.0, 0), "llama-7b", "a100-80g")
    figures = {
        "situations": [{"situation": "one", "over_optimum": 1.02, "changes": 1}], "mean": 1.02, "worst": 1.02, "flapping": [],
        "quiet": [simulate.quiet(world, 0, 0.02)], "traces": [simulate.trace(world, "quiet", 0.02, 0)],
    }  # fmt: skip
    text = simulated.tables({"figures": figures, "command": "make bench-simulate"})
    assert "| 8: quiet, 0.02 h | 2 | " in text and "| one | 1.020 | 1 |" in text and "| 8 | 0.02 | " in text
    assert simulated.tables(None) == "Not recorded yet: `make bench-simulate`."
