"""`python -m tests.local.failures`: runs the tests of bad input, and writes what users saw to docs/failures.md.

With `rules` it runs nothing and writes only the section of the rules, after a rule has changed; with `parts` it runs the
tests of single parts (a minute) and writes their sections and that of the rules.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

from coxswain.api.field_errors import printable
from coxswain.errors import CoxswainError
from coxswain_link.store import NotFound
from docs.tools import failures, tables

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "failures.md"
WORKDIR = "work"  # of a test's run, in the test's folder
SAW = "COXSWAIN_TESTS_SAW"  # names the file to which tests add what was to be seen

RUNS = [ROOT / "tests/local" / f"test_{name}_bad_input.py" for name in ("run", "checkpoint", "data", "machine")]
"""Whole runs of `cox run`."""

KILLS = [ROOT / "tests/local" / f"test_run_{name}.py" for name in ("faults", "crash_points")]
OUTAGES = [ROOT / "tests/integration/test_run_s3.py"]
"""Whole runs with a failure. Of `OUTAGES` only tests count that note a reported reason."""

PARTS = [ROOT / "tests/unit" / f"test_{name}_bad_input.py" for name in ("data", "checkpoint")]
OTHERS = [
    ROOT / "tests/unit" / f"test_{name}.py"
    for name in (
        "data_formats",
        "data_tar",
        "data_parquet",
        "data_tokenbin",
        "data_tokenizer",
        "data_index",
        "data_flight",
        "data_handover",
    )
]
"""Tests of single parts. Of `OTHERS` only those count that end in an error."""

_HEAD = """# Faults that were tried, and what the user saw

Every line is a test. What happens in the cluster, and what to do about it, is in [operations](operations.md).

# What goes wrong in a first week, and the test that shows what follows

<!-- failures: make generate -->
<!-- end of failures -->

# Bad files and bad places

From here on the page is written by `python -m tests.local.failures`, in the words that the tests saw. `…` stands for a
test's folder, or for what is left out.

The first tables are whole runs, in the words that `cox run` printed. Exit 1: the job failed on what only its services can see.
Exit 2: refused before anything started. Exit 0: the run went on, and another place shows the reason.
"""
_FAULTS = """# Kills and outages

Whole runs again. Exit 0: the run ended with the digests and losses of a calm one, and meanwhile its events or conditions
said this.
"""
_PARTS = """# Single parts

The same words reach the user as the reason of a failed job: on the terminal, in its conditions, and as an event.
"""
_RULES = """# What the files may not say

`cox validate`, `cox run` and the API server refuse these in the same words, before anything starts.

| field | what the user sees |
|---|---|"""
_LONGEST = 420  # characters of a cell
_FACTS = (
    r" {2}(?:steps|checkpoint|steps\.jsonl|events\.jsonl|logs|report) "  # how the summary goes on behind the reason
)


@dataclass(frozen=True)
class Seen:
    """What one test had to show. `exit`: of `cox run`; None for a part of it."""

    test: str
    exit: int | None
    output: str


def keep(output: str, code: int | None) -> None:
    """Called by every run of the tests: notes what it printed, where that is wanted and it ended badly by itself."""
    if code is not None and code > 0:
        note(output, code)


def note(words: str, code: int | None = 0) -> None:
    """Notes a reason that is shown elsewhere than by `cox run`."""
    if target := os.environ.get(SAW):
        line = {"test": os.environ.get("PYTEST_CURRENT_TEST", ""), "exit": code, "output": words}
        with Path(target).open("a") as file:
            file.write(json.dumps(line) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """As a plugin: notes the last error of ours that a test of a part came upon."""
    draws = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)  # what it comes upon is another each time
    if item.path not in (*PARTS, *OTHERS) or draws:
        return (yield)
    found: list[CoxswainError] = []

    def made(self: CoxswainError, *arguments: object) -> None:
        Exception.__init__(self, *arguments)
        found.append(self)

    with mock.patch.object(CoxswainError, "__init__", made):
        result = yield
    raised = [error for error in found if error.__traceback__ is not None]  # not those that are made beforehand
    said = [error for error in raised if not isinstance(error, NotFound)]  # that one is how stores answer a question
    if said:
        last = said[-1]
        note(f"{last.reason}: {last}", None)
    return result


def claims_of(file: Path) -> tuple[str, list[str]]:
    """What a file says it is about, and its tests."""
    tree = ast.parse(file.read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = [n.name for n in tree.body if isinstance(n, kinds) and n.name.startswith("test_")]
    return (ast.get_docstring(tree) or "").split("\n")[0].rstrip("."), names


def words(name: str) -> str:
    """test_a_folder_is_absent[case] -> a folder is absent (case)"""
    claim, _, case = name.partition("[")
    text = claim.removeprefix("test_").replace("_", " ")
    return f"{text} ({case.removesuffix(']')})" if case else text


def saw(output: str) -> str:
    """The refusal, or the reason of the end, without what is of this machine and this minute."""
    found = re.search(
        rf"^cox run: (.*)|: Failed\n((?: {{2,}}[^\n]*\n)+?)(?={_FACTS})", output, re.MULTILINE | re.DOTALL
    )
    text = next(group for group in found.groups() if group) if found else output
    text = re.sub(r"(file://)?/\S*?/(?:pytest-\d+(?:/popen-gw\d+)?|corpus\d*)/[\w.-]+", "…", " ".join(text.split()))
    text = re.sub(rf"…/{WORKDIR}/(?:[\w.-]+/)*", "…/", text)
    text = re.sub(r"\b([0-9a-f]{8})[0-9a-f]{24,}\b", r"\1…", text.replace(sys.prefix, "…"))
    text = re.sub(r"\b(process|pid) \d+", r"\1 4711", text)
    text = re.sub(r'"[0-9a-f]+-[0-9a-f]+-[0-9a-f]+"', '"…"', text)  # etags
    text = re.sub(r"(127\.0\.0\.1\]?):\d+", r"\1:…", text)  # ports from the kernel
    text = re.sub(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "…", text)  # uids
    text = printable(text).encode("ascii", "backslashreplace").decode().replace("\\u2026", "…").replace("|", "\\|")
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def page(seen: list[Seen]) -> str:
    """The whole page."""
    lines = [_HEAD]
    for file in RUNS:
        lines += [*_table(file, seen, ("fault", "exit", "what the user saw")), ""]
    lines.append(_FAULTS)
    for file in (*KILLS, *OUTAGES):
        lines += [*_table(file, seen, ("fault", "exit", "what the user saw")), ""]
    lines += [*_parts(seen), *rules()]
    return tables.into_page("\n".join(lines) + "\n", "failures", failures.tables(failures.read()))


def _parts(seen: list[Seen]) -> Iterator[str]:
    yield _PARTS
    for file in (*PARTS, *OTHERS):
        yield from (*_table(file, seen, ("fault", "what is said")), "")


def _table(file: Path, seen: list[Seen], heads: tuple[str, ...]) -> list[str]:
    title, names = claims_of(file)
    rows = [
        row
        for name in names
        for row in _rows(name, [s for s in seen if s.test.startswith(f"{file.relative_to(ROOT)}::")])
    ]
    return [f"## {title}\n", f"| {' | '.join(heads)} |", "|" + "---|" * len(heads), *rows]


def _rows(name: str, seen: Iterable[Seen]) -> Iterator[str]:
    """A row a case; cases that differ only in numbers share one. Of a test with several runs the first bad end counts."""
    firsts: dict[str, Seen] = {}
    for one in seen:
        test = one.test.partition("::")[2].removesuffix(" (call)")
        if test.partition("[")[0] == name:
            firsts.setdefault(test, one)
    alike: dict[str, list[tuple[str, Seen]]] = {}
    for pair in firsts.items():
        alike.setdefault(re.sub(r"\d+", "0", saw(pair[1].output)), []).append(pair)
    for cases in alike.values():
        test, one = cases[0]
        more = f" and {len(cases) - 1} more like it" if len(cases) > 1 else ""
        exit_ = () if one.exit is None else (str(one.exit),)
        yield f"| {' | '.join((words(test) + more, *exit_, saw(one.output)))} |"


def rules() -> Iterator[str]:
    """Every rule of the schema, with the object that the API server refuses in the integration tests."""
    from coxswain.api.validate import check
    from tests.api_samples import sample
    from tests.integration.rule_cases import CASES

    yield _RULES
    for case in CASES:
        old = sample(case.kind, case.before) if case.before is not None else None
        for fault in check(sample(case.kind, case.refuse), old):
            yield f"| {case.kind} `{fault.path}` | {fault.message}; {fault.way_out} |".replace("||", "\\|\\|")


def with_rules(text: str) -> str:
    """The page with the rules of today. Raises ValueError when it has no section of rules."""
    return _until(_RULES, text) + "\n".join(rules()) + "\n"


def with_parts(text: str, seen: list[Seen]) -> str:
    """The page with what the tests of parts saw now, and the rules of today. Raises ValueError without these sections."""
    return _until(_PARTS, text) + "\n".join([*_parts(seen), *rules()]) + "\n"


def _until(section: str, text: str) -> str:
    before, heading, _ = text.partition(section)
    if not heading:
        raise ValueError(f"the page has no section {section.splitlines()[0]!r}; run without an argument")
    return before


def _run(files: Iterable[Path]) -> list[Seen]:
    """Exits where a test fails."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "seen"
        options = ["-n", "3", "-p", "tests.local.failures", "-m", "slow or not slow"]
        command = [sys.executable, "-m", "pytest", *options, *map(str, files)]
        done = subprocess.run(command, env={**os.environ, SAW: str(target)}, cwd=ROOT, check=False)
        if done.returncode:
            sys.exit(done.returncode)
        return [Seen(**json.loads(line)) for line in target.read_text().splitlines()]


def main() -> None:
    match sys.argv[1:]:
        case ["rules"]:
            text = with_rules(PAGE.read_text())
        case ["parts"]:
            text = with_parts(PAGE.read_text(), _run([*PARTS, *OTHERS]))
        case _:
            text = page(_run([*RUNS, *KILLS, *OUTAGES, *PARTS, *OTHERS]))
    PAGE.write_text(text)
    print(f"written: {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
