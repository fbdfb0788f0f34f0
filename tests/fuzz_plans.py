"""Plans fuzzed problems by every balance and keeps what the validator and the bounds say of the plans.

    python -m tests.fuzz_plans --log FILE [--first 0] [--last 100000] [--balances makespan,kk] [--pipelines 0.25]

Every 500 seeds of a balance add a line of JSON to the log. The same command goes on behind those that the log has of this
commit and this share of pipelines. Prints a line a balance, then every fault; the exit code is 1 if there is one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from coxswain.errors import Refused
from coxswain.plan.planners import BALANCES, planner
from tests.fuzzed_problems import fuzzed_problem

CHUNK = 500  # seeds
ALWAYS = {"makespan", "naive", "bytescale"}  # plan whatever fits; the others need a mesh or powers of two
REFUSED = "refused"
Line = dict[str, Any]


def outcome(balance: str, seed: int, pipelines: float) -> str:
    """The plan's first fault, "" where it has none, REFUSED where the rival's groups cannot hold a sequence and it says so."""
    try:
        return next(iter(fuzzed_problem(seed, pipelines=pipelines).faults(balance, planner(balance))), "")
    except Refused as refused:
        named = refused.reason == "CapacityLost" and "maxDegree" in str(refused)
        return REFUSED if named and balance not in ALWAYS else str(refused)


def planned(balance: str, seeds: range, pipelines: float) -> Line:
    """How many of these seeds are refused, and what is wrong with the others."""
    found = [(seed, outcome(balance, seed, pipelines)) for seed in seeds]
    faults = [(seed, said) for seed, said in found if said not in ("", REFUSED)]
    return {"refused": sum(said == REFUSED for _, said in found), "faults": faults}


def lines(log: Path, commit: str, balances: Sequence[str], seeds: range, pipelines: float) -> Iterator[Line]:
    """Adds the lines that the log lacks; yields all that were asked for."""
    known = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    for first, balance in product(range(seeds.start, seeds.stop, CHUNK), balances):
        name = {"commit": commit, "pipelines": pipelines, "balance": balance, "first": first}
        name["last"] = min(first + CHUNK, seeds.stop)
        line = next((line for line in known if name.items() <= line.items()), None)
        if line is None:
            line = {**name, **planned(balance, range(first, name["last"]), pipelines)}
            with log.open("a") as file:
                file.write(json.dumps(line) + "\n")
        yield line


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--last", type=int, default=100_000, help="behind the last seed")
    parser.add_argument("--balances", default=",".join(BALANCES))
    parser.add_argument(
        "--pipelines", type=float, default=0.25, help="share of problems with replicas of several stages"
    )
    args = parser.parse_args()
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], text=True).strip()
    balances, seeds = args.balances.split(","), range(args.first, args.last)
    found = list(lines(args.log, commit, balances, seeds, args.pipelines))
    for balance in balances:
        refused = sum(line["refused"] for line in found if line["balance"] == balance)
        print(f"{balance}: seeds {seeds.start} to {seeds.stop - 1}, {len(seeds) - refused} planned, {refused} refused")
    faults = [(line["balance"], *fault) for line in found for fault in line["faults"]]
    print(*(f"{balance}, seed {seed}: {said}" for balance, seed, said in faults), f"{len(faults)} faults", sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
