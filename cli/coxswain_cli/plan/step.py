"""`cox plan step`: places one step's sequences on replicas and compares with the lower bound."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from coxswain.cost import load_constants
from coxswain.cost.model import CostModel
from coxswain.errors import Refused
from coxswain.plan.assemble import assemble, digest
from coxswain.plan.planners import BALANCES, planner
from coxswain.plan.problem import Problem, make_problem
from coxswain.plan.simulate import drafts_of, ring_bytes
from coxswain.plan.values import Placement
from coxswain_cli.plan.files import on_terminal, read_numbers, refusals, write_text
from coxswain_cli.reporting import plan_picture


def step_command(
    lengths: Annotated[Path, typer.Option(help="Sequence lengths: a JSON array of integers, or one a line.")],
    replicas: Annotated[int, typer.Option(help="Number of replicas.")],
    capacity: Annotated[int, typer.Option(help="Tokens that one replica holds in one task.")],
    balance: Annotated[str, typer.Option(help=f"One of {', '.join(BALANCES)}.")] = "makespan",
    model: Annotated[str, typer.Option(help="Model that the constants are for.")] = "llama-7b",
    hardware: Annotated[str, typer.Option(help="Shipped constants by name, or a file.")] = "h100-80g",
    node_size: Annotated[int, typer.Option(help="Replicas on one node.")] = 8,
    speeds: Annotated[
        Path | None, typer.Option(help="Speed of each replica, as --lengths; 1 is the cost model's.")
    ] = None,
    max_degree: Annotated[int, typer.Option(help="Most replicas for one sequence; 0: all.")] = 0,
    output: Annotated[
        Path | None, typer.Option(help="Write the plan here, as JSON [standard output, unless that is a terminal].")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the JSON, no table.")] = False,
    picture: Annotated[Path | None, typer.Option(help="Draw the plan by replica and time: an SVG file.")] = None,
    beside: Annotated[str, typer.Option(help="Draw the plan of another balance beside it, such as static.")] = "",
) -> None:
    """Plan one step and compare the plan with its lower bound; exit code 2 if it cannot be planned."""
    with refusals():
        problem = make_problem(
            read_numbers(lengths, "lengths", int),
            replicas=replicas,
            capacity=capacity,
            cost=CostModel(load_constants(hardware, model)),
            speeds=None if speeds is None else read_numbers(speeds, "speeds", float),
            max_degree=_degree(max_degree, replicas),
            node_size=node_size,
        )
        begin = time.perf_counter()
        placement = _planned(problem, balance)
        took = time.perf_counter() - begin
        _draw(problem, placement, picture, beside)
        if output or as_json or not on_terminal():  # on a terminal it would bury the table
            write_text(output, json.dumps(_report(problem, placement, took)))
    if not as_json:
        _table(problem, placement, took)


def _planned(problem: Problem, balance: str) -> Placement:
    return assemble(problem, balance.lower(), planner(balance)(problem))


def _draw(problem: Problem, placement: Placement, file: Path | None, beside: str) -> None:
    """Writes the picture of the plan, with the plan of the balance `beside` to its right."""
    if file is None:
        if beside:
            raise Refused("BadValue", f"--beside {beside} draws nothing without --picture; add --picture FILE")
        return
    plans = [placement, *([_planned(problem, beside)] if beside else [])]
    write_text(file, plan_picture.picture(plans), "picture")


def _degree(max_degree: int, replicas: int) -> int:
    if max_degree < 0:
        raise Refused("BadValue", f"--max-degree is {max_degree}; it must be at least 0 (all replicas)")
    return max_degree or max(1, replicas)


def _report(problem: Problem, placement: Placement, took: float) -> dict[str, Any]:
    inside, between = ring_bytes(problem, drafts_of(placement))
    return {
        "balance": placement.balance,
        "replicas": placement.replicas,
        "capacity": placement.capacity,
        "makespan_seconds": placement.makespan_seconds,
        "lower_bound_seconds": placement.lower_bound_seconds,
        "makespan_over_bound": placement.makespan_over_bound,
        "work_seconds": placement.work_seconds,
        "idle_fraction": placement.idle_fraction,
        "ring_bytes": {"inside_node": inside, "between_nodes": between},
        "planner_seconds": took,
        "digest": digest(placement),
        "constants": msgspec.to_builtins(problem.cost.constants),
        "tasks": [_task(task) for task in msgspec.to_builtins(placement.tasks)],
    }


def _task(task: dict[str, Any]) -> dict[str, Any]:
    names = ("replica", "sequence", "start", "stop")
    return {**task, "slices": [dict(zip(names, s, strict=True)) for s in task["slices"]]}


def _table(problem: Problem, placement: Placement, took: float) -> None:
    """Prints a table on standard error."""
    rings = [t for t in placement.tasks if t.kind == "ring"]
    widest = max((len(t.replicas) for t in rings), default=1)
    inside, between = ring_bytes(problem, drafts_of(placement))
    rows = {
        "sequences": f"{problem.lengths.size} with {int(problem.lengths.sum())} tokens, longest {int(problem.lengths.max())}",
        "tasks": f"{len(placement.tasks) - len(rings)} packs, {len(rings)} rings, widest over {widest} replicas",
        "makespan": f"{placement.makespan_seconds:.3f} s, {placement.makespan_over_bound:.3f} x the lower bound",
        "idle": f"{100 * placement.idle_fraction:.1f} %",
        "ring traffic": f"{inside / 1e9:.1f} GB inside nodes, {between / 1e9:.1f} GB between them",
        "planned in": f"{1000 * took:.0f} ms by {placement.balance}",
    }
    for name, text in rows.items():
        print(f"{name:>13}  {text}", file=sys.stderr)
