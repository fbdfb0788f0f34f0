"""Step placement against its lower bound and its rivals, on length sets of the literature.

    python bench/plan_step.py [--replicas 64,256,1024] [--seeds 20] [--balances makespan,static,naive] [--sets byted]

Prints one JSON object, then one line of text per set.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from statistics import median

import numpy as np
from numpy.typing import NDArray

from coxswain.cost import load_constants
from coxswain.cost.model import CostModel
from coxswain.plan.lengths import draw_lengths
from coxswain.plan.planners import plan, planner
from coxswain.plan.problem import Draft, make_problem
from coxswain.plan.simulate import drafts_of, ring_bytes, simulate

K = 1024
CAPACITY = 8 * K
SETS = (
    *((name, context) for name in ("wikipedia", "github", "byted") for context in (256 * K, K * K, 2 * K * K)),
    *(("long", rings) for rings in (2, 4, 8)),  # uniform up to 8 x the capacity: so many rings a replica
    *(("video", context) for context in (64 * K, 128 * K)),
    *(("documents", context) for context in (128 * K, 512 * K)),
    *(("huge", context) for context in (512 * K, 2 * K * K)),
)
TOKENS_PER_REPLICA = 32 * K  # 32M tokens at 1,024 replicas; other numbers scale the tokens


def lengths_of(name: str, context: int, replicas: int, seed: int) -> NDArray[np.int64]:
    """A step's lengths. Of "long", nearly all exceed the capacity, and each replica is in `context` rings of least degree."""
    if name != "long":
        return draw_lengths(name, context=context, tokens=TOKENS_PER_REPLICA * replicas, seed=seed)
    drawn = np.random.default_rng(seed).integers(1, 8 * CAPACITY + 1, size=replicas * context)
    members = np.cumsum(-(-drawn // CAPACITY))
    return drawn[: int(np.searchsorted(members, replicas * context)) + 1]


def measure(
    name: str, context: int, replicas: int, seed: int, balances: list[str], slow: float, spread: float
) -> dict[str, float]:
    """One step planned by every balance."""
    lengths = lengths_of(name, context, replicas, seed)
    speeds = None if slow == 1 else [1 / slow] + [1.0] * (replicas - 1)
    if spread:
        speeds = np.random.default_rng(seed + 99).uniform(1 - spread, 1, replicas).tolist()
    given = {
        "replicas": replicas, "capacity": CAPACITY, "cost": CostModel(load_constants("h100-80g")), "speeds": speeds,
        "max_degree": replicas, "node_size": 8,
    }  # fmt: skip
    problem, row = make_problem(lengths, **given), {}
    for balance in balances:
        begin = time.process_time()  # of one thread; other work on the machine does not count
        placement = plan(balance, lengths, **given)
        row[f"{balance}_planner_seconds"] = time.process_time() - begin
        row[balance] = simulate(problem, drafts_of(placement)).makespan
        row[f"{balance}_over_bound"] = row[balance] / placement.lower_bound_seconds
        row[f"{balance}_bytes_between"] = ring_bytes(problem, drafts_of(placement))[1]
        row[f"{balance}_idle"] = placement.idle_fraction
        row[f"{balance}_peers"] = most_peers(replicas, drafts_of(placement))
    return row


def most_peers(replicas: int, drafts: list[Draft]) -> int:
    """The most others that a replica meets in the rings of a step."""
    peers = [set[int]() for _ in range(replicas)]
    for draft in drafts:
        for one, two in zip(draft.members, (*draft.members[1:], draft.members[0]), strict=True):
            peers[one] |= {two} - {one}
            peers[two] |= {one} - {two}
    return max(map(len, peers))


def summarise(rows: list[dict[str, float]], balances: list[str]) -> dict[str, float]:
    ours = balances[0]
    out = {
        "over_bound_median": median(r[f"{ours}_over_bound"] for r in rows),
        "over_bound_worst": max(r[f"{ours}_over_bound"] for r in rows),
        "peers_worst": max(r[f"{ours}_peers"] for r in rows),
        "idle_median": median(r[f"{ours}_idle"] for r in rows),
        "planner_median_cpu_seconds": median(r[f"{ours}_planner_seconds"] for r in rows),
        "planner_p95_cpu_seconds": float(np.percentile([r[f"{ours}_planner_seconds"] for r in rows], 95)),
    }
    for rival in balances[1:]:
        out[f"{rival}_over_{ours}"] = median(r[rival] / r[ours] for r in rows)
        out[f"bytes_between_over_{rival}"] = median(
            r[f"{ours}_bytes_between"] / max(1.0, r[f"{rival}_bytes_between"]) for r in rows
        )
    return {k: round(v, 4) for k, v in out.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", default="64,256,1024")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--balances", default="makespan,static,naive")
    parser.add_argument("--sets", default="wikipedia,github,byted,long,video,documents,huge")
    parser.add_argument("--slow", type=float, default=1.0, help="replica 0 is this many times slower")
    parser.add_argument("--spread", type=float, default=0.0, help="all speeds are drawn between 1 - this and 1")
    args = parser.parse_args()
    balances = args.balances.split(",")
    [planner(b) for b in balances]
    results = []
    for replicas in map(int, args.replicas.split(",")):
        for name, context in SETS:
            if name not in args.sets.split(",") or context > CAPACITY * replicas:
                continue  # not asked for, or longer than all replicas can hold
            rows = [
                measure(name, context, replicas, seed, balances, args.slow, args.spread) for seed in range(args.seeds)
            ]
            results.append({"replicas": replicas, "set": name, "context": context, **summarise(rows, balances)})
            text = ", ".join(f"{k} {v}" for k, v in list(results[-1].items())[3:])
            size = f"{context // K}K" if context >= K else f"{context} rings"
            print(f"N={replicas} {name} {size}: {text}", file=sys.stderr, flush=True)
    print(
        json.dumps(
            {"bench": "plan_step", "seeds": args.seeds, "slow": args.slow, "spread": args.spread, "results": results}
        )
    )


if __name__ == "__main__":
    main()
