"""Layouts of clusters with slow devices: steps beside the optimum, rivals and the exhaustive search; planning time; moves.

    python bench/layout.py [--seeds 20] [--devices 64,1024,4096] [--parts situations,random,small,moves] [--output FILE]

Situations are nodes of 8 devices with llama-70b, 64 sequences a step for 64 devices, and as many a device elsewhere. The
optimum is that of Malleus: the healthy step by our own search, times devices / (sum of 1 / slowdown). Seconds are CPU
seconds of one thread. Prints lines of text, then one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

from coxswain.config import ModelConfig
from coxswain.plan.layouts.cluster import Cluster, DeviceState, Node
from coxswain.plan.layouts.costs import Costs, shape_of
from coxswain.plan.layouts.exhaustive import exhaustive
from coxswain.plan.layouts.planner import healthy_plan, plan_layout
from coxswain.plan.layouts.rivals import RIVALS

WHOLE = range(8)
SITUATIONS = {
    "one 1.25": {(0, 0): 1.25},
    "one 2.57": {(0, 0): 2.57},
    "one 5.42": {(0, 0): 5.42},
    "one 12.53": {(0, 0): 12.53},
    "2.57 + 5.42, two nodes": {(0, 0): 2.57, (1, 0): 5.42},
    "2.57 + 3.8 + 5.42, three nodes": {(0, 0): 2.57, (1, 0): 3.8, (2, 0): 5.42},
    "node of 8 x 2.57": {(0, d): 2.57 for d in WHOLE},
    "node of 8 x 6.87 + 5.42 + 2.57, three nodes": {**{(0, d): 6.87 for d in WHOLE}, (1, 0): 5.42, (2, 0): 2.57},
    "node of 8 x 1.25": {(0, d): 1.25 for d in WHOLE},
}
SLOW = (1.1, 1.25, 2.57, 3.8, 5.42, 12.53)
SMALL = ModelConfig(layers=5, hidden=4096, heads=32, kv_heads=8, feed_forward=11008, vocabulary=32000)


def cluster_of(slow: dict[tuple[int, int], float], nodes: int = 8) -> Cluster:
    """Of nodes with 8 devices; `slow` by (node, device)."""
    found = [Node(f"n{n}", tuple(DeviceState(slow.get((n, d), 1.0)) for d in WHOLE)) for n in range(nodes)]
    return Cluster(nodes=tuple(found), global_batch=8 * nodes, sequence=4096)


def random_slow(nodes: int, seed: int) -> dict[tuple[int, int], float]:
    """One device of ten is slow."""
    random = Random(seed)
    return {(n, d): random.choice(SLOW) for n in range(nodes) for d in WHOLE if random.random() < 0.1}


def compared(name: str, slow: dict[tuple[int, int], float]) -> dict[str, Any]:
    """One situation: ours and every rival over the optimum."""
    costs = Costs(cluster_of(slow), shape_of("llama-70b"))
    healthy = healthy_plan(costs)
    optimum = healthy.seconds * costs.cluster.optimum_ratio
    begin = time.process_time()
    ours = plan_layout(costs).draft.seconds
    took = time.process_time() - begin
    drafts = {rival: function(costs, healthy) for rival, function in RIVALS.items()}
    return {
        "situation": name, "optimum": round(costs.cluster.optimum_ratio, 4), "ours": round(ours / optimum, 4),
        **{rival: draft and round(draft.seconds / optimum, 4) for rival, draft in drafts.items()}, "seconds": round(took, 3),
    }  # fmt: skip


def timed(devices: int, seeds: int) -> dict[str, Any]:
    """Planning with one device of ten slow."""
    took, ratios = [], []
    for seed in range(seeds):
        costs = Costs(cluster_of(random_slow(devices // 8, seed), devices // 8), shape_of("llama-70b"))
        begin = time.process_time()
        draft = plan_layout(costs).draft
        took.append(time.process_time() - begin)
        if not seed:
            healthy = healthy_plan(costs).seconds
        ratios.append(draft.seconds / (healthy * costs.cluster.optimum_ratio))
        print(
            f"{devices} devices, seed {seed}: {took[-1]:.2f} s, {ratios[-1]:.4f} x optimum", file=sys.stderr, flush=True
        )
    return {
        "devices": devices, "plans": seeds, "p99_seconds": round(max(took), 3), "mean_seconds": round(mean(took), 3),
        "mean": round(mean(ratios), 4), "worst": round(max(ratios), 4),
    }  # fmt: skip


def small_cases(seeds: int) -> Iterator[Costs]:
    """Clusters of four to six devices with a model of five layers; half of them short of memory."""
    for seed in range(seeds):
        random = Random(seed)
        sizes = random.choice([[4], [3, 2], [2, 2], [4, 1], [2, 1, 2], [3, 3]])
        rows = [[random.choice([1, 1, 1, 1, 1.25, 2.57, 5.42]) for _ in range(size)] for size in sizes]
        nodes = tuple(Node(f"n{n}", tuple(map(DeviceState, row))) for n, row in enumerate(rows))
        batch, tensor = random.randint(4, 12), random.choice([2, 4])
        costs = Costs(Cluster(nodes=nodes, global_batch=batch, sequence=4096, max_tensor=tensor), SMALL)
        if costs.limit and random.random() < 0.5:
            costs.limit = int(costs.limit * random.choice([0.3, 0.5]))
        yield costs


def small(seeds: int) -> dict[str, Any]:
    """Ours over the exhaustive optimum."""
    ratios = []
    for costs in small_cases(seeds):
        best = exhaustive(costs)
        if best:
            ratios.append(plan_layout(costs).draft.seconds / best.seconds)
    return {"cases": len(ratios), "mean": round(mean(ratios), 5), "worst": round(max(ratios), 5)}


def moved(name: str, slow: dict[tuple[int, int], float]) -> dict[str, Any]:
    """From the healthy layout to the planned one: bytes over the least, seconds over the bound."""
    costs = Costs(cluster_of(slow), shape_of("llama-70b"))
    healthy = healthy_plan(costs)
    begin = time.process_time()
    plan = plan_layout(costs, healthy)
    took, traffic = time.process_time() - begin, plan.traffic
    assert traffic
    return {
        "situation": name, "gigabytes": round(traffic.bytes / 1e9, 1), "seconds": round(traffic.seconds, 3),
        "bytes_over_least": round(traffic.bytes / max(1, traffic.least_bytes), 4),
        "seconds_over_bound": round(traffic.seconds / traffic.bound_seconds, 4) if traffic.bytes else 1.0,
        "planning_seconds": round(took, 3),
    }  # fmt: skip


def shown(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for row in rows:
        print(", ".join(f"{key} {value}" for key, value in row.items()), file=sys.stderr, flush=True)
    return rows


def figures(parts: list[str], seeds: int, devices: list[int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "situations" in parts:
        found["situations"] = shown([compared(name, slow) for name, slow in SITUATIONS.items()])
        ratios = [row["ours"] for row in found["situations"]]
        found["mean"], found["worst"] = round(mean(ratios), 4), max(ratios)
    if "random" in parts:
        found["random"] = shown([compared(f"random {seed}", random_slow(8, seed)) for seed in range(seeds)])
    if "small" in parts:
        found["small"] = shown([small(3 * seeds)])[0]
    if "moves" in parts:
        found["moves"] = shown([moved(name, slow) for name, slow in SITUATIONS.items()])
    found["times"] = shown([timed(n, 5 * seeds if n < 256 else seeds) for n in devices])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--devices", default="64,1024,4096")
    parser.add_argument("--parts", default="situations,random,small,moves")
    parser.add_argument("--output", type=Path, help="write the JSON here")
    args = parser.parse_args()
    devices = [int(n) for n in args.devices.split(",") if n]
    text = json.dumps(figures(args.parts.split(","), args.seeds, devices))
    print(text)
    if args.output:
        args.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
