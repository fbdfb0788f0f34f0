"""Replicas of uneven speeds: what slow ones cost in rings, and the same step with slow ones apart from their nodes."""

from __future__ import annotations

import dataclasses
from operator import itemgetter

import msgspec
import numpy as np
from numpy.typing import NDArray

from coxswain.cost.model import Floats
from coxswain.plan.problem import Problem

Ints = NDArray[np.int64]

APART = 0.96  # of the fastest replica of its node: a slower one leaves it
FEW = 0.25  # of all replicas may leave their nodes
CROSSING = 0.03  # of the work: about what links between nodes cost where a node would do
CROWDED = 0.06  # of the work: only a plan that loses more is worth a try with slow replicas first
GRID = 128  # speeds in one doubling between which plans distinguish
BROKEN = 0.1  # of a node's work: about what it costs that the node is smaller than others


def ways(problem: Problem) -> list[tuple[float, Problem]]:
    """The step on other nodes, with the part of the work that is about lost there by slow members; the least first.

    Last, where others hold the longest sequence: with a few slow replicas by themselves, as if these were idle.
    """
    found = [(slowed(problem), problem), (CROSSING, by_speed(problem)), (CROWDED, by_speed(problem, slow_first=True))]
    slow = np.flatnonzero(problem.speeds < APART * _fastest(problem, problem.speeds))
    if not 0 < slow.size <= FEW * problem.replicas:
        return sorted(found, key=itemgetter(0))
    broken = np.unique(problem.nodes[slow]).size / (int(problem.nodes.max()) + 1)
    few = _apart(problem, slow[np.argsort(-problem.speeds[slow], kind="stable")])
    found = sorted([*found, (slowed(few) + BROKEN * broken, few)], key=itemgetter(0))
    others = min(problem.max_degree, problem.replicas - slow.size)
    if int(problem.lengths.max(initial=0)) <= others * problem.capacity:
        found.append((float(problem.speeds[slow].sum() / problem.speeds.sum()), _by_themselves(problem, slow)))
    return found


def rounded(problem: Problem) -> Problem:
    """The step with speeds on a grid: the plan stays as it is while a measured speed wavers between two of them."""
    return dataclasses.replace(problem, speeds=np.exp2(np.round(np.log2(problem.speeds) * GRID) / GRID))


def slowed(problem: Problem) -> float:
    """Part of all work that is lost if every ring is as slow as the slowest replica of its node."""
    work = problem.cost.work_seconds(problem.lengths)
    rings = float(work[problem.lengths > problem.capacity].sum()) / max(float(work.sum()), 1e-12)
    slowest = -_fastest(problem, -problem.speeds)
    return rings * (1 - float(slowest.sum() / problem.speeds.sum()))


def by_speed(problem: Problem, *, slow_first: bool = False) -> Problem:
    """The same step as if replicas of like speeds shared a node, whose links are those between nodes.

    `slow_first`: rings that need slow replicas whichever they take leave the fast ones to others.
    """
    c, order = problem.cost.constants, np.argsort(problem.speeds if slow_first else -problem.speeds, kind="stable")
    nodes = np.empty_like(order)
    nodes[order] = np.arange(problem.replicas) // problem.node_size
    slow = msgspec.structs.replace(c, inside_node_gbps=c.between_nodes_gbps)
    return dataclasses.replace(problem, nodes=nodes, cost=dataclasses.replace(problem.cost, constants=slow))


def _by_themselves(problem: Problem, slow: Ints) -> Problem:
    """The same step as if these replicas were of a kind that shares no ring with others."""
    kinds = np.zeros_like(problem.kinds)
    kinds[slow] = 1
    return dataclasses.replace(problem, kinds=kinds)


def _apart(problem: Problem, slow: Ints) -> Problem:
    """The same step with these replicas on nodes of their own, in this order behind all others."""
    nodes = problem.nodes.copy()
    nodes[slow] = problem.nodes.max() + 1 + np.arange(slow.size) // problem.node_size
    nodes = np.unique(nodes, return_inverse=True)[1].reshape(-1)
    return dataclasses.replace(problem, nodes=nodes, node_size=int(np.bincount(nodes).max()))


def _fastest(problem: Problem, speeds: Floats) -> Floats:
    """Of each replica, the greatest of its node."""
    most = np.full(int(problem.nodes.max()) + 1, -np.inf)
    np.maximum.at(most, problem.nodes, speeds)
    found: Floats = most[problem.nodes]
    return found
