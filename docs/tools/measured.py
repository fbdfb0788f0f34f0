"""Rows of measured figures, from docs/results/*.json to Markdown. A command printed each figure."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

from docs.tools import loading, placement

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
Result = dict[str, Any]


def read() -> dict[str, Result]:
    """By the file's name without its ending."""
    return {file.stem: json.loads(file.read_text()) for file in sorted(RESULTS.glob("*.json"))}


def rows(results: dict[str, Result]) -> list[tuple[str, str, str, str]]:
    """What was measured (with the better direction), ours, the rival's, and the key of the result."""
    return [*_operator(results["operator-scale"]), *_engine(results["engine"]), *placement.rows(results),
            *_balances(results["hdp-cpu"]), *_loading(results["loading"]), *_recovery(results["recovery"])]  # fmt: skip


def table(results: dict[str, Result]) -> str:
    lines = ["| measured (↓ lower is better, ↑ higher) | Coxswain | beside it | command |", "|---|---|---|---|"]
    lines += [
        f"| {what} | {ours} | {rival} | `{results[key]['command']}` |" for what, ours, rival, key in rows(results)
    ]
    return "\n".join(lines)


def origins(results: dict[str, Result]) -> str:
    lines = ["| result | command | commit | recorded | machine | figures from |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {r['title']} | `{r['command']}` | {r['commit']} | {r['recorded']} | {r['machine']} | {_origin(r['from'])} |"
        for r in results.values()
    ]
    return "\n".join(lines)


def _origin(source: str) -> str:
    return f"[{source}]({source.removeprefix('docs/')})" if source.startswith("docs/") else source


def _operator(result: Result) -> list[tuple[str, str, str, str]]:
    of = {row["system"]: row for row in result["figures"]["creation"] if row["case"] == "1 x 1000"}

    def row(what: str, column: str, peers: tuple[str, ...]) -> tuple[str, str, str, str]:
        beside = ", ".join(f"{_name(peer)} {of[peer][column]}" for peer in peers)
        return what, of["coxswain"][column], beside, "operator-scale"

    others = ("jobset", "trainer", "training-operator")
    return [
        row(
            "↓ Time until 1,000 pods run, divided by that of a bare loop, which only creates them",
            "of the bare loop's",
            others,
        ),
        row("↓ Restart of all 1,000, seconds", "whole restart, s", ("bare", "jobset", "trainer")),
        row(
            "↓ Exactly 1,000 pods after a SIGKILL of the operator in mid-creation, seconds",
            "exact after SIGKILL, s",
            others,
        ),
        row("↓ Memory of the operator at 1,000 pods, MiB", "peak RSS, MiB", others),
    ]


def _name(peer: str) -> str:
    return {"bare": "the bare loop", "jobset": "JobSet", "trainer": "Trainer"}.get(peer, peer)


def _engine(result: Result) -> list[tuple[str, str, str, str]]:
    f = result["figures"]
    return [
        (
            "↑ One replica, tokens a second",
            f["one replica tokens/s"],
            f"a plain torch loop {f['plain tokens/s']}",
            "engine",
        ),
        (
            "↑ Tokens a second of two replicas, divided by one's",
            f["two over one"],
            f"target {f['two over one, target']}",
            "engine",
        ),
    ]


def _balances(result: Result) -> list[tuple[str, str, str, str]]:
    """Tokens a second, mean of the rounds, of our balance beside the others."""
    of = {name: mean(found["tokens/s"]) for name, found in result["figures"]["balances"].items()}
    ours = of.pop("Makespan")
    off = 100 * max(found["prediction off by"]["p50"] for found in result["figures"]["balances"].values())
    error = f"median error of a step's prediction: {off:.0f} % at most"
    what = f"↑ Tokens a second of four real replicas on long-tailed text ({error})"
    return [(what, f"{ours:,.0f}", ", ".join(f"{name} {each:,.0f}" for name, each in of.items()), "hdp-cpu")]


def _loading(result: Result) -> list[tuple[str, str, str, str]]:
    """Tokens a second of one rank, and which systems go on exactly behind their own state with other ranks."""
    rows = loading.medians(result["figures"]["rows"])
    exact = {row.pop("system"): set(row.values()) == {"same"} for row in map(dict, result["figures"]["resumes"])}

    def row(what: str, of: dict[str, str]) -> tuple[str, str, str, str]:
        ours, *peers = (name for name in of if name in exact)
        return what, of[ours], ", ".join(f"{loading.NAMES[name]} {of[name]}" for name in peers), "loading"

    def speed(sources: int) -> tuple[str, str, str, str]:
        here = [row for row in rows if row["case"] == f"{sources} sources, 1 ranks" and "tokens" in row]
        what = f"↑ Tokens a second that one rank reads with two workers, {sources} sources"
        return row(what, {each["system"]: f"{each['tokens']:,.0f}" for each in here})

    what = "A loader goes on behind its own state, with as many ranks and workers and with others"
    return [speed(2), speed(64), row(what, {name: "yes" if same else "no" for name, same in exact.items()})]


def _recovery(result: Result) -> list[tuple[str, str, str, str]]:
    found = result["figures"]
    pauses = ", ".join(f"{role} {figures['pause']}" for role, figures in found.items())
    targets = ", ".join(f"{role} {figures['target']}" for role, figures in found.items())
    what = "↓ Longest time between the ends of two steps after a SIGKILL"
    return [(what, f"{pauses} ({found['coordinator']['wait']})", f"targets: {targets}", "recovery")]
