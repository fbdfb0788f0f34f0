"""Tables of straggler detection, from docs/results/detect.json to Markdown."""

from __future__ import annotations

from typing import Any

from docs.tools.layouts import table


def tables(result: dict[str, Any]) -> str:
    """All of `bench/detect.py`."""
    f = result["figures"]
    parts = [_onset(f["onset"]), _quiet(f["quiet"]), _flapping(f["flapping"]), _overhead(f["overhead"])]
    return "\n\n".join(
        [*parts, f"Printed by `{result['command']}` on {result['machine']}: simulated worlds of 64 ranks."]
    )


def _onset(rows: list[dict[str, Any]]) -> str:
    names = ("slowdown", "runs", "missed", "p50", "p95")
    head = "one device slower by | runs | missed within 200 steps | slow steps until confirmed, p50 | p95"
    return table(head, [[r[name] for name in names] for r in rows])


def _quiet(rows: list[dict[str, Any]]) -> str:
    names = ("set", "rank_steps", "confirmed", "confirmed_per_million", "suspected_per_million", "probes_per_million")
    head = "no straggler | rank-steps | confirmed | confirmed per million | suspected per million | probes per million"
    return table(head, [[r[name] for name in names] for r in rows])


def _flapping(rows: list[dict[str, Any]]) -> str:
    names = ("period", "steps", "flaps", "most_changes")
    head = "2 x slow for half of each period of | steps | periods | most changes of speeds"
    return table(head, [[r[name] for name in names] for r in rows])


def _overhead(row: dict[str, Any]) -> str:
    times = f"{row['p50_microseconds']} microseconds a step (p99 {row['p99_microseconds']})"
    return f"At {row['ranks']} ranks a report takes {times} of CPU time on one thread."
