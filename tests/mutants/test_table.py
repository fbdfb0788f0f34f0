"""The table of modules and tests, and the list of accepted survivors, speak of what exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.page import PAGE, page
from tests.mutants.table import FOLDER, Group, files, load_accepted, load_table, wanted

ROOT = Path(__file__).resolve().parents[2]


def modules() -> list[str]:
    return [module for group in load_table(ROOT).group for module in files(ROOT, group.modules)]


@pytest.mark.parametrize("group", load_table(ROOT).group, ids=lambda group: group.name)
def test_every_path_in_the_table_of_mutants_names_a_file(group: Group) -> None:
    assert files(ROOT, group.modules)
    assert set(files(ROOT, group.elsewhere)) <= set(files(ROOT, group.tests))


def test_no_module_belongs_to_two_groups() -> None:
    assert len(modules()) == len(set(modules()))


@pytest.mark.parametrize("package", ["core/coxswain", "operator/coxswain_operator/reconcile"])
def test_every_module_of_a_package_that_is_judged_whole_is_in_the_table(package: str) -> None:
    there = {str(path.relative_to(ROOT)) for path in (ROOT / package).rglob("*.py") if path.stat().st_size}
    assert there <= set(modules())


def test_a_path_that_names_nothing_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"modules\.toml names gone\.py"):
        files(tmp_path, ["gone.py"])


def test_accepted_survivors_belong_to_modules_of_the_table_and_have_a_reason() -> None:
    for entry in load_accepted(ROOT):
        assert entry.module in modules()
        assert entry.reason.strip()


def test_the_lines_of_an_accepted_survivor_are_in_its_module() -> None:
    """Else its change is gone, and `make mutants` fails."""
    for entry in load_accepted(ROOT):
        there = {line.strip() for line in (ROOT / entry.module).read_text().splitlines()}
        assert {line.strip() for line in entry.before.splitlines()} <= there | {""}, entry.module


def test_the_page_of_mutants_holds_the_accepted_survivors() -> None:
    assert (ROOT / PAGE).read_text() == page((ROOT / PAGE).read_text(), load_accepted(ROOT)), (
        f"{FOLDER / 'accepted.toml'} has changed: run .venv/bin/python -m tests.mutants.page"
    )


@pytest.mark.parametrize("name", ["g", "core/a/b.py", "core/a", "core/*/b.py"])
def test_modules_are_asked_for_by_group_path_folder_or_pattern(name: str) -> None:
    group = Group("g", [], [])
    assert wanted(group, "core/a/b.py", [name])
    assert not wanted(Group("other", [], []), "core/c/d.py", [name])
    assert wanted(group, "core/c/d.py", [])
