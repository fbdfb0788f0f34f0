"""`cox simulate`: a trace of slow and lost devices in virtual time, through ours and through rivals."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from coxswain.errors import Refused
from coxswain.ladder.values import Action
from coxswain.simulate.compare import NAMES, report, simulate, world_of
from coxswain.simulate.generate import KINDS, generate
from coxswain.simulate.run import CHECKPOINT, RESTART, Settings
from coxswain.simulate.traces import MOST_DEVICES, MOST_SECONDS, Trace, read_trace
from coxswain_cli.plan.files import on_terminal, read_bytes, refusals, write_text
from coxswain_cli.reporting.goodput_picture import picture

ON_NODE = 8  # devices of a node of a generated trace


def simulate_command(
    trace: Annotated[Path | None, typer.Argument(help="Trace file: JSON lines. Without one, --generate.")] = None,
    kind: Annotated[str | None, typer.Option("--generate", help=f"Draw a trace: {', '.join(KINDS)}.")] = None,
    devices: Annotated[int, typer.Option(help="Of a generated trace, 8 on each node.")] = 64,
    hours: Annotated[float, typer.Option(help="Length of a generated trace.")] = 24.0,
    seed: Annotated[int, typer.Option(help="Of a generated trace, and of the noise of its steps.")] = 0,
    model: Annotated[str, typer.Option(help="Model by name, such as llama-70b.")] = "llama-70b",
    hardware: Annotated[str, typer.Option(help="Hardware by name or file.")] = "a100-80g",
    rivals: Annotated[str, typer.Option(help=f"Some of {', '.join(NAMES)}, by commas; all, or none.")] = "all",
    action: Annotated[str, typer.Option(help="The highest rung of ours, as in spec.stragglers.")] = "Migrate",
    copies: Annotated[bool, typer.Option(help="Whether ours keeps copies of optimizer state.")] = True,
    checkpoint: Annotated[float, typer.Option(help="Seconds between checkpoints, of all.")] = CHECKPOINT,
    restart: Annotated[float, typer.Option(help="Seconds of a restart, of all.")] = RESTART,
    spares: Annotated[int, typer.Option(help="Nodes beside the cluster, which --action ReplaceNode may take.")] = 1,
    save: Annotated[Path | None, typer.Option(help="Write the trace here.")] = None,
    file: Annotated[Path | None, typer.Option("--picture", help="Draw goodput over time, as SVG.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Write the results here, as JSON [standard output, unless that is a terminal].")
    ] = None,
) -> None:
    """Replay a trace of slow and lost devices in virtual time; exit code 2 if it cannot be."""
    with refusals():
        mine = _trace(trace, kind, devices, hours, seed)
        if save:
            write_text(save, mine.encode().decode().rstrip("\n"), "save")
        world = world_of(mine, model, hardware)
        if not 0 <= spares <= MOST_DEVICES:
            raise Refused("BadValue", f"--spares is {spares}; it must be at least 0 and at most {MOST_DEVICES}")
        settings = Settings(_positive("checkpoint", checkpoint), _positive("restart", restart), spares=spares)
        outcomes = simulate(world, mine, _names(rivals), action=_action(action), copies=copies, settings=settings)
        found = report(world, mine, outcomes)
        if file:
            write_text(file, picture(found), "picture")
        if output or not on_terminal():
            write_text(output, json.dumps(found))
    _table(found)


def _trace(file: Path | None, kind: str | None, devices: int, hours: float, seed: int) -> Trace:
    if (file is None) == (kind is None):
        raise Refused("BadValue", f"give either a trace file or --generate with one of {', '.join(KINDS)}")
    if kind is not None:
        if not 1 <= devices <= MOST_DEVICES or devices % min(devices, ON_NODE):
            form = f"below {ON_NODE} or a multiple of it, and at most {MOST_DEVICES}"
            raise Refused("BadValue", f"--devices is {devices}; it must be {form}")
        if not 0 <= seed < 1 << 63:
            raise Refused("BadValue", f"--seed is {seed}; it must be 0 to 2^63 - 1")
        node = min(devices, ON_NODE)
        return generate(kind, devices // node, node, 3600 * _positive("hours", hours, MOST_SECONDS / 3600), seed)
    assert file
    return read_trace(read_bytes(file, str(file), "a trace that can be read"), str(file))


def _positive(option: str, value: float, most: float = 1e9) -> float:
    if not 0 < value <= most:
        raise Refused("BadValue", f"--{option} is {value}; it must be above 0 and at most {most:.0f}")
    return value


def _names(rivals: str) -> tuple[str, ...]:
    if rivals == "all":
        return NAMES
    return () if rivals == "none" else tuple(dict.fromkeys(name.strip() for name in rivals.split(",")))


def _action(action: str) -> Action:
    if action not in get_args(Action):
        raise Refused("BadValue", f"--action is {action!r}; use one of {', '.join(get_args(Action))}")
    return action  # type: ignore[return-value]


def _table(found: dict[str, Any]) -> None:
    """Prints a table on standard error."""
    hours = found["seconds"] / 3600
    lines = [f"{found['devices']} devices, {hours:g} h, {found['events']} events; optimum {found['optimum']:.4f}"]
    lines.append(f"{'':>12}  goodput   steps  plans  changes  seconds lost")
    for run in found["runs"]:
        lost = ", ".join(f"{cause} {seconds:.0f}" for cause, seconds in run["seconds_lost"].items())
        lines.append(
            f"{run['name']:>12}  {run['goodput']:.4f}  {run['steps']:>6}  {run['plans']:>5}  {run['changes']:>7}  {lost}"
        )
    print("\n".join(lines), file=sys.stderr)
