"""Our search beside FlexSP's own MILP, on FlexSP's cost model and rules: 64 A100s of 28 GB, 512 sequences.

    python bench/flexsp.py --seeds 20 [--limit 10] [--sets wikipedia,github]

Both plan the same step with aligned groups of a power of two of devices that hold their tokens. FlexSP's plan takes the
sum over its micro-batches of the longest group, since all groups meet after each; each of its programs may take
`--limit` seconds, as in its code. Ours has no micro-batches; it takes as long as the device that ends last.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from coxswain.plan.lengths import draw_lengths
from coxswain.plan.makespan.groups import GroupTask, Rules, fill_groups
from coxswain.plan.rivals.flexsp import plan
from coxswain.plan.rivals.milp import Budget

DEVICES, SEQUENCES, CONTEXT = 64, 512, 192_000
HIDDEN, LAYERS = 4096, 32
# GPT-7B on A100-40G, from FlexSP's code (AFDWang/Hetu-Galvatron, branch flexsp, flexsp_solver/solver.py).
SQUARE_MS, TOKEN_MS, GROUP_MS = 5.128e-6, 183.9576e-3, 629.3563
STATES_MB, TOKEN_MB, MEMORY_MB = 7.1174 * 16 / DEVICES * 1024, 4.480441895, 28 * 1024
ALL_TO_ALL = {1: 1e10, 2: 119.54, 4: 104.07, 8: 96.5, 16: 10.33, 32: 5.94, 64: 4.87}  # MB per ms
LOOKS = 1 << 30


def a100() -> Rules:
    """FlexSP's cost model in seconds, and its degrees (its code leaves degree 1 out)."""

    def seconds(lengths: NDArray[np.float64], degree: int) -> NDArray[np.float64]:
        sent = 4 * 2 * LAYERS * HIDDEN * 2 / 2**20 * lengths / degree
        compute = (SQUARE_MS * lengths**2 + TOKEN_MS * lengths) / degree
        return (compute + sent / ALL_TO_ALL[degree]) * 1e-3

    capacity = int((MEMORY_MB - STATES_MB) / TOKEN_MB)
    return Rules(DEVICES, capacity, (1, 2, 4, 8, 16, 32, 64), seconds, GROUP_MS * 1e-3)


def step(name: str, seed: int) -> list[int]:
    """The lengths of one step of FlexSP's size."""
    drawn = draw_lengths(name, context=CONTEXT, tokens=1 << 23, seed=seed)
    return [int(s) for s in drawn[:SEQUENCES]]


def ends(rules: Rules, lengths: list[int], tasks: list[GroupTask]) -> float:
    """Returns when the last device is done; a task starts when all its devices are free."""
    free = [0.0] * rules.replicas
    for first, degree, sequences in tasks:
        assert sum(lengths[i] for i in sequences) <= degree * rules.capacity and first % degree == 0
        took = rules.time((degree, sequences), lengths)
        free[first : first + degree] = [max(free[first : first + degree]) + took] * degree
    return max(free)


@dataclass(frozen=True)
class Result:
    """One step: seconds of both plans, of the bound, and of both planners (CPU seconds of ours)."""

    lengths: str
    seed: int
    bound: float
    ours: float
    theirs: float
    our_planner: float
    their_planner: float


def compare(name: str, seed: int, limit: float) -> Result:
    rules, lengths = a100(), step(name, seed)
    begin = time.thread_time()
    tasks = fill_groups(rules, lengths)
    ours_took, middle = time.thread_time() - begin, time.perf_counter()
    waves = plan(rules, lengths, Budget(1 << 30, LOOKS, limit))
    end = time.perf_counter()
    theirs = sum(max(rules.time(group, lengths) for group in groups) for groups in waves)
    ours = ends(rules, lengths, tasks)
    return Result(name, seed, rules.bound(lengths), ours, theirs, ours_took, end - middle)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--limit", type=float, default=10.0, help="seconds of one program of FlexSP")
    parser.add_argument("--sets", default="wikipedia,github")
    options = parser.parse_args()
    found = []
    for name in options.sets.split(","):
        for seed in range(options.seeds):
            found.append(compare(name, seed, options.limit))
            print(json.dumps(asdict(found[-1])), flush=True)
    ratios = [r.ours / r.theirs for r in found]
    print(
        f"ours / FlexSP: median {statistics.median(ratios):.3f}, worst {max(ratios):.3f}; "
        f"planner {1e3 * statistics.median(r.our_planner for r in found):.1f} ms, "
        f"FlexSP {statistics.median(r.their_planner for r in found):.1f} s"
    )


if __name__ == "__main__":
    main()
