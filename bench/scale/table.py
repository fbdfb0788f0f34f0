"""From rounds to one row a case and system, and from rows to the tables that people read. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

Row = dict[str, Any]
LARGE = 1000  # trainers, up to which everything is measured
BEGIN, END = "<!-- figures: python -m bench.operator_scale --write -->", "<!-- end of figures -->"
OURS, CONTROLLERS = "coxswain", "system:kube-controller-manager"
COLUMNS = {
    "case": "case", "system": "system", "rounds": "rounds", "running": "all Running, s", "ratio": "of the bare loop's",
    "first": "first pod, s", "restart": "whole restart, s", "restart_ratio": "of creation",
    "exact": "exact after SIGKILL, s", "acting": "of which acting, s",
    "cpu_ms": "own CPU, ms a pod", "servers_ms": "servers' CPU, ms a pod", "peak": "peak RSS, MiB",
    "requests": "own requests a pod", "controllers": "controllers' requests a pod",
}  # fmt: skip
CLAIMS = {"creates": "creates a pod", "deletes": "deletes a pod", "patches": "patches a pod"}
HEARD = {
    "pods": "pods", "events": "events", "rate": "events/s", "cores": "cores of the operator",
    "event_ms": "CPU of the operator, ms an event",
    "queue": "longest wait for a turn, s", "passes": "passes/s", "writes": "status writes/s", "peak": "peak RSS, MiB",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shape:
    """So many jobs of so many trainers."""

    jobs: int
    trainers: int

    @property
    def restarts(self) -> bool:
        """Whether the whole job is restarted, and its operator killed; with more pods the same
        ratios take too long.
        """
        return self.jobs == 1 and self.trainers <= LARGE

    @property
    def name(self) -> str:
        return f"{self.jobs} x {self.trainers}"


def rows_of(shape: Shape, rounds: list[Row]) -> list[Row]:
    """The bare loop, ours, and the other systems that took part."""
    systems = dict.fromkeys(name for found in rounds for name in found)
    return [{"case": shape.name, **_row(name, [r for r in rounds if name in r])} for name in systems]


def _row(name: str, rounds: list[Row]) -> Row:
    """Medians; a ratio is the median of the rounds' own ratios, since the machine's speed wanders."""
    mine, bare = [r[name] for r in rounds], [r["bare"] for r in rounds]
    pods = mine[0]["pods"]
    row: Row = {
        "system": name,
        "rounds": len(rounds),
        "running": median(m["running"] for m in mine),
        "first": median(m["first"] for m in mine),
        "servers_ms": 1000 * median(sum(m["servers"].values()) for m in mine) / pods,
    }
    row |= _restart(mine)
    if name == "bare":
        return row
    row |= {
        "ratio": median(m["running"] / b["running"] for m, b in zip(mine, bare, strict=True)),
        "cpu_ms": 1000 * median(m["cpu"] for m in mine) / pods,
        "peak": max(m["peak"] for m in mine),
        "requests": median(sum(c.total() for user, c in _counts(m) if user != CONTROLLERS) for m in mine) / pods,
        "controllers": median(sum(c.total() for user, c in _counts(m) if user == CONTROLLERS) for m in mine) / pods,
        "exact": max((m["kill"]["from_start"] for m in mine if "kill" in m), default=None),
        "acting": max((m["kill"]["exact"] for m in mine if "kill" in m), default=None),
    }
    return row | (_claims(mine) if name == OURS else {})


def _restart(mine: list[Row]) -> Row:
    restarts = [m["restart"] for m in mine if "restart" in m]
    if not restarts or isinstance(restarts[0], str):
        return {"restart": restarts[0] if restarts else None}
    ratio = median(m["restart"]["running"] / m["running"] for m in mine)
    return {"restart": median(r["running"] for r in restarts), "restart_ratio": ratio}


def _claims(mine: list[Row]) -> Row:
    """Requests of the operator's own, for each pod: creates and patches of a creation, deletes of a
    restart.
    """
    pods, restarts = mine[0]["pods"], [m["restart"] for m in mine if "restart" in m]
    claims = {"creates": _verb(mine, "create pods") / pods, "patches": _verb(mine, "patch trainingjobs/status") / pods}
    return claims | ({"deletes": _verb(restarts, "delete pods") / pods} if restarts else {})


def _counts(figures: Row) -> list[tuple[str, Counter[str]]]:
    return [(user, Counter(counts)) for user, counts in figures["requests"].items()]


def _verb(rounds: list[Row], request: str) -> float:
    return median(Counter(r["requests"][OURS])[request] for r in rounds)


def tables(rows: list[Row], heard: Row) -> dict[str, list[dict[str, str]]]:
    """By table: the figures of all systems, what the operator asks of the server for each pod, and the storm of events."""
    claims = [row for row in rows if row["system"] == OURS]
    storm = {"storm": _cells(HEARD, [heard])} if heard else {}
    return {"creation": _cells(COLUMNS, rows), "requests": _cells({"case": "case", **CLAIMS}, claims), **storm}


def lines(found: dict[str, list[dict[str, str]]]) -> list[str]:
    """The tables as Markdown, with an empty line between two."""
    return [line for table in found.values() for line in ("", *_markdown(table))][1:]


def _cells(columns: dict[str, str], rows: list[Row]) -> list[dict[str, str]]:
    return [{title: _cell(row.get(key)) for key, title in columns.items()} for row in rows]


def _markdown(table: list[dict[str, str]]) -> list[str]:
    head = [_line(table[0]), "|" + "---|" * len(table[0])]
    return [*head, *(_line(row.values()) for row in table)]


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def into_page(page: str, table: list[str]) -> str:
    """The page with the tables between its two marks replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "\n".join([before + BEGIN, "", *table, "", END + after])
