"""Replicas of uneven speeds: what slow ones cost in rings, and the same step with slow ones apart from their nodes."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np

from coxswain.cost.model import Floats
from coxswain.plan.problem import Problem

APART = 0.96  # of the fastest replica of its node: a slower one leaves it
FEW = 0.25  # of all replicas may leave their nodes
CROSSING = 0.03  # of the work: about what links between nodes cost where a node would do


def ways(problem: Problem) -> list[Problem]:
    """The step on other nodes, the one whose rings lose least by slow members first; last as if no speeds were known."""
    others = [(slowed(problem), problem), (CROSSING, by_speed(problem))]
    if (few := apart(problem)) is not None:
        others.append((slowed(few), few))
    flat = dataclasses.replace(problem, speeds=np.ones(problem.replicas))
    return [way for _, way in sorted(others, key=lambda each: each[0])] + [flat]


def slowed(problem: Problem) -> float:
    """Part of all work that is lost if every ring is as slow as the slowest replica of its node."""
    work = problem.cost.work_seconds(problem.lengths)
    rings = float(work[problem.lengths > problem.capacity].sum()) / max(float(work.sum()), 1e-12)
    slowest = -_fastest(problem, -problem.speeds)
    return rings * (1 - float(slowest.sum() / problem.speeds.sum()))


def by_speed(problem: Problem) -> Problem:
    """The same step as if replicas of like speeds shared a node, whose links are those between nodes."""
    c, order = problem.cost.constants, np.argsort(-problem.speeds, kind="stable")
    nodes = np.empty_like(order)
    nodes[order] = np.arange(problem.replicas) // problem.node_size
    slow = msgspec.structs.replace(c, inside_node_gbps=c.between_nodes_gbps)
    return dataclasses.replace(problem, nodes=nodes, cost=dataclasses.replace(problem.cost, constants=slow))


def apart(problem: Problem) -> Problem | None:
    """The same step with slow replicas, which are few, on nodes of their own behind all others; None without such ones."""
    slow = np.flatnonzero(problem.speeds < APART * _fastest(problem, problem.speeds))
    if not 0 < slow.size <= FEW * problem.replicas:
        return None
    nodes = problem.nodes.copy()
    order = slow[np.argsort(-problem.speeds[slow], kind="stable")]
    nodes[order] = problem.nodes.max() + 1 + np.arange(slow.size) // problem.node_size
    nodes = np.unique(nodes, return_inverse=True)[1].reshape(-1)
    return dataclasses.replace(problem, nodes=nodes, node_size=int(np.bincount(nodes).max()))


def _fastest(problem: Problem, speeds: Floats) -> Floats:
    """Of each replica, the greatest of its node."""
    most = np.full(int(problem.nodes.max()) + 1, -np.inf)
    np.maximum.at(most, problem.nodes, speeds)
    found: Floats = most[problem.nodes]
    return found
