"""What goes wrong and what Coxswain does, from docs/results/failures.yaml to Markdown. Pure but for the one file it reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "docs" / "results" / "failures.yaml"


@dataclass(frozen=True)
class Failure:
    """`tests`: path::name, each shows what `does` says."""

    wrong: str
    does: str
    tests: tuple[str, ...]


def read(text: str | None = None) -> dict[str, list[Failure]]:
    """Title -> its rows."""
    data = yaml.safe_load(DATA.read_text() if text is None else text)
    return {
        part["title"]: [Failure(row["wrong"], row["does"], tuple(row["tests"])) for row in part["rows"]]
        for part in data
    }


def tables(failures: dict[str, list[Failure]]) -> str:
    """A section a title. Paths as seen from docs/."""
    return "\n\n".join(_section(title, rows) for title, rows in failures.items())


def _section(title: str, rows: list[Failure]) -> str:
    lines = [f"| {row.wrong} | {row.does} | {'<br>'.join(map(_link, row.tests))} |" for row in rows]
    return "\n".join(
        [f"## {title}", "", "| what goes wrong | what Coxswain does | shown by |", "|---|---|---|", *lines]
    )


def _link(test: str) -> str:
    path, _, name = test.partition("::")
    return f"[{name.removeprefix('test_').replace('_', ' ')}](../{path})"
