"""Tables of simulated clusters, from docs/results/simulate.json to Markdown."""

from __future__ import annotations

from typing import Any

from docs.tools.layouts import table

_NAMES = ("ours", "rigid", "restart", "data-only", "layers-only", "resihp", "malleus", "torchft", "always")


def tables(result: dict[str, Any] | None) -> str:
    """All of `bench/simulate.py`; None: it has not been recorded."""
    if result is None:
        return "Not recorded yet: `make bench-simulate`."
    f = result["figures"]
    parts = [_situations(f), _flapping(f["flapping"]), _quiet(f["quiet"]), _traces(f["traces"])]
    return "\n\n".join([*parts, f"Printed by `{result['command']}`: virtual time, the same on every machine."])


def _situations(f: dict[str, Any]) -> str:
    rows = [[r["situation"], f"{r['over_optimum']:.3f}", r["changes"]] for r in f["situations"]]
    head = "64 devices, 72 minutes from the onset on | time / optimum | changes"
    return f"{table(head, rows)}\n\nMean {f['mean']:.3f}, worst {f['worst']:.3f}: detection, planning and changes are in it."


def _flapping(rows: list[dict[str, Any]]) -> str:
    names = ("slowdown", "events", "ours", "rigid", "always", "over_better", "changes", "always_changes")
    head = "flapping by | events | steps of ours | never | always | time / better | changes | of always"
    return table(head, [[r[name] for name in names] for r in rows])


def _quiet(rows: list[dict[str, Any]]) -> str:
    names = ("devices", "hours", "steps", "plans", "rebalances", "changes", "probe_seconds")
    head = "false-positive set, devices | hours | steps | plans | rebalances | changes | seconds of probes"
    return table(head, [[f"{r[name]:,g}" for name in names] for r in rows])


def _traces(rows: list[dict[str, Any]]) -> str:
    found = [
        [
            f"{r['devices']:,}: {r['trace']}, {r['hours']:g} h",
            r["events"],
            f"{r['optimum']:.3f}",
            *map(_goodput(r), _NAMES),
        ]
        for r in rows
    ]
    return table("devices, trace; goodput | events | optimum | " + " | ".join(_NAMES), found)


def _goodput(row: dict[str, Any]) -> Any:
    best = max(row[name] for name in _NAMES)
    return lambda name: f"**{row[name]:.3f}**" if row[name] == best else f"{row[name]:.3f}"
