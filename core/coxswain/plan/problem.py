"""A planner's input and output, before slices are cut and times are added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from coxswain.cost.model import CostModel
from coxswain.errors import Refused
from coxswain.layout import Layout, pipelines_of

MOST_REPLICAS = 100_000
MOST_TOKENS = 1_000_000_000  # of one sequence, and of one task
SLOWEST, FASTEST = 1e-12, 1e12  # times the cost model: beyond, seconds of a step have no numbers


@dataclass(frozen=True, slots=True)
class Problem:
    """One step to be placed.

    Speed 1 is the cost model's. Only replicas of one kind share a ring; they have equal capacities. Members of one node
    exchange keys and values over its inner links, all others over the network.
    """

    lengths: NDArray[np.int64]
    replicas: int
    capacities: NDArray[np.int64]  # tokens of a task, per replica
    cost: CostModel
    speeds: NDArray[np.float64]
    max_degree: int
    node_size: int  # replicas of the largest node
    kinds: NDArray[np.int64]
    nodes: NDArray[np.int64]  # node of each replica, 0, 1, ...; a node's replicas need not be neighbours
    layout: Layout  # stages of each replica, their layers and devices
    loss: float  # what a replica's last stage does besides its layers, in layers
    stages: NDArray[np.int64]  # pipeline stages of each replica

    @property
    def capacity(self) -> int:
        """The tokens that one replica holds in a task; the most, where kinds differ."""
        return int(self.capacities.max())

    def inside_node(self, members: Sequence[int]) -> bool:
        nodes = self.nodes[[*members]]
        return bool((nodes == nodes[0]).all())

    def lower_bound(self) -> float:
        return self.cost.lower_bound(self.lengths, self.speeds, self.capacity, self.max_degree, self.node_size)


class Draft(NamedTuple):
    """A task without slices: members in ring order (one: a pack), its sequences, and its wave (see `Task`)."""

    members: tuple[int, ...]
    sequences: tuple[int, ...]
    wave: int = 0


class Planner(Protocol):
    """Puts every sequence into one task; the drafts' order is the step's global order."""

    def __call__(self, problem: Problem) -> list[Draft]: ...


def make_problem(
    lengths: Sequence[int] | NDArray[np.int64],
    *,
    replicas: int,
    capacity: int | Sequence[int],
    cost: CostModel,
    speeds: Sequence[float] | None = None,
    max_degree: int,
    node_size: int = 1,
    kinds: Sequence[int] | None = None,
    nodes: Sequence[int] | None = None,
    stages: int | Sequence[int] = 1,
    layout: Layout | None = None,
    loss: float = 0.0,
) -> Problem:
    """Makes the problem of a step's numbers; Refused names the number that is wrong.

    `capacity`, `kinds` and `stages`: of all replicas, or one per replica. `nodes`: any number for each replica, equal
    where replicas share a node; without it every `node_size` replicas in a row do. `layout`: what the replicas are; without
    it each is a pipeline of so many equal `stages`.
    """
    for name, value, most in (
        ("replicas", replicas, MOST_REPLICAS),
        *(("capacity", c, MOST_TOKENS) for c in ([capacity] if isinstance(capacity, int) else capacity)),
        ("max degree", max_degree, MOST_REPLICAS),
        ("node size", node_size, MOST_REPLICAS),
        *(("stages", p, MOST_REPLICAS) for p in ([stages] if isinstance(stages, int) else stages)),
    ):
        if not 1 <= value <= most:
            raise Refused("BadValue", f"{name} is {value}; it must be at least 1 and at most {most}")
    s = checked_lengths(lengths)
    rates = np.ones(replicas) if speeds is None else np.asarray(speeds, dtype=np.float64)
    if rates.size != replicas:
        raise Refused("BadSpeeds", f"speeds has {rates.size} numbers for {replicas} replicas; give one per replica")
    if (wrong := ~((rates >= SLOWEST) & (rates <= FASTEST))).any():
        at = int(wrong.argmax())
        raise Refused("BadSpeeds", f"speeds[{at}] is {rates[at]}; speeds must be from {SLOWEST:g} to {FASTEST:g}")
    capacities = _each("capacity", capacity, replicas)
    pipelines = layout or pipelines_of(_each("stages", stages, replicas).tolist())
    depth = np.array([len(replica.stages) for replica in pipelines.replicas], dtype=np.int64)
    named = _each("kinds", 0 if kinds is None else kinds, replicas)
    homes = np.arange(replicas) // node_size if nodes is None else _each("nodes", nodes, replicas)
    home = np.unique(homes, return_inverse=True)[1].reshape(-1).astype(np.int64)
    _, kind = np.unique(np.stack([named, capacities]), axis=1, return_inverse=True)
    largest = node_size if nodes is None else int(np.bincount(home).max())
    kind = kind.reshape(-1).astype(np.int64)
    most = min(max_degree, replicas)
    problem = Problem(s, replicas, capacities, cost, rates, most, largest, kind, home, pipelines, loss, depth)
    _must_fit(problem)
    return problem


def _each(name: str, given: int | Sequence[int], replicas: int) -> NDArray[np.int64]:
    """One number per replica, or the same for all."""
    numbers = np.asarray(given, dtype=np.int64)
    if numbers.ndim and numbers.size != replicas:
        raise Refused(
            "BadValue", f"{name} has {numbers.size} numbers for {replicas} replicas; give one, or one per replica"
        )
    return np.broadcast_to(numbers, (replicas,))


def checked_lengths(lengths: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns them as an array. Refused ("BadLengths") names the first that is out of bounds."""
    try:
        s = np.asarray(lengths, dtype=np.int64).reshape(-1)
    except OverflowError:  # beyond 64 bits, so one of them is out of bounds
        s = np.clip(np.asarray(lengths, dtype=object).reshape(-1), 0, MOST_TOKENS + 1).astype(np.int64)
    wrong = (s < 1) | (s > MOST_TOKENS)
    if wrong.any():
        at = int(wrong.argmax())
        bounds = f"every sequence must have at least 1 token and at most {MOST_TOKENS}"
        raise Refused("BadLengths", f"lengths[{at}] is {np.asarray(lengths, dtype=object).reshape(-1)[at]}; {bounds}")
    return s


def _must_fit(problem: Problem) -> None:
    """Demands that one kind of replica holds the longest sequence."""
    lengths, counts = problem.lengths, np.bincount(problem.kinds)
    degrees = np.minimum(counts, problem.max_degree)
    capacities = np.array([problem.capacities[problem.kinds == kind][0] for kind in range(counts.size)])
    best = int((degrees * capacities).argmax())
    degree, capacity = int(degrees[best]), int(capacities[best])
    if (lengths > capacity * degree).any():
        raise Refused(
            "CapacityLost",
            f"sequence {int(lengths.argmax())} has {int(lengths.max())} tokens, but {degree} replicas of {capacity} tokens "
            f"hold only {capacity * degree}: use more replicas, a greater maxDegree or tokensPerReplica, or shorter sequences",
        )
