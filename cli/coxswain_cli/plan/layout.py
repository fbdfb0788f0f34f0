"""`cox plan layout`: the layout of a cluster with slow or dead devices, beside what other systems would run."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from coxswain.errors import Refused
from coxswain.plan.layouts.cluster import read_cluster
from coxswain.plan.layouts.costs import Costs, shape_of
from coxswain.plan.layouts.planner import HORIZON, Plan, healthy_plan, plan_layout
from coxswain.plan.layouts.result import layout_of, planned, read_current
from coxswain.plan.layouts.rivals import RIVALS
from coxswain.plan.layouts.settle import Draft
from coxswain_cli.plan.files import on_terminal, read_bytes, refusals, write_text


def layout_command(
    cluster: Annotated[Path, typer.Option(help="Cluster file: nodes, slowdowns of their devices, batch, hardware.")],
    model: Annotated[str, typer.Option(help="Model by name, such as llama-70b.")],
    current: Annotated[
        Path | None, typer.Option(help="The layout that runs, as an earlier --output; what moves is weighed.")
    ] = None,
    horizon: Annotated[int, typer.Option(help="Steps that the layout is to run, with --current.")] = HORIZON,
    rival: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Compare with {', '.join(RIVALS)}, or all. Without --current they begin with the healthy layout."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Write the layout here, as JSON [standard output, unless that is a terminal].")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the JSON, no table.")] = False,
) -> None:
    """Plan the layout of a cluster with slow devices; exit code 2 if it cannot be planned."""
    with refusals():
        costs = Costs(read_cluster(_bytes(cluster, "cluster"), f"--cluster {cluster}"), shape_of(model))
        running = read_current(_bytes(current, "current"), f"--current {current}", costs) if current else None
        names = _rivals(rival or [], horizon)
        begin = time.perf_counter()
        plan = plan_layout(costs, running, horizon)
        took = time.perf_counter() - begin
        healthy = healthy_plan(costs)
        report = {**_report(costs, plan, healthy, took), **_compared(costs, running or healthy, plan.draft, names)}
        if output or as_json or not on_terminal():
            write_text(output, json.dumps(report))
    if not as_json:
        _table(report, plan.draft)


def _bytes(path: Path, option: str) -> bytes:
    return read_bytes(path, f"--{option} {path}", "a JSON file that can be read")


def _rivals(names: list[str], horizon: int) -> list[str]:
    if horizon < 1:
        raise Refused("BadValue", f"--horizon is {horizon}; it must be at least 1 step")
    unknown = [name for name in names if name not in (*RIVALS, "all")]
    if unknown:
        raise Refused("BadValue", f"--rival is {unknown[0]!r}; use one of {', '.join(RIVALS)}, all")
    return list(RIVALS) if "all" in names else names


def _report(costs: Costs, plan: Plan, healthy: Draft, took: float) -> dict[str, Any]:
    cluster, layout = costs.cluster, layout_of(plan.draft, costs.cluster)
    ratio = cluster.optimum_ratio
    return {
        "replicas": msgspec.to_builtins(planned(costs, plan.draft)),
        "standby": [{"node": cluster.nodes[d.trainer].name, "device": d.device} for d in layout.standby],
        "step_seconds": plan.draft.seconds,
        "healthy_seconds": healthy.seconds,
        "optimum_ratio": ratio,
        "ratio_to_optimum": plan.draft.seconds / (healthy.seconds * ratio),
        "memory_limit_bytes": costs.limit,
        "planner_seconds": took,
        "digest": layout.digest(),
        "transfers": plan.traffic and _transfers(plan),
    }


def _transfers(plan: Plan) -> dict[str, Any]:
    traffic = plan.traffic
    assert traffic
    return {
        "bytes": traffic.bytes,
        "least_bytes": traffic.least_bytes,
        "from_checkpoint_bytes": traffic.stored_bytes,
        "most_sent_bytes": traffic.most_sent,
        "most_received_bytes": traffic.most_received,
        "seconds": traffic.seconds,
        "lower_bound_seconds": traffic.bound_seconds,
    }


def _compared(costs: Costs, running: Draft, ours: Draft, names: list[str]) -> dict[str, Any]:
    """Seconds of a step by each rival; None: it has no layout for these devices."""
    if not names:
        return {}
    drafts = {name: RIVALS[name](costs, running) for name in names}
    return {
        "rivals": {
            name: draft and {"step_seconds": draft.seconds, "over_ours": draft.seconds / ours.seconds}
            for name, draft in drafts.items()
        }
    }


def _table(report: dict[str, Any], draft: Draft) -> None:
    """Prints a table on standard error."""
    limit, fullest = (
        report["memory_limit_bytes"],
        max(s["memory_bytes"] for r in report["replicas"] for s in r["stages"]),
    )
    of = f" of {limit / 2**30:.1f}" if limit else ""
    rows = {
        "step": f"{report['step_seconds']:.3f} s, {report['ratio_to_optimum']:.3f} x the optimum",
        "healthy": f"{report['healthy_seconds']:.3f} s",
        "memory": f"{fullest / 2**30:.1f}{of} GiB on the fullest device",
        "standby": f"{len(report['standby'])} devices",
        "planned in": f"{1000 * report['planner_seconds']:.0f} ms",
    }
    if moved := report["transfers"]:
        rows["moves"] = (
            f"{moved['bytes'] / 1e9:.1f} GB in {moved['seconds']:.2f} s, bound {moved['lower_bound_seconds']:.2f} s"
        )
    for number, (chain, count) in enumerate(zip(draft.chains, draft.counts, strict=True)):
        stages = ", ".join(
            f"{n} on tp{g.degree}" + (f" x{g.slowdown:g}" if g.slowdown > 1 else "")
            for n, g in zip(chain.layers, chain.groups, strict=True)
        )
        rows[f"replica {number}"] = f"{count} micro-batches; layers {stages}"
    for name, found in report.get("rivals", {}).items():
        rows[name] = f"{found['step_seconds']:.3f} s, {found['over_ours']:.3f} x ours" if found else "has no layout"
    for name, text in rows.items():
        print(f"{name:>13}  {text}", file=sys.stderr)
