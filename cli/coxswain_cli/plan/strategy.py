"""`cox plan strategy`: chooses tensor x stages x replicas for a file of sequence lengths and a number of devices."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import msgspec
import typer

from coxswain.cost import load_constants
from coxswain.cost.constants import device_memory
from coxswain.cost.ulysses import Attention
from coxswain.errors import Refused
from coxswain.plan.layouts.costs import shape_of
from coxswain.plan.planners import BALANCES, planner
from coxswain.plan.problem import MOST_REPLICAS, MOST_TOKENS, checked_lengths
from coxswain.plan.strategy.choose import choose
from coxswain.plan.strategy.sample import sampled_steps
from coxswain.plan.strategy.values import Alternative, Machine, Strategy
from coxswain_cli.plan.files import on_terminal, read_numbers, refusals, write_text
from coxswain_cli.plan.policy import policy_of

_GIB = 2**30
_MOST_SEQUENCES = 1_000_000  # of a step
_RECOMPUTE: dict[str, tuple[Any, ...]] = {
    "none": ("None",), "selective": ("Selective",), "full": ("Full",), "auto": ("None", "Selective", "Full"),
}  # fmt: skip


def strategy_command(
    lengths: Annotated[Path, typer.Option(help="Sequence lengths: a JSON array of integers, or one a line.")],
    devices: Annotated[int, typer.Option(help="Number of devices.")],
    node_size: Annotated[int, typer.Option(help="Devices of a node, and so of a trainer.")] = 8,
    model: Annotated[str, typer.Option(help="Model: a preset, or one of the cost model.")] = "llama-7b",
    hardware: Annotated[str, typer.Option(help="Shipped constants by name, or a file.")] = "h100-80g",
    capacity: Annotated[int, typer.Option(help="Tokens that one replica holds in one task (tokensPerReplica).")] = 8192,
    context: Annotated[int, typer.Option(help="Longest sequence; longer ones are split. 0: as they are.")] = 0,
    tokens: Annotated[int, typer.Option(help="Tokens of a step; 0: of all lengths.")] = 0,
    max_degree: Annotated[int, typer.Option(help="Most replicas for one sequence.")] = 64,
    balance: Annotated[str, typer.Option(help=f"Planner that places the steps: {', '.join(BALANCES)}.")] = "makespan",
    recompute: Annotated[str, typer.Option(help="None, Selective, Full, or Auto: any of them.")] = "Auto",
    attention: Annotated[str, typer.Option(help="How members of a ring share it: Ring, Ulysses or Auto.")] = "Ring",
    copies: Annotated[bool, typer.Option(help="Count copies of optimizer state (recovery.copies: EveryStep).")] = False,
    output: Annotated[
        Path | None, typer.Option(help="Write the strategy here, as JSON [standard output, unless that is a terminal].")
    ] = None,
    policy: Annotated[Path | None, typer.Option(help="Write a ParallelismPolicy with the chosen layout here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the JSON, no table.")] = False,
) -> None:
    """Choose a layout and compare it with others; exit code 2 if none fits."""
    with refusals():
        planner(balance)
        machine = _machine(devices, node_size, model, hardware, capacity, max_degree, recompute)
        machine = replace(machine, attention=_attention(attention), copies=copies)
        found_lengths = _lengths(lengths)
        _refuse_many(found_lengths, _whole("tokens", tokens), _whole("context", context))
        steps = sampled_steps(found_lengths, tokens, context)
        begin = time.perf_counter()
        found = choose(machine, steps, balance)
        took = time.perf_counter() - begin
        manifest = policy_of(found, machine, hardware, balance)
        if policy is not None:
            write_text(policy, json.dumps(manifest, indent=2), "policy")
        if output or as_json or not on_terminal():
            write_text(
                output, json.dumps({**msgspec.to_builtins(found), "policy": manifest, "seconds_to_choose": took})
            )
    if not as_json:
        _table(found, took)


def _lengths(path: Path) -> list[int]:
    return [int(s) for s in checked_lengths(read_numbers(path, "lengths", int))]


def _refuse_many(lengths: list[int], tokens: int, context: int) -> None:
    """Refuses steps of more sequences than are placed in minutes."""
    pieces = sum(-(-length // context) for length in lengths) if context else len(lengths)
    each = round(pieces * (tokens / sum(lengths) if tokens else 1.0))
    if each > _MOST_SEQUENCES:
        way = "lower --tokens, raise --context, or give fewer lengths"
        raise Refused("BadValue", f"a step has some {each} sequences; it may have {_MOST_SEQUENCES}: {way}")


def _machine(
    devices: int, node_size: int, model: str, hardware: str, capacity: int, max_degree: int, recompute: str
) -> Machine:
    constants = load_constants(hardware, model)
    each = min(_least_one("node-size", node_size, MOST_REPLICAS), _least_one("devices", devices, MOST_REPLICAS))
    rest = devices % each
    if recompute.lower() not in _RECOMPUTE:
        raise Refused("BadValue", f"--recompute is {recompute!r}; use None, Selective, Full or Auto")
    return Machine(
        trainers=(each,) * (devices // each) + ((rest,) if rest else ()),
        model=shape_of(model),
        constants=constants,
        capacity=_least_one("capacity", capacity),
        max_degree=_least_one("max-degree", max_degree),
        memory=device_memory(hardware),
        recompute=_RECOMPUTE[recompute.lower()],
    )


def _attention(name: str) -> Attention:
    for known in get_args(Attention):
        if known.lower() == name.lower():
            return cast("Attention", known)
    raise Refused("BadValue", f"--attention is {name!r}; use {', '.join(get_args(Attention))}")


def _whole(option: str, value: int) -> int:
    if not 0 <= value <= MOST_TOKENS:
        raise Refused("BadValue", f"--{option} is {value}; it must be at least 0 and at most {MOST_TOKENS}")
    return value


def _least_one(option: str, value: int, most: int = MOST_TOKENS) -> int:
    if not 1 <= value <= most:
        raise Refused("BadValue", f"--{option} is {value}; it must be at least 1 and at most {most}")
    return value


def _table(found: Strategy, took: float) -> None:
    """Prints the chosen layout, the alternatives and what was refused on standard error."""
    limit = f" of {found.memory_bytes / _GIB:.0f} GiB" if found.memory_bytes else ""
    print(f"chosen       {found.chosen.summary}, recompute {found.chosen.recompute}", file=sys.stderr)
    print(f"predicted    {found.chosen.seconds:.3f} s a step of {found.tokens} tokens", file=sys.stderr)
    print(f"decided      by {found.steps} placed steps, in {took:.2f} s", file=sys.stderr)
    print(f"{'layout':<44} {'seconds':>9} {'x chosen':>9}  recompute  memory{limit}", file=sys.stderr)
    for each in (found.chosen, *found.alternatives):
        print(_row(each, found.chosen.seconds), file=sys.stderr)
    for refusal in found.refused:
        print(f"refused      {refusal.summary}: {refusal.why}", file=sys.stderr)


def _row(each: Alternative, best: float) -> str:
    estimate = "" if each.placed else "  (estimate, not placed)"
    ratio, memory = each.seconds / best, each.peak_bytes / _GIB
    return f"{each.summary:<44} {each.seconds:>9.3f} {ratio:>9.3f}  {each.recompute:<9} {memory:>7.1f}{estimate}"
