"""Step placement against its bound and its rivals: every target with what was found, on lengths like the literature's.

    python -m bench.balance [--seeds 20] [--slow-seeds 3] [--balances makespan,static] [--replicas 1024] [--write]

Prints one JSON object, then a line a target. Planners that solve an integer program run on short steps of 64 replicas
only. `--write` keeps the figures in docs/results/balance.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence

from bench.balance.cases import FEW, LARGEST, Case, cases
from bench.balance.measure import Sample, measure
from bench.balance.targets import OURS, TARGETS, beside, judge
from bench.recorded import keep
from coxswain.plan import planners

SLOW: frozenset[str] = getattr(planners, "SLOW", frozenset())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--slow-seeds", type=int, default=3, help="seeds of planners that solve an integer program")
    parser.add_argument("--balances", default=",".join(planners.BALANCES))
    parser.add_argument("--replicas", default="", help="such as 64,1024 [all]")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    balances = list(dict.fromkeys((OURS, *args.balances.split(","))))
    [planners.planner(balance) for balance in balances]
    wanted = {int(n) for n in args.replicas.split(",") if n}
    chosen = [case for case in cases() if not wanted or case.replicas in wanted]
    samples = list(run(chosen, balances, args.seeds, args.slow_seeds))
    figures = {
        "seeds": args.seeds,
        "targets": [r.as_json() for r in judge(TARGETS, samples)],
        "balances": beside(samples),
    }
    print(json.dumps({"bench": "balance", **figures}))
    for row in figures["targets"]:
        mark = "reached" if row["reached"] else "NOT reached"
        print(f"{row['what']}: {row['median']:.3f} (worst {row['worst']:.3f}; {row['limit']}): {mark}; {row['where']}")
    if args.write:
        keep("balance", "Step placement beside its rivals", "make bench-balance", figures)


def run(chosen: Sequence[Case], balances: Sequence[str], seeds: int, slow_seeds: int) -> Iterator[Sample]:
    for case in chosen:
        for seed in range(seeds):
            yield measure(case, seed, list(planners_of(case, balances, seed < slow_seeds)))
        print(case.name, file=sys.stderr, flush=True)


def planners_of(case: Case, balances: Sequence[str], slow: bool) -> Iterator[str]:
    """Ours alone on the largest steps and with unequal speeds, which no target compares."""
    for balance in balances:
        compared = case.replicas < LARGEST and case.speeds == "equal"
        if balance == OURS or (compared and (balance not in SLOW or (slow and case.tokens == FEW))):
            yield balance


if __name__ == "__main__":
    main()
