"""The pages that follow a job, a step and a failure, and README: each function that they name exists in the file beside it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "design").glob("life-of-a-*.md"))
HOP = re.compile(r"^\| (\d+) \| (.*) \| `([^`]+)` \| `([^`]+)` \|$", re.MULTILINE)
HOPS = [
    pytest.param(words, file, name, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, words, file, name in HOP.findall(page.read_text())
]
NAMED = re.findall(r"`([\w.]+)`,\s\[[^]]+\]\(([\w/]+\.py)\)", (ROOT / "README.md").read_text())
Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def functions(file: str) -> dict[str, Function]:
    """Functions of a module, and methods and inner functions as `Outer.inner`."""
    return dict(_below(ast.parse((ROOT / file).read_text()), ""))


def _below(parent: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, Function):
            yield f"{prefix}{node.name}", node
        if isinstance(node, Function | ast.ClassDef):
            yield from _below(node, f"{prefix}{node.name}.")


def used(function: Function) -> set[str]:
    """Names, attributes and strings in a function's body."""
    nodes = [node for statement in function.body for node in ast.walk(statement)]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return names | attributes | {str(node.value) for node in nodes if isinstance(node, ast.Constant)}


@pytest.mark.parametrize(("words", "file", "name"), HOPS)
def test_a_hop_names_a_function_of_its_file_and_names_that_this_function_uses(words: str, file: str, name: str) -> None:
    assert name in functions(file), f"{file} has no function {name}"
    said = set(re.findall(r"`([A-Za-z_]+)`", words))
    assert said - used(functions(file)[name]) == set()


@pytest.mark.parametrize(("name", "file"), NAMED)
def test_a_function_that_the_readme_names_is_in_its_file(name: str, file: str) -> None:
    assert name in functions(file), f"{file} has no function {name}"


def test_the_readme_names_functions() -> None:
    assert len(NAMED) > 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_hops_of_a_page_are_numbered_without_a_gap(page: Path) -> None:
    rows = [line for line in page.read_text().splitlines() if re.match(r"\| \d", line)]
    numbers = [int(number) for number, _, _, _ in HOP.findall(page.read_text())]
    assert numbers == list(range(1, len(rows) + 1))


def test_there_is_a_page_for_each_of_the_three() -> None:
    assert [page.stem for page in PAGES] == ["life-of-a-failure", "life-of-a-job", "life-of-a-step"]
