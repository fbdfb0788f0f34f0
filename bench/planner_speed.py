"""CPU time and memory of every planner on steps of every family, one thread.

    python -m bench.planner_speed [--seeds 20] [--replicas 64,1024] [--balances makespan] [--deadline 300] [--write]

Each planner plans the steps of one number of replicas in a process of its own, so that peak memory is its own. Prints
one JSON object, then a line a process. Planners that solve an integer program run on short steps of 64
replicas only.
`--write` keeps the figures in docs/results/planner-speed.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bench.balance.cases import CAPACITY, FEW, LARGEST, TOKENS, Case, K
from bench.balance.measure import measure
from bench.recorded import ROOT, keep
from coxswain.plan.lengths import FAMILIES
from coxswain.plan.planners import BALANCES, SLOW

SIZES = (64, 256, K, LARGEST)
MIB = 1024  # KiB


def families(replicas: int, slow: bool = False) -> Iterator[Case]:
    """A case a family: contexts of up to 2M tokens, of 64K where all sequences grow with the context."""
    tokens = FEW if slow else 256 * K * K // LARGEST if replicas == LARGEST else TOKENS
    for family in FAMILIES:
        grows = family in ("uniform", "video", "documents")
        yield Case(family, 8 * CAPACITY if grows else min(2 * K * K, CAPACITY * replicas // 2), replicas, tokens)


def plan_all(balance: str, replicas: int, seeds: int) -> dict[str, Any]:
    """CPU seconds by family, and the process' peak memory in MiB; for a process of its own."""
    measure(Case("byted", 64 * K, 8), 0, [balance])  # loads what the planner imports
    chosen = list(families(replicas, balance in SLOW))
    seconds: dict[str, list[float]] = {case.family: [] for case in chosen}
    for case in chosen:
        for seed in range(seeds):
            found = measure(case, seed, [balance]).balances
            seconds[case.family] += [found[balance].cpu] if balance in found else []
    return {"seconds": seconds, "peak": peak()}


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // MIB


def in_a_process(balance: str, replicas: int, seeds: int, deadline: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.planner_speed", "--one", f"{balance},{replicas}", "--seeds", str(seeds)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    row: dict[str, Any] = {"balance": balance, "replicas": replicas, "seeds": seeds, "short": balance in SLOW}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, check=True, timeout=deadline, stdout=subprocess.PIPE, text=True
        )
    except subprocess.TimeoutExpired:
        return {**row, "beyond_seconds": deadline}
    return {**row, **summary(json.loads(done.stdout))}


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """Percentiles over all steps, of the slowest family by itself, and (p50, p95) of each."""
    by_family = {family: seconds for family, seconds in found["seconds"].items() if seconds}
    slowest = max(by_family, key=lambda family: percentile(by_family[family], 95))
    every = [s for seconds in by_family.values() for s in seconds]
    return {
        "p50_ms": round(1000 * percentile(every, 50), 2), "p95_ms": round(1000 * percentile(every, 95), 2),
        "slowest_family": slowest, "slowest_p50_ms": round(1000 * percentile(by_family[slowest], 50), 2),
        "slowest_p95_ms": round(1000 * percentile(by_family[slowest], 95), 2), "peak_mib": found["peak"],
        "families_ms": {f: [round(1000 * percentile(s, at), 2) for at in (50, 95)] for f, s in by_family.items()},
    }  # fmt: skip


def percentile(values: Sequence[float], at: float) -> float:
    return float(np.percentile(values, at))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--replicas", default=",".join(map(str, SIZES)))
    parser.add_argument("--balances", default=",".join(BALANCES))
    parser.add_argument("--deadline", type=float, default=300.0, help="seconds of one process; beyond it no figures")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--one", default="", help="BALANCE,REPLICAS: measure in this process, print JSON")
    args = parser.parse_args()
    if args.one:
        balance, _, replicas = args.one.partition(",")
        print(json.dumps(plan_all(balance, int(replicas), args.seeds)))
        return
    rows = list(_rows(args))
    print(json.dumps({"bench": "planner_speed", "rows": rows}))
    for row in rows:
        print(", ".join(f"{key} {value}" for key, value in row.items()))
    if args.write:
        keep("planner-speed", "CPU time of planning one step", "make bench-planners", {"rows": rows})


def _rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for replicas in map(int, args.replicas.split(",")):
        for balance in args.balances.split(","):
            if balance in SLOW and replicas > 64:
                continue
            row = in_a_process(balance, replicas, seeds_of(balance, replicas, args.seeds), args.deadline)
            print(row, file=sys.stderr, flush=True)
            yield row


def seeds_of(balance: str, replicas: int, seeds: int) -> int:
    """Fewer where one step takes seconds."""
    return min(seeds, 2 if balance in SLOW else 5 if replicas == LARGEST else seeds)


if __name__ == "__main__":
    main()
