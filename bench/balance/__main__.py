"""Step placement against its bound and its rivals: every target with what was found, on lengths like the literature's.

    python -m bench.balance [--seeds 20] [--slow-seeds 3] [--balances makespan,static] [--replicas 1024] [--jobs 2]
        [--write]

Prints one JSON object, then a line a target. Planners that solve an integer program run on short steps of 64 replicas
only. `--write` keeps the figures in docs/results/balance.json.
"""

from __future__ import annotations

import argparse
import json

from bench.balance.cases import cases
from bench.balance.sampling import Seeds, run
from bench.balance.targets import OURS, TARGETS, beside, judge
from bench.recorded import keep
from coxswain.plan import planners


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rival-seeds", type=int, default=20, help="of rivals that no target names")
    parser.add_argument("--slow-seeds", type=int, default=3, help="of planners that solve an integer program")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time, each in a process of its own")
    parser.add_argument("--balances", default=",".join(planners.BALANCES))
    parser.add_argument("--replicas", default="", help="such as 64,1024 [all]")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    balances = list(dict.fromkeys((OURS, *args.balances.split(","))))
    [planners.planner(balance) for balance in balances]
    wanted = {int(n) for n in args.replicas.split(",") if n}
    chosen = [case for case in cases() if not wanted or case.replicas in wanted]
    samples = list(run(chosen, balances, Seeds(args.seeds, args.rival_seeds, args.slow_seeds), args.jobs))
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


if __name__ == "__main__":
    main()
