"""The pages that follow a job, a step and a failure: every hop names a function that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "design").glob("life-of-a-*.md"))
HOP = re.compile(r"^\| (\d+) \| .* \| `([^`]+)` \| `([^`]+)` \|$", re.MULTILINE)
HOPS = [(page.name, file, name) for page in PAGES for _, file, name in HOP.findall(page.read_text())]


def defined(file: str) -> set[str]:
    """Functions of a module, and methods as `Class.method`."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    names: set[str] = set()
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, functions):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{member.name}" for member in node.body if isinstance(member, functions)}
    return names


@pytest.mark.parametrize(("page", "file", "name"), HOPS)
def test_a_hop_names_a_function_of_its_file(page: str, file: str, name: str) -> None:
    assert name in defined(file), f"{page}: {file} has no function {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_hops_of_a_page_are_numbered_without_a_gap(page: Path) -> None:
    rows = [line for line in page.read_text().splitlines() if re.match(r"\| \d", line)]
    assert [int(number) for number, _, _ in HOP.findall(page.read_text())] == list(range(1, len(rows) + 1))


def test_there_is_a_page_for_each_of_the_three() -> None:
    assert [page.stem for page in PAGES] == ["life-of-a-failure", "life-of-a-job", "life-of-a-step"]
