"""Ours and rivals on traces of slow and lost devices, in virtual time: goodput, false re-plans, flapping, the nine situations.

    python -m bench.simulate [--parts situations,flapping,quiet,traces] [--devices 64,1024,4096] [--output FILE] [--write]

llama-70b, one sequence a device and step, as of `bench.layout`. A situation begins after five minutes and lasts 72, as
long as a sick device on the average: its time over that of the optimum has detection and migration in it. All seconds
are virtual, those of planners estimates, and noise has seeds: equal sources print equal figures on any machine.
Prints lines of text, then one JSON object; `--write` keeps it in docs/results.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

from bench.layout import SITUATIONS
from bench.recorded import keep
from coxswain.simulate.compare import NAMES, optimum, report, simulate, world_of
from coxswain.simulate.generate import generate
from coxswain.simulate.traces import Event, Trace
from coxswain.simulate.world import World

ON_NODE = 8
TRACES: dict[int, dict[str, float]] = {
    64: {
        "contention": 48.0, "thermal": 6.0, "sick": 60.0, "node": 168.0, "bandwidth": 96.0, "congestion": 12.0, "flapping": 2.2,
        "ramp": 3.0, "two": 3.0, "coordinator": 2.0, "change": 2.0, "lost": 168.0, "all": 2.0,
    },
    1024: {
        "contention": 3.0, "thermal": 0.5, "sick": 4.0, "node": 10.0, "flapping": 0.5, "two": 1.0, "change": 1.0, "lost": 8.0,
    },
    4096: {"two": 1.0, "lost": 3.0},
}  # fmt: skip
"""Hours by devices and kind: long enough for some events each."""
WEEK = 168.0
QUIET = {64: (WEEK, 1), 1024: (24.0, 1), 4096: (6.0, 1)}
"""Hours and seeds of the false-positive set by devices."""
CALM, MINUTES = 300.0, 72.0


def shown(row: dict[str, Any]) -> dict[str, Any]:
    text = ", ".join(f"{key} {value}" for key, value in row.items() if key != "runs")
    print(text, file=sys.stderr, flush=True)
    return row


def world_for(devices: int) -> World:
    return world_of(generate("quiet", devices // ON_NODE, ON_NODE, 60.0, 0), "llama-70b", "a100-80g")


def situation(world: World, name: str, slow: dict[tuple[int, int], float]) -> dict[str, Any]:
    """Seconds from the onset on over those of the optimum, for as many steps."""
    end, devices = CALM + 60 * MINUTES, world.costs.cluster.devices
    events = tuple(Event(CALM, f"n{n}/{d}", "sick", x) for (n, d), x in sorted(slow.items()))
    outcome = simulate(world, Trace(devices // ON_NODE, ON_NODE, end, 0, events), ())[0]
    steps = sum(t > CALM for t in outcome.ends)
    best = devices / (devices - sum(1 - 1 / x for x in slow.values()))
    over = (end - CALM) / (steps * world.healthy.seconds * best)
    return shown({"situation": name, "over_optimum": round(over, 4), "changes": outcome.changes})


def quiet(world: World, seed: int, hours: float) -> dict[str, Any]:
    """The false-positive set: nothing may be planned."""
    devices = world.costs.cluster.devices
    outcome = simulate(world, generate("quiet", devices // ON_NODE, ON_NODE, 3600 * hours, seed), ())[0]
    row = {"devices": devices, "seed": seed, "hours": hours, "steps": len(outcome.ends), "plans": outcome.plans}
    row |= {"rebalances": outcome.rebalances, "changes": outcome.changes}
    return shown({**row, "probe_seconds": round(outcome.seconds_lost.get("probes", 0.0), 1)})


def flapping(world: World, seed: int) -> dict[str, Any]:
    """Time for as many steps over that of the better of never and always acting."""
    trace = generate("flapping", world.costs.cluster.devices // ON_NODE, ON_NODE, 3600 * 2.2, seed)
    ours, never, always = simulate(world, trace, ("rigid", "always"))
    steps = {o.name: len(o.ends) for o in (ours, never, always)}
    over = max(steps["rigid"], steps["always"]) / steps["ours"]
    slow = max(e.magnitude for e in trace.events)
    return shown({"seed": seed, "slowdown": slow, "events": len(trace.events), **steps, "over_better": round(over, 4),
                  "changes": ours.changes, "always_changes": always.changes})  # fmt: skip


def trace(world: World, kind: str, hours: float, seed: int) -> dict[str, Any]:
    """Goodput of all."""
    devices = world.costs.cluster.devices
    drawn = generate(kind, devices // ON_NODE, ON_NODE, 3600 * hours, seed)
    outcomes = simulate(world, drawn, NAMES)
    found = report(world, drawn, outcomes)
    for run in found["runs"]:
        del run["curve"]
    goodput = {o.name: round(o.goodput, 4) for o in outcomes}
    return shown({"devices": devices, "trace": kind, "hours": hours, "seed": seed, "events": len(drawn.events),
                  "optimum": round(optimum(world, drawn), 4), **goodput, "runs": found["runs"]})  # fmt: skip


def figures(parts: list[str], sizes: list[int], kinds: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {part: [] for part in parts}
    for devices in sizes:
        world = world_for(devices)
        if "situations" in parts and devices == min(TRACES):
            found["situations"] = [situation(world, name, slow) for name, slow in SITUATIONS.items()]
            ratios = [row["over_optimum"] for row in found["situations"]]
            found |= {"mean": round(mean(ratios), 4), "worst": max(ratios)}
        if "flapping" in parts and devices == min(TRACES):
            found["flapping"] = [flapping(world, seed) for seed in range(3)]
        if "quiet" in parts:
            hours, seeds = QUIET[devices]
            found["quiet"] += [quiet(world, seed, hours) for seed in range(seeds)]
        if "traces" in parts:
            mine = {kind: hours for kind, hours in TRACES[devices].items() if kind in (kinds or TRACES[devices])}
            found["traces"] += [trace(world, kind, hours, 0) for kind, hours in mine.items()]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default="situations,flapping,quiet,traces")
    parser.add_argument("--devices", default=",".join(map(str, TRACES)))
    parser.add_argument("--kinds", default="", help="of traces; all, if left out")
    parser.add_argument("--output", type=Path, help="write the JSON here")
    parser.add_argument(
        "--write", action="store_true", help="keep the figures of a whole run in docs/results/simulate.json"
    )
    args = parser.parse_args()
    kinds = [kind for kind in args.kinds.split(",") if kind]
    found = figures(args.parts.split(","), [int(n) for n in args.devices.split(",")], kinds)
    print(json.dumps(found))
    if args.output:
        args.output.write_text(json.dumps(found) + "\n")
    if args.write:
        keep("simulate", "Ours and rivals on traces in virtual time", "make bench-simulate", found)


if __name__ == "__main__":
    main()
