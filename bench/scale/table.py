"""From rounds to one row a case, and from rows to the table that people read. Pure."""

from __future__ import annotations

from collections import Counter
from statistics import median
from typing import Any

Row = dict[str, Any]
BEGIN, END = "<!-- figures: python -m bench.operator_scale --write -->", "<!-- end of figures -->"
COLUMNS = {
    "case": "case", "bare_running": "bare loop: all Running, s", "running": "ours, s", "ratio": "ratio", "first": "first pod, s",
    "restart_ratio": "restart / creation", "creates": "creates a pod", "deletes": "deletes a pod", "patches": "patches a pod",
    "cpu_ms": "CPU ms a pod", "peak": "peak RSS, MiB", "kill": "exact after SIGKILL, s",
}  # fmt: skip


def summary(jobs: int, trainers: int, rounds: list[dict[str, Row]]) -> Row:
    """Medians; a ratio is the median of the rounds' own ratios, since the machine's speed wanders."""
    ours, bare = [r["coxswain"] for r in rounds], [r["bare"] for r in rounds]
    pods, restarts = ours[0]["pods"], [r["restart"] for r in ours if "restart" in r]
    row: Row = {
        "case": f"{jobs} x {trainers}",
        "bare_running": median(b["running"] for b in bare),
        "running": median(o["running"] for o in ours),
        "ratio": median(o["running"] / b["running"] for o, b in zip(ours, bare, strict=True)),
        "first": median(o["first"] for o in ours),
        "creates": _verb(ours, "create pods") / pods,
        "patches": _verb(ours, "patch trainingjobs/status") / pods,
        "cpu_ms": 1000 * median(o["cpu"] for o in ours) / pods,
        "peak": max(o["peak"] for o in ours),
    }
    if restarts:
        row["restart_ratio"] = median(o["restart"]["running"] / o["running"] for o in ours)
        row["deletes"] = _verb(restarts, "delete pods") / pods
    kills = [r["kill"]["exact"] for r in rounds if "kill" in r]
    return {**row, **({"kill": max(kills)} if kills else {})}


def _verb(rounds: list[Row], request: str) -> float:
    return median(Counter(r["requests"]["coxswain"])[request] for r in rounds)


def lines(rows: list[Row]) -> list[str]:
    """A Markdown table."""
    head = ["| " + " | ".join(COLUMNS.values()) + " |", "|" + "---|" * len(COLUMNS)]
    return [*head, *("| " + " | ".join(_cell(row.get(key)) for key in COLUMNS) + " |" for row in rows)]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:.3g}"


def into_page(page: str, table: list[str]) -> str:
    """The page with the table between its two marks replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "\n".join([before + BEGIN, "", *table, "", END + after])
