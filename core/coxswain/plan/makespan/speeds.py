"""Replicas of uneven speeds: what slow ones cost in rings, and the step with replicas of like speeds side by side."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np

from coxswain.plan.problem import Problem


def slowed(problem: Problem) -> float:
    """Part of all work that is lost if every ring is as slow as the slowest replica of its node."""
    slowest = np.full(int(problem.nodes.max()) + 1, np.inf)
    np.minimum.at(slowest, problem.nodes, problem.speeds)
    work = problem.cost.work_seconds(problem.lengths)
    rings = float(work[problem.lengths > problem.capacity].sum()) / max(float(work.sum()), 1e-12)
    return rings * (1 - float(slowest[problem.nodes].sum() / problem.speeds.sum()))


def by_speed(problem: Problem) -> Problem:
    """The same step as if replicas of like speeds shared a node, whose links are those between nodes."""
    c, order = problem.cost.constants, np.argsort(-problem.speeds, kind="stable")
    nodes = np.empty_like(order)
    nodes[order] = np.arange(problem.replicas) // problem.node_size
    slow = msgspec.structs.replace(c, inside_node_gbps=c.between_nodes_gbps)
    return dataclasses.replace(problem, nodes=nodes, cost=dataclasses.replace(problem.cost, constants=slow))
