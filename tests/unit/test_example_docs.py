"""README and docs name only what exists: files, commands, reasons, ports."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from coxswain import names
from coxswain_cli.__main__ import COMMANDS, PLAN_COMMANDS

ROOT = Path(__file__).parents[2]
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md")]
PAGES = [*TOP, *sorted((ROOT / "docs").glob("*.md"))]
NOTES = sorted((ROOT / "docs" / "design").glob("*.md"))
ROOTS = ("core", "operator", "runtime", "cli", "crds", "docs", "examples", "tests", "bench", "e2e")

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
each_page_or_note = pytest.mark.parametrize("page", [*PAGES, *NOTES], ids=lambda p: p.relative_to(ROOT).as_posix())


def code(page: Path) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`\n]+)`", page.read_text())


@cache
def sources() -> str:
    return "\n".join(
        p.read_text() for root in ("core", "operator", "runtime", "cli") for p in (ROOT / root).rglob("*.py")
    )


@each_page_or_note
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = [t for t in re.findall(r"\]\(([^)#]+)\)", page.read_text()) if "://" not in t]
    assert [t for t in targets if not (page.parent / t).exists()] == []


@each_page_or_note
def test_paths_of_the_checkout_exist(page: Path) -> None:
    paths = [word for word in code(page) if re.fullmatch(rf"({'|'.join(ROOTS)})/[\w./-]*", word)]
    assert [p for p in paths if not (ROOT / p).exists() and "NAME" not in p] == []


@each_page
def test_commands_exist(page: Path) -> None:
    said = re.findall(r"(?:^|`|bin/)cox ([a-z]+)(?: ([a-z]+))?", page.read_text(), re.MULTILINE)
    known = [name in COMMANDS or (name == "plan" and sub in PLAN_COMMANDS) for name, sub in said]
    assert all(known), said


def test_reasons_in_the_pages_are_reasons_in_the_code() -> None:
    reasons = {word for page in PAGES for word in code(page) if re.fullmatch(r"(?:[A-Z][a-z]+){2,}", word)}
    assert {"ForeignCheckpoint", "SourceChanged", "WorkerCrashLoop"} <= reasons
    assert [r for r in sorted(reasons) if r not in sources()] == []


def test_the_ports_of_the_metrics_table_are_the_services_ports() -> None:
    table = dict(re.findall(r"^\| (\w+) \| (\d+) \|$", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE))
    assert {service: int(port) for service, port in table.items()} == {
        "operator": operators_port(), "coordinator": names.PORT_COORDINATOR, "loader": names.PORT_LOADER_HTTP,
        "constructor": names.PORT_CONSTRUCTOR_HTTP, "agent": names.PORT_AGENT_HTTP,
    }  # fmt: skip


def operators_port() -> int:
    """As the chart gives it."""
    (port,) = re.findall(r"--port=(\d+)", (ROOT / "charts/coxswain/templates/deployment.yaml").read_text())
    return int(port)


def test_the_readme_shows_the_quickstart_as_it_is() -> None:
    (shown,) = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert shown == (ROOT / "examples" / "quickstart.yaml").read_text()
    assert len(shown.splitlines()) <= 20


def test_the_page_of_the_examples_lists_every_file() -> None:
    folder = ROOT / "examples"
    files = {f.name for f in folder.iterdir() if f.is_file()} - {"README.md"}
    rows = re.findall(r"^\| (`.+?`) \|", (folder / "README.md").read_text(), re.MULTILINE)
    assert files == {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


@each_page_or_note
def test_a_python_file_that_a_page_names_exists(page: Path) -> None:
    foreign = {"preprocess_data.py"}  # Megatron-LM's
    named = {word for word in code(page) if re.fullmatch(r"[\w./-]+\.py", word) and "NAME" not in word} - foreign
    files = [f.as_posix() for folder in (*ROOTS, "charts") for f in (ROOT / folder).rglob("*.py")]
    assert [n for n in sorted(named) if not any(f"/{f}".endswith(f"/{n}") for f in files)] == []
