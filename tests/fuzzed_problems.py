"""Steps to be planned, drawn at random: replicas may differ in kind, capacity, speed, node and stages.

The same seed gives the same problem. Every one can be planned: its longest sequence fits.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from msgspec.structs import replace

from coxswain.cost import Constants, load_constants
from coxswain.cost.model import CostModel
from coxswain.layout import Device, Layout, Replica, Stage
from coxswain.plan.assemble import assemble
from coxswain.plan.pipelines.bound import pipeline_bound
from coxswain.plan.pipelines.operations import is_flat, operations, ordered, shares_of
from coxswain.plan.problem import Planner, Problem, make_problem
from coxswain.plan.validator import validate

COSTS = (
    load_constants("h100-80g"),
    load_constants("cpu"),
    Constants(  # links so slow that wide rings do not pay
        linear_us_per_token=50, attention_ns_per_token2=2, kv_bytes_per_token=4e5, inside_node_gbps=3,
        between_nodes_gbps=0.5, task_ms=0,
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FuzzedProblem:
    """A problem, and a layout with the same kinds of replicas."""

    problem: Problem
    layout: Layout

    def faults(self, balance: str, planner: Planner) -> list[str]:
        """What the validator finds in the planner's plan, and a time below its bound: of one stage, and of all stages."""
        problem = self.problem
        placement = assemble(problem, balance, planner(problem))
        ends = [(placement.makespan_seconds, placement.lower_bound_seconds)]
        if is_flat(self.layout):
            lists = operations(self.layout, placement.tasks)
        else:
            stages = ordered(self.layout, placement.tasks)
            lists = stages.operations
            ends.append((stages.seconds, pipeline_bound(problem, shares_of(self.layout, 0.0))))
        found = validate(
            replace(placement, operations=lists), problem.lengths.tolist(), self.layout, problem.capacities.tolist(),
            problem.max_degree,
        )  # fmt: skip
        return found + [f"the end {end} is below the bound {bound}" for end, bound in ends if end < bound * (1 - 1e-9)]


def fuzzed_problem(seed: int, replicas: int = 12, pipelines: float = 0.0) -> FuzzedProblem:
    """Draws a step for up to `replicas` replicas; `pipelines`: how often replicas may have two to four stages."""
    rng = random.Random(seed)
    count = rng.randint(1, replicas)
    deep, most = rng.random() < pipelines, rng.choice((1, 1, 2, 3))
    kinds = [rng.randrange(most) for _ in range(count)]
    room = [int(2 ** rng.uniform(0, 13)) for _ in range(most)]
    if rng.random() < 0.5:
        room = [room[0]] * most
    capacities = [room[kind] for kind in kinds]
    stages = _stages(seed, most) if deep else [1] * most
    degree = rng.choice((count, rng.randint(1, count)))
    longest = max(room[k] * min(degree, kinds.count(k)) for k in set(kinds))
    problem = make_problem(
        _lengths(rng, rng.choice(capacities), longest),
        replicas=count,
        capacity=capacities,
        cost=CostModel(rng.choice(COSTS)),
        speeds=_with_stragglers(_speeds(rng, count), count, seed),
        max_degree=degree,
        kinds=kinds,
        nodes=_nodes(rng, count),
        layout=_layout(kinds, stages),
    )
    return FuzzedProblem(problem, _layout(kinds, stages))


def _lengths(rng: random.Random, capacity: int, longest: int) -> list[int]:
    draw = rng.choice(
        (
            lambda: rng.randint(1, longest),
            lambda: rng.randint(1, min(capacity, longest)),
            lambda: rng.choice((1, min(capacity, longest), longest)),
            lambda: min(longest, int(capacity * rng.paretovariate(1)) + 1),
            lambda: rng.choice((rng.randint(1, min(capacity, longest)), rng.randint(1, longest))),
        )
    )
    return [draw() for _ in range(rng.choice((rng.randint(0, 6), rng.randint(0, 30))))]


def _speeds(rng: random.Random, count: int) -> list[float] | None:
    draw = rng.choice(
        (None, lambda: rng.uniform(0.7, 1), lambda: rng.choice((1.0, 1.0, 1 / 1.3)), lambda: rng.uniform(0.1, 3))
    )
    return None if draw is None else [draw() for _ in range(count)]


def _with_stragglers(speeds: list[float] | None, count: int, seed: int) -> list[float] | None:
    """In one of seven steps, some replicas are throttled or hang besides. All else of the step stays as it was."""
    if seed % 7 != 1:
        return speeds
    rng = random.Random(f"stragglers {seed}")
    slow = rng.choice((1 / 4, 1e-3, 1e-6))
    return [v * (slow if rng.random() < 0.3 else 1) for v in speeds or [1.0] * count]


def _nodes(rng: random.Random, count: int) -> list[int]:
    """Nodes of one size with a rest, of any sizes, or scattered over the replicas."""
    size = rng.randint(1, 5)
    nodes = [r // size for r in range(count)]
    if rng.random() < 0.5:
        nodes = sorted(rng.randrange(count) for _ in range(count))
    if rng.random() < 0.2:
        rng.shuffle(nodes)
    return nodes


def _stages(seed: int, kinds: int) -> list[int]:
    """Of each kind; two at least of the first one."""
    rng = random.Random(f"stages {seed}")
    return [rng.randint(1 + (kind == 0), 4) for kind in range(kinds)]


def _layout(kinds: list[int], stages: list[int]) -> Layout:
    """Kind k has k + 1 devices in the tensor group of each stage."""
    return Layout(tuple(_replica(r, kind + 1, stages[kind]) for r, kind in enumerate(kinds)))


def _replica(number: int, tensor: int, stages: int) -> Replica:
    cuts = [12 * s // stages for s in range(stages + 1)]
    groups = [tuple(Device(number, s * tensor + d) for d in range(tensor)) for s in range(stages)]
    return Replica(tuple(Stage(groups[s], cuts[s], cuts[s + 1]) for s in range(stages)))
