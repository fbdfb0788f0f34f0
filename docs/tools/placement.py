"""Tables of step placement, from docs/results/balance.json and planner-speed.json to Markdown."""

from __future__ import annotations

from statistics import median
from typing import Any

Result = dict[str, Any]
OURS = "makespan"
SHOWN = ("github", "byted", "wikipedia", "uniform", "video", "documents", "huge")
NAMED = {
    "waves": "Megatron's dynamic context parallel",
    "wlb": "WLB-LLM",
    "kk": "Karmarkar-Karp",
    "static": "a fixed grid",
}


def targets(result: Result) -> str:
    """A row a target: reached or not, the median of its hardest case, the worst step."""
    lines = ["| | what | target | median | worst | hardest case |", "|---|---|---|---|---|---|"]
    lines += [_target(row) for row in result["figures"]["targets"]]
    return "\n".join([*lines, "", _about(result, f"{result['figures']['seeds']} seeds a case")])


def _target(row: Result) -> str:
    best = f" (at most {_short(row['best'])})" if "best" in row else ""
    cells = (row["what"], row["limit"].replace("<=", "≤").replace(">=", "≥"), _short(row["median"]) + best)
    return f"| {'✓' if row['reached'] else '✗'} | {' | '.join(cells)} | {_short(row['worst'])} | {row['where']} |"


def rivals(result: Result) -> str:
    """Medians of makespan over bound by family and replicas, a column a balance; without barriers in brackets."""
    groups: dict[tuple[str, int, bool], dict[str, list[Result]]] = {}
    for row in result["figures"]["balances"]:
        if row["speeds"] == "equal":
            groups.setdefault((row["family"], row["replicas"], not row["short"]), {}).setdefault(
                row["balance"], []
            ).append(row)
    shown = {key: found for key, found in groups.items() if len(found) > 1}
    balances = list(dict.fromkeys(b for found in shown.values() for b in found))
    lines = [f"| lengths | replicas | {' | '.join(balances)} |", "|---|---|" + "---|" * len(balances)]
    for family, replicas, whole in sorted(shown, key=lambda key: (SHOWN.index(key[0]), *key[1:])):
        cells = [_rival(shown[family, replicas, whole].get(balance)) for balance in balances]
        lines.append(f"| {family}{'' if whole else ', short step'} | {replicas:,} | {' | '.join(cells)} |")
    seeds = {row["samples"] for found in shown.values() for rows in found.values() for row in rows}
    words = f"medians of makespan / lower bound, {min(seeds)} to {max(seeds)} seeds a case and balance"
    return "\n".join([*lines, "", _about(result, words)])


def _rival(rows: list[Result] | None) -> str:
    if not rows:
        return ""
    free = [row["unbarred"] for row in rows if "unbarred" in row]
    return f"{median(row['over_bound'] for row in rows):.2f}" + (f" ({median(free):.2f})" if free else "")


def planners(result: Result) -> str:
    head = "| replicas | balance | p50, ms | p95, ms | slowest family: p50, p95, ms | peak memory, MiB |"
    lines = [head, "|---|---|---|---|---|---|"] + [_planner(row) for row in result["figures"]["rows"]]
    return "\n".join([*lines, "", _about(result, "CPU time of one thread; memory of the whole process")])


def _planner(row: Result) -> str:
    head = f"| {row['replicas']:,} | {row['balance']}{', short steps' if row['short'] else ''} |"
    if "beyond_seconds" in row:
        return f"{head} | more than {row['beyond_seconds']:g} s for {row['seeds']} steps a family | | |"
    slowest = f"{row['slowest_family']}: {row['slowest_p50_ms']:g}, {row['slowest_p95_ms']:g}"
    return f"{head} {row['p50_ms']:g} | {row['p95_ms']:g} | {slowest} | {row['peak_mib']} |"


def rows(results: dict[str, Result]) -> list[tuple[str, str, str, str]]:
    """What README shows: what was measured, ours, the rivals, and the key of the result."""
    return [_quality(results["balance"]), _speed(results["planner-speed"])]


def _quality(result: Result) -> tuple[str, str, str, str]:
    large = [r for r in result["figures"]["balances"] if r["replicas"] == 1024 and r["speeds"] == "equal"]
    by_balance: dict[str, list[float]] = {}
    for row in large:
        by_balance.setdefault(row["balance"], []).append(row["over_bound"])
    ours = by_balance.pop(OURS)
    beside = ", ".join(f"{NAMED.get(b, b)} {median(found):.2f}" for b, found in by_balance.items())
    what = f"↓ Planned makespan on 1,024 replicas, divided by its lower bound (median of {len(ours)} sets of lengths)"
    return what, f"{median(ours):.3f}", beside, "balance"


def _speed(result: Result) -> tuple[str, str, str, str]:
    found = {(r["balance"], r["replicas"]): r for r in result["figures"]["rows"]}
    largest = max(replicas for _, replicas in found)
    what = f"↓ CPU time of planning that step, p95, milliseconds (on {largest:,} replicas)"
    ours = f"{found[OURS, 1024]['p95_ms']:.0f} ({found[OURS, largest]['p95_ms']:.0f})"
    return what, ours, "targets 50 (1,000)", "planner-speed"


def _about(result: Result, what: str) -> str:
    return f"`{result['command']}`: {what}; commit {result['commit']}, {result['recorded']}, {result['machine']}."


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 0.1 or value >= 10 else f"{value:.3f}"
