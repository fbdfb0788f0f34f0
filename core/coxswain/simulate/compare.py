"""One trace for ours and for rivals, and what is said about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from coxswain.errors import Refused
from coxswain.ladder.values import Action
from coxswain.plan.layouts.cluster import Cluster, DeviceState, Node
from coxswain.plan.layouts.costs import Costs, shape_of
from coxswain.simulate.ours import Ours
from coxswain.simulate.rivals import KINDS, Rival
from coxswain.simulate.run import Outcome, Policy, Run, Settings
from coxswain.simulate.traces import Trace
from coxswain.simulate.truth import Timeline
from coxswain.simulate.world import World

NAMES = tuple(kind.name for kind in KINDS)
POINTS = 96  # of a curve


def world_of(trace: Trace, model: str, hardware: str, sequence: int = 4096) -> World:
    """One sequence for each device and step, one a micro-batch. Raises Refused: the model does not fit."""
    nodes = tuple(Node(f"n{n}", (DeviceState(),) * trace.devices) for n in range(trace.nodes))
    cluster = Cluster(
        nodes=nodes, global_batch=trace.nodes * trace.devices, sequence=sequence, hardware=hardware,
        max_tensor=min(8, trace.devices),
    )  # fmt: skip
    return World(Costs(cluster, shape_of(model)))


def policies(rivals: Sequence[str], seed: int, action: Action, copies: bool) -> Iterable[Policy]:
    """Ours, then rivals by name. Raises Refused: no such rival."""
    for name in rivals:
        if name not in NAMES:
            raise Refused("BadValue", f"--rivals is {name!r}; use some of {', '.join(NAMES)}, all or none")
    kinds = {kind.name: kind for kind in KINDS}
    return [Ours(seed, action, copies), *(Rival(kinds[name]) for name in rivals)]


def simulate(
    world: World, trace: Trace, rivals: Sequence[str] = NAMES, *, action: Action = "Migrate", copies: bool = True,
    settings: Settings | None = None,
) -> list[Outcome]:  # fmt: skip
    """Ours first. Equal arguments give equal outcomes."""
    chosen = policies(rivals, trace.seed, action, copies)
    return [Run(world, trace, policy, settings or Settings()).go() for policy in chosen]


def optimum(world: World, trace: Trace) -> float:
    """The goodput that no system exceeds: each device does 1 / slowdown of a healthy one's work, at all times."""
    timeline, now, done = Timeline(trace), 0.0, 0.0
    while now < trace.seconds:
        until = min(timeline.next_change(now), trace.seconds)
        truth = timeline.at(now)
        missing = sum(1 - 1 / x for (_, device), x in truth.key if device >= 0)
        done += (until - now) * (1 - missing / (trace.nodes * trace.devices)) / truth.fleet
        now = until
    return done / trace.seconds


def described(outcome: Outcome) -> dict[str, Any]:
    """As `--output` and the results have it."""
    return {
        "name": outcome.name,
        "goodput": round(outcome.goodput, 4),
        "steps": len(outcome.ends),
        "plans": outcome.plans,
        "changes": outcome.changes,
        "rebalances": outcome.rebalances,
        "seconds_lost": {cause: round(seconds, 1) for cause, seconds in outcome.seconds_lost.items()},
        "curve": outcome.curve(POINTS),
    }


def report(world: World, trace: Trace, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """`healthy_seconds`: of a step with every device well; goodput is relative to it."""
    return {
        "nodes": trace.nodes,
        "devices": trace.nodes * trace.devices,
        "seconds": trace.seconds,
        "seed": trace.seed,
        "events": len(trace.events),
        "healthy_seconds": round(world.healthy.seconds, 4),
        "optimum": round(optimum(world, trace), 4),
        "runs": [described(outcome) for outcome in outcomes],
    }
