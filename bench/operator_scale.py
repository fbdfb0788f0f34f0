"""The operator on a control plane with kwok nodes, in turns with its peers and a loop that only
POSTs the same pods.

    python -m bench.operator_scale [--trainers 1000,3000,5000] [--many 200x16] [--rounds 2] [--peers jobset] [--write]

Prints one JSON object, then the tables; `--write` puts them into docs/design/scale.md and docs/results. Run it
from the repository's root.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.recorded import keep
from bench.scale import cases
from bench.scale.cases import Figures, System
from bench.scale.control_plane import Plane
from bench.scale.coxswain import Coxswain, pods_of
from bench.scale.peers import PEERS, peers
from bench.scale.storm import storm
from bench.scale.table import LARGE, Shape, into_page, lines, rows_of, tables

PAGE = Path(__file__).resolve().parents[1] / "docs" / "design" / "scale.md"
EVENTS_OF = 500  # trainers; the operator receives a thousand changes of their pods a second


@dataclass(frozen=True, slots=True)
class Plan:
    """`rounds` of the bare loop and ours up to LARGE trainers, `large_rounds` beyond; the peers
    join the first up to LARGE.
    """

    rounds: int
    large_rounds: int
    peers: tuple[str, ...]
    nodes: int

    def rounds_of(self, shape: Shape) -> int:
        return self.large_rounds if _large(shape) else self.rounds

    def rivals(self, shape: Shape) -> tuple[str, ...]:
        return () if _large(shape) else self.peers


def _large(shape: Shape) -> bool:
    return shape.jobs * shape.trainers > LARGE


async def measure(plan: Plan, shape: Shape) -> list[Figures]:
    """Rounds, by system. A control plane of their own."""
    found: list[Figures] = []
    with Plane() as plane:
        await plane.add_nodes(plan.nodes)
        ours, rivals = Coxswain(plane), peers(plane, plan.rivals(shape))
        for system in (ours, *rivals):
            system.prepare()
        pods = [pod for n in range(shape.jobs) for pod in pods_of(f"j{n}", shape.trainers, "any")]
        for _ in range(plan.rounds_of(shape)):
            found.append({"bare": await cases.bare(plane, pods, shape.restarts)})
            found[-1][ours.name] = await cases.creation(plane, ours, shape)
            _print_figures(shape, found[-1])
        if shape.restarts:
            found[0][ours.name]["kill"] = await cases.killed(plane, ours, shape.trainers)
            _print_figures(shape, {ours.name: {"kill": found[0][ours.name]["kill"]}})
        for rival in rivals:
            found[0] |= await _of_rival(plane, rival, shape)
            _print_figures(shape, {rival.name: found[0].get(rival.name)})
    return found


async def _of_rival(plane: Plane, rival: System, shape: Shape) -> Figures:
    """The peer's row; none if it fails, so that the others keep theirs."""
    try:
        figures = await cases.creation(plane, rival, shape)
        if shape.restarts and "killed" not in rival.cannot:
            figures["kill"] = await cases.killed(plane, rival, shape.trainers)
    except Exception as error:  # any: its process, a refusal, a timeout
        print(f"{rival.name}, {shape.name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return {}
    return {rival.name: figures}


def _print_figures(shape: Shape, found: Figures) -> None:
    print(json.dumps({"case": shape.name, **found}), file=sys.stderr, flush=True)


async def events(plan: Plan, trainers: int) -> Figures:
    with Plane() as plane:
        await plane.add_nodes(plan.nodes)
        return await storm(plane, trainers)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the control plane goes as well
    options = _parser().parse_args()
    names = tuple(filter(None, options.peers.split(",")))
    plan = Plan(options.rounds, options.large_rounds, names, options.nodes)
    found = [(shape, asyncio.run(measure(plan, shape))) for shape in _shapes(options.trainers, options.many)]
    rows = [row for shape, rounds in found for row in rows_of(shape, rounds)]
    heard = asyncio.run(events(plan, options.events)) if options.events else {}
    print(json.dumps({"rounds": options.rounds, "rows": rows, "events": heard}))
    shown = tables(rows, heard)
    print("\n".join(lines(shown)))
    if options.write:
        PAGE.write_text(into_page(PAGE.read_text(), lines(shown)))
        keep("operator-scale", "The operator beside its peers", "make bench-operator", shown)


def _shapes(trainers: str, many: str) -> list[Shape]:
    shapes = [Shape(1, int(n)) for n in trainers.split(",") if n]
    return [*shapes, *(Shape(int(j), int(t)) for j, _, t in (many.partition("x"),) if j)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add: Callable[..., Any] = parser.add_argument
    add("--trainers", default="1000,3000,5000", help="sizes of the one job")
    add("--many", default="200x16", help="jobs x trainers; empty: none")
    add(
        "--events", type=int, default=EVENTS_OF, help="trainers in the case of 1,000 pod events a second; 0: without it"
    )
    add("--rounds", type=int, default=2, help=f"up to {LARGE} trainers")
    add("--large-rounds", type=int, default=1, help="beyond")
    add("--peers", default=",".join(PEERS), help=f"in the first round of cases up to {LARGE} trainers; empty: none")
    add("--nodes", type=int, default=200, help="of 32 pods each")
    add("--write", action="store_true", help="the tables into docs/design/scale.md and docs/results")
    return parser


if __name__ == "__main__":
    main()
