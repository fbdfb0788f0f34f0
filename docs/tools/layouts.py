"""Tables of layouts under slow devices, from docs/results/layout.json to Markdown."""

from __future__ import annotations

from typing import Any

_RIVALS = ("rigid", "drop-devices", "drop-nodes", "data-only", "layers-only", "malleus")


def tables(result: dict[str, Any]) -> str:
    """All of `bench/layout.py`."""
    f = result["figures"]
    parts = [_situations(f), _random(f["random"]), _moves(f["moves"]), _times(f["times"]), _small(f["small"])]
    return "\n\n".join([*parts, f"Printed by `{result['command']}` on {result['machine']}."])


def table(head: str, rows: list[list[Any]]) -> str:
    columns = head.count("|") + 1
    lines = [f"| {head} |", "|" + "---|" * columns]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def _ratio(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


def _situations(f: dict[str, Any]) -> str:
    rows = [
        [r["situation"], _ratio(r["optimum"]), f"**{_ratio(r['ours'])}**", *(_ratio(r[name]) for name in _RIVALS)]
        for r in f["situations"]
    ]
    head = "64 devices, llama-70b; step / optimum | optimum / healthy | ours | " + " | ".join(_RIVALS)
    return f"{table(head, rows)}\n\nMean {f['mean']:.3f}, worst {f['worst']:.3f}. `none`: the rival has no layout that fits."


def _random(rows: list[dict[str, Any]]) -> str:
    ours = [r["ours"] for r in rows]
    beside = [[name, *_over(rows, name)] for name in _RIVALS]
    text = f"One device of ten slow (1.1 to 12.53), {len(rows)} random clusters of 64: mean {sum(ours) / len(ours):.3f}"
    return f"{text}, worst {max(ours):.3f} x the optimum.\n\n" + table("rival / ours | least | mean | most", beside)


def _over(rows: list[dict[str, Any]], name: str) -> list[str]:
    found = [r[name] / r["ours"] for r in rows if r[name] is not None]
    return [f"{x:.3f}" for x in (min(found), sum(found) / len(found), max(found))]


def _moves(rows: list[dict[str, Any]]) -> str:
    names = ("situation", "gigabytes", "seconds", "bytes_over_least", "seconds_over_bound")
    head = "from the healthy layout | GB | seconds on the busiest device | bytes / least | seconds / bound"
    return table(head, [[r[name] for name in names] for r in rows])


def _times(rows: list[dict[str, Any]]) -> str:
    names = ("devices", "plans", "mean_seconds", "p99_seconds", "mean", "worst")
    head = "devices, one of ten slow | plans | CPU seconds, mean | worst | step / optimum, mean | worst"
    return table(head, [[r[name] for name in names] for r in rows])


def _small(row: dict[str, Any]) -> str:
    cases = f"{row['cases']} clusters of four to six devices"
    return f"Beside the exhaustive search, {cases}: mean {row['mean']:.4f}, worst {row['worst']:.4f}."
