"""The bubble of plans of pipelines beside the ideal one and the bound, with random and length-sorted dispatch beside it.

    python bench/pipeline_plans.py [--replicas 32] [--stages 4,8] [--tasks 8,16,32,64] [--contexts 8,32,64,256]
        [--seeds 20] [--sets wikipedia,github,byted]

A step has `tasks` times the capacity of tokens a replica, so the ideal bubble of full packs is (p - 1) / (tasks + p - 1).
That of the longest task (`ideal_bubble_of`) is greater where one sequence takes longer than a full pack on all replicas.
The bubble is the idle share of all pipelines until the last one ends, by the walk of their operation lists. Random and
sorted dispatch give every replica as many tokens of packs, in random order or in runs of falling length, packed in that
order; rings have their least degree and go to the replicas with the fewest tokens. Prints lines of text, then one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from itertools import product
from statistics import median

import numpy as np
from numpy.typing import NDArray

from coxswain.cost import load_constants
from coxswain.cost.model import CostModel
from coxswain.plan.lengths import draw_lengths
from coxswain.plan.makespan.search import makespan
from coxswain.plan.pipelines.bound import ideal_bubble, ideal_bubble_of, pipeline_bound
from coxswain.plan.pipelines.dispatch import end_of
from coxswain.plan.planners import planner
from coxswain.plan.problem import Draft, Problem, make_problem
from coxswain.plan.simulate import simulate

K = 1024
CAPACITY = 8 * K


def in_order(problem: Problem, order: NDArray[np.int64]) -> list[Draft]:
    """Rings at their least degree on the replicas with the fewest tokens, then packs filled in this order."""
    tokens, drafts = np.zeros(problem.replicas), list[Draft]()
    long = problem.lengths[order] > problem.capacity
    for i in order[long].tolist():
        degree = -(-int(problem.lengths[i]) // problem.capacity)
        members = np.sort(np.argsort(tokens, kind="stable")[:degree])
        tokens[members] += problem.lengths[i] / degree
        drafts.append(Draft(tuple(members.tolist()), (i,)))
    packs = _packs(problem, order[~long])
    share = np.maximum(0, (tokens.sum() + problem.lengths[order[~long]].sum()) / problem.replicas - tokens)
    cuts = np.cumsum(share) / share.sum() * len(packs)
    replicas = np.searchsorted(cuts, np.arange(len(packs)), side="right")
    return drafts + [
        Draft((int(r),), tuple(p)) for r, p in zip(np.minimum(replicas, problem.replicas - 1), packs, strict=True)
    ]


def _packs(problem: Problem, order: NDArray[np.int64]) -> list[list[int]]:
    """Packs of at most the capacity: each is closed by the sequence that no longer fits."""
    packs, room = list[list[int]](), 0
    for i, length in zip(order.tolist(), problem.lengths[order].tolist(), strict=True):
        if length > room:
            packs.append([])
            room = problem.capacity
        packs[-1].append(i)
        room -= length
    return packs


def measure(problem: Problem, tasks: int, seed: int) -> dict[str, float]:
    """One step by every way to dispatch it."""
    stages, row = int(problem.stages.max()), {}
    bound = pipeline_bound(problem, [[1.0] * stages])
    begin = time.process_time()
    ours = planner("makespan")(problem)
    row["planner_seconds"] = time.process_time() - begin
    shuffled = np.random.default_rng(seed).permutation(problem.lengths.size)
    falling = np.argsort(-problem.lengths, kind="stable")
    ways = {
        "makespan": ours,
        "one stage": makespan(problem),
        "random": in_order(problem, shuffled),
        "sorted": in_order(problem, falling),
    }
    for name, drafts in ways.items():
        end, busy = end_of(problem, drafts), sum(simulate(problem, drafts).busy)
        bubble = 1 - busy / (problem.replicas * end)
        own = sum(len(d.members) for d in drafts) / problem.replicas
        row[f"{name}: bubble over ideal"] = bubble / ideal_bubble(stages, tasks)
        row[f"{name}: bubble over ideal of its own tasks"] = bubble / ideal_bubble(stages, own)
        row[f"{name}: bubble over ideal of the longest task"] = bubble / ideal_bubble_of(problem)
        row[f"{name}: end over bound"] = end / bound
    row["rings"] = sum(len(d.members) > 1 for d in ours)
    return row


def _ratios(found: dict[str, list[float]]) -> str:
    """Medians, and in brackets the worst: of the bubble over both ideals, and of the end over the bound."""
    texts = []
    for way in ("makespan", "one stage", "random", "sorted"):
        bubble, end = found[f"{way}: bubble over ideal"], found[f"{way}: end over bound"]
        longest = found[f"{way}: bubble over ideal of the longest task"]
        both = f"{bubble[0]:.2f} ({bubble[1]:.2f}), {longest[0]:.2f} ({longest[1]:.2f})"
        texts.append(f"{way} {both} end {end[0]:.2f} ({end[1]:.2f})")
    return "; ".join(texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", default="32")
    parser.add_argument("--stages", default="4,8")
    parser.add_argument("--tasks", default="8,16,32,64", help="full packs of tokens a replica")
    parser.add_argument("--contexts", default="8,32,64,256", help="in 1,024 tokens")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--sets", default="wikipedia,github,byted")
    args = parser.parse_args()
    axes = ([int(x) for x in each.split(",")] for each in (args.replicas, args.contexts, args.stages, args.tasks))
    results, cost = [], CostModel(load_constants("h100-80g"))
    for name, (replicas, context, stages, tasks) in product(args.sets.split(","), product(*axes)):
        if context * K > CAPACITY * replicas:
            continue
        rows = []
        for seed in range(args.seeds):
            lengths = draw_lengths(name, context=context * K, tokens=replicas * tasks * CAPACITY, seed=seed)
            problem = make_problem(
                lengths,
                replicas=replicas,
                capacity=CAPACITY,
                cost=cost,
                max_degree=replicas,
                node_size=8,
                stages=stages,
            )
            rows.append(measure(problem, tasks, seed))
        where = {"set": name, "replicas": replicas, "context": context * K, "stages": stages, "tasks": tasks}
        found = {key: [round(median(r[key] for r in rows), 4), round(max(r[key] for r in rows), 4)] for key in rows[0]}
        results.append({**where, **found})
        where_text = f"{name} N={replicas} {context}K p={stages} v={tasks}"
        print(f"{where_text}: {_ratios(found)}; {found['planner_seconds'][1]:.2f} s", file=sys.stderr, flush=True)
    print(json.dumps({"bench": "pipeline_plans", "seeds": args.seeds, "results": results}))


if __name__ == "__main__":
    main()
