"""Tables of simulated clusters, from docs/results/simulate.json to Markdown."""

from __future__ import annotations

from typing import Any

from docs.tools.layouts import table

_NAMES = ("ours", "rigid", "restart", "data-only", "layers-only", "malleus", "torchft", "always")


def tables(result: dict[str, Any]) -> str:
    """The parts of `bench/simulate.py` that were recorded."""
    f, drawn = result["figures"], {"situations": _situations, "traces": _traces, "flapping": _flapping, "quiet": _quiet}
    parts = [draw(f) for name, draw in drawn.items() if f.get(name)]
    return "\n\n".join([*parts, f"Printed by `{result['command']}` on {result['machine']}."])


def _situations(f: dict[str, Any]) -> str:
    rows = [[r["situation"], f"{r['over_optimum']:.3f}", r["changes"]] for r in f["situations"]]
    head = "64 devices, 72 minutes from the onset on | time / optimum | changes"
    return f"{table(head, rows)}\n\nMean {f['mean']:.3f}, worst {f['worst']:.3f}: detection, planning and changes are in it."


def _traces(f: dict[str, Any]) -> str:
    rows = [
        [f"{r['trace']}, {r['hours']:g} h", r["events"], f"{r['optimum']:.3f}", *(_goodput(r, name) for name in _NAMES)]
        for r in f["traces"]
    ]
    return table("trace; goodput | events | optimum | " + " | ".join(_NAMES), rows)


def _goodput(row: dict[str, Any], name: str) -> str:
    best = max(row[n] for n in _NAMES)
    return f"**{row[name]:.3f}**" if row[name] == best else f"{row[name]:.3f}"


def _flapping(f: dict[str, Any]) -> str:
    names = ("slowdown", "events", "ours", "rigid", "always", "over_better", "changes", "always_changes")
    head = "flapping by | events | steps of ours | never | always | time / better | changes | of always"
    return table(head, [[r[name] for name in names] for r in f["flapping"]])


def _quiet(f: dict[str, Any]) -> str:
    names = ("seed", "steps", "plans", "rebalances", "changes", "probe_seconds")
    head = "false-positive set, seed | steps | plans | rebalances | changes | seconds of probes"
    return table(head, [[r[name] for name in names] for r in f["quiet"]])
