"""Ours and rivals on traces of slow and lost devices, in virtual time: goodput, false re-plans, flapping, the nine situations.

    python -m bench.simulate [--parts situations,quiet,flapping,traces] [--seeds 3] [--output FILE]

64 devices with llama-70b, one sequence a device and step, as of `bench.layout`. A situation begins after five minutes
and lasts 72, as long as a sick device on the average: its time over that of the optimum has detection and migration in it.
Prints lines of text, then one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

from bench.layout import SITUATIONS
from coxswain.simulate.compare import NAMES, optimum, report, simulate, world_of
from coxswain.simulate.generate import generate
from coxswain.simulate.run import World
from coxswain.simulate.traces import Event, Trace

NODES = DEVICES = 8
TRACES = {
    "two": 6.0,
    "node": 72.0,
    "change": 6.0,
    "coordinator": 6.0,
    "ramp": 6.0,
    "thermal": 12.0,
    "lost": 168.0,
    "all": 24.0,
}
"""Hours by kind: long enough for some events each."""
CALM, MINUTES = 300.0, 72.0


def shown(row: dict[str, Any]) -> dict[str, Any]:
    text = ", ".join(f"{key} {value}" for key, value in row.items() if key not in ("runs", "curve"))
    print(text, file=sys.stderr, flush=True)
    return row


def situation(world: World, name: str, slow: dict[tuple[int, int], float]) -> dict[str, Any]:
    """Seconds from the onset on over those of the optimum, for as many steps."""
    end = CALM + 60 * MINUTES
    events = tuple(Event(CALM, f"n{n}/{d}", "sick", x) for (n, d), x in sorted(slow.items()))
    trace = Trace(NODES, DEVICES, end, 0, events)
    outcome = simulate(world, trace, ())[0]
    steps = sum(t > CALM for t in outcome.ends)
    best = NODES * DEVICES / (NODES * DEVICES - sum(1 - 1 / x for x in slow.values()))
    over = (end - CALM) / (steps * world.healthy.seconds * best)
    return shown({"situation": name, "over_optimum": round(over, 4), "changes": outcome.changes})


def quiet(world: World, seed: int, hours: float) -> dict[str, Any]:
    """The false-positive set: nothing may be planned."""
    outcome = simulate(world, generate("quiet", NODES, DEVICES, 3600 * hours, seed), ())[0]
    row = {"seed": seed, "steps": len(outcome.ends), "plans": outcome.plans, "rebalances": outcome.rebalances}
    return shown({**row, "changes": outcome.changes, "probe_seconds": outcome.seconds_lost.get("probes", 0.0)})


def flapping(world: World, seed: int) -> dict[str, Any]:
    """Time for as many steps over that of the better of never and always acting."""
    trace = generate("flapping", NODES, DEVICES, 3600 * 2.2, seed)
    ours, never, always = simulate(world, trace, ("rigid", "always"))
    steps = {o.name: len(o.ends) for o in (ours, never, always)}
    over = max(steps["rigid"], steps["always"]) / steps["ours"]
    slow = max(e.magnitude for e in trace.events)
    return shown({"seed": seed, "slowdown": slow, "events": len(trace.events), **steps, "over_better": round(over, 4),
                  "changes": ours.changes, "always_changes": always.changes})  # fmt: skip


def trace(world: World, kind: str, hours: float, seed: int) -> dict[str, Any]:
    """Goodput of all."""
    drawn = generate(kind, NODES, DEVICES, 3600 * hours, seed)
    outcomes = simulate(world, drawn, NAMES)
    found = report(world, drawn, outcomes)
    for run in found["runs"]:
        del run["curve"]
    goodput = {o.name: round(o.goodput, 4) for o in outcomes}
    return shown({"trace": kind, "hours": hours, "seed": seed, "events": len(drawn.events),
                  "optimum": round(optimum(world, drawn), 4), **goodput, "runs": found["runs"]})  # fmt: skip


def figures(parts: list[str], seeds: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    world = world_of(generate("quiet", NODES, DEVICES, 60.0, 0), "llama-70b", "a100-80g")
    if "situations" in parts:
        rows = [situation(world, name, slow) for name, slow in SITUATIONS.items()]
        ratios = [row["over_optimum"] for row in rows]
        found |= {"situations": rows, "mean": round(mean(ratios), 4), "worst": max(ratios)}
    if "flapping" in parts:
        found["flapping"] = [flapping(world, seed) for seed in range(seeds)]
    if "quiet" in parts:
        found["quiet"] = [quiet(world, seed, 12.0) for seed in range(seeds)]
    if "traces" in parts:
        found["traces"] = [trace(world, kind, hours, 0) for kind, hours in TRACES.items()]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--parts", default="situations,flapping,quiet,traces")
    parser.add_argument("--output", type=Path, help="write the JSON here")
    args = parser.parse_args()
    text = json.dumps(figures(args.parts.split(","), args.seeds))
    print(text)
    if args.output:
        args.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
