"""The comparison with peers, from docs/results/comparison.yaml to Markdown. Pure but for the one file it reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "docs" / "results" / "comparison.yaml"
MARKS = {"yes": "yes", "part": "part", "no": "no", "none": "–"}
OURS = "coxswain"


@dataclass(frozen=True)
class Cell:
    """One system's answer. `source` is a test (file::name), a page of this repository, or an address."""

    mark: str
    words: str
    source: str

    @property
    def is_test(self) -> bool:
        return "::" in self.source

    @property
    def path(self) -> str:
        """The file of a test, or the page itself."""
        return self.source.partition("::")[0]


@dataclass(frozen=True)
class Comparison:
    systems: dict[str, str]  # key -> name
    rows: dict[str, dict[str, Cell]]  # feature -> key -> cell


def read(text: str | None = None) -> Comparison:
    data = yaml.safe_load(DATA.read_text() if text is None else text)
    rows = {row["feature"]: {key: _cell(row[key]) for key in data["systems"]} for row in data["features"]}
    return Comparison(data["systems"], rows)


def _cell(raw: dict[str, Any]) -> Cell:
    return Cell(raw["mark"], raw["words"], raw.get("test") or raw["page"])


def short(comparison: Comparison) -> str:
    """A table of marks, each a link. Paths as seen from the repository's root."""
    return _table(comparison, lambda cell: f"[{MARKS[cell.mark]}]({cell.path})")


def full(comparison: Comparison) -> str:
    """One section a feature, with the words and the tests' names. Paths as seen from docs/."""
    parts = []
    for feature, cells in comparison.rows.items():
        lines = [
            f"| {comparison.systems[key]} | {MARKS[c.mark]} | {c.words} | {_source(c)} |" for key, c in cells.items()
        ]
        parts.append(
            "\n".join([f"### {feature}", "", "| system | has it | how | shown by |", "|---|---|---|---|", *lines])
        )
    return "\n\n".join(parts)


def _source(cell: Cell) -> str:
    if cell.is_test:
        return f"[`{cell.source.replace('::', '`<br>`')}`](../{cell.path})"
    if cell.path.startswith("docs/"):
        return f"[{cell.path}]({cell.path.removeprefix('docs/')})"
    return f"[its documentation]({cell.path})"


def _table(comparison: Comparison, show: Any) -> str:
    head = ["", *comparison.systems.values()]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += [
        "| " + " | ".join([feature, *(show(cell) for cell in cells.values())]) + " |"
        for feature, cells in comparison.rows.items()
    ]
    return "\n".join(lines)
