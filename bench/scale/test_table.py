"""How rounds of the scale bench become rows, and rows the tables of the page."""

from __future__ import annotations

from typing import Any

from bench.scale.table import BEGIN, END, Shape, into_page, lines, rows_of, tables

SHAPE = Shape(1, 8)


def figures(running: float, restart: Any = None, **requests: int) -> dict[str, Any]:
    found = {
        "pods": 10, "running": running, "first": 0.1, "cpu": 0.02, "peak": 100.0, "servers": {"etcd": 0.1, "kwok": 0.2},
        "requests": {"coxswain": {k.replace("_", " "): n for k, n in requests.items()}},
    }  # fmt: skip
    return found | ({"restart": restart} if restart is not None else {})


def rounds() -> list[dict[str, Any]]:
    """The machine was ten times slower in the second."""
    slow = {"bare": figures(20.0), "coxswain": figures(22.0, figures(44.0, delete_pods=10), create_pods=10)}
    return [
        {"bare": figures(2.0), "coxswain": figures(2.2, figures(3.3, delete_pods=10), create_pods=10)},
        {**slow, "jobset": figures(40.0, "none: one pod is replaced")},
    ]


def row(system: str) -> dict[str, Any]:
    return next(r for r in rows_of(SHAPE, rounds()) if r["system"] == system)


def test_a_ratio_is_the_median_of_ratios_within_a_round() -> None:
    assert (round(row("coxswain")["ratio"], 3), round(row("coxswain")["restart_ratio"], 3)) == (1.1, 1.75)
    assert row("jobset")["ratio"] == 2.0


def test_requests_are_counted_for_each_pod() -> None:
    assert (row("coxswain")["creates"], row("coxswain")["deletes"], row("coxswain")["patches"]) == (1.0, 1.0, 0.0)


def test_a_case_that_does_not_apply_is_named_in_its_cell() -> None:
    assert any("| none: one pod is replaced |" in line for line in lines(tables(rows_of(SHAPE, rounds()), {})))


def test_only_what_stands_between_the_marks_is_replaced() -> None:
    page = f"before\n\n{BEGIN}\n\nold\n\n{END}\n\nafter\n"
    once = into_page(page, ["| new |"])
    assert once == f"before\n\n{BEGIN}\n\n| new |\n\n{END}\n\nafter\n"
    assert into_page(once, ["| new |"]) == once


def test_the_tables_that_are_kept_have_the_cells_of_those_that_are_printed() -> None:
    found = tables(rows_of(SHAPE, rounds()), {"pods": 10, "events": 7})
    assert list(found) == ["creation", "requests", "storm"]
    assert [row["system"] for row in found["creation"]] == ["bare", "coxswain", "jobset"]
    for table in found.values():
        for cells in table:
            assert "| " + " | ".join(cells.values()) + " |" in lines(found)
