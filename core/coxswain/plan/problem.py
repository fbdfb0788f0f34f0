"""A planner's input and output, before slices are cut and times are added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from coxswain.cost.model import CostModel
from coxswain.errors import Refused

MOST_REPLICAS = 100_000
MOST_TOKENS = 1_000_000_000  # of one sequence, and of one task


@dataclass(frozen=True, slots=True)
class Problem:
    """One step to be placed.

    Replica r belongs to node r // node_size; speed 1 is the cost model's. Only replicas of one kind share a ring; they
    have equal capacities.
    """

    lengths: NDArray[np.int64]
    replicas: int
    capacities: NDArray[np.int64]  # tokens of a task, per replica
    cost: CostModel
    speeds: NDArray[np.float64]
    max_degree: int
    node_size: int
    kinds: NDArray[np.int64]

    @property
    def capacity(self) -> int:
        """The tokens that one replica holds in a task; the most, where kinds differ."""
        return int(self.capacities.max())

    def inside_node(self, members: Sequence[int]) -> bool:
        return min(members) // self.node_size == max(members) // self.node_size

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
    node_size: int,
    kinds: Sequence[int] | None = None,
) -> Problem:
    """Makes the problem of a step's numbers; Refused names the number that is wrong.

    `capacity` and `kinds`: of all replicas, or one per replica.
    """
    for name, value, most in (
        ("replicas", replicas, MOST_REPLICAS),
        *(("capacity", c, MOST_TOKENS) for c in ([capacity] if isinstance(capacity, int) else capacity)),
        ("max degree", max_degree, MOST_REPLICAS),
        ("node size", node_size, MOST_REPLICAS),
    ):
        if not 1 <= value <= most:
            raise Refused("BadValue", f"{name} is {value}; it must be at least 1 and at most {most}")
    s = checked_lengths(lengths)
    rates = np.ones(replicas) if speeds is None else np.asarray(speeds, dtype=np.float64)
    if rates.size != replicas:
        raise Refused("BadSpeeds", f"speeds has {rates.size} numbers for {replicas} replicas; give one per replica")
    if not (np.isfinite(rates).all() and (rates > 0).all()):
        at = int((~(np.isfinite(rates) & (rates > 0))).argmax())
        raise Refused("BadSpeeds", f"speeds[{at}] is {rates[at]}; speeds must be finite and above 0")
    capacities = np.broadcast_to(np.asarray(capacity, dtype=np.int64), (replicas,))
    named = np.broadcast_to(np.asarray(0 if kinds is None else kinds, dtype=np.int64), (replicas,))
    _, kind = np.unique(np.stack([named, capacities]), axis=1, return_inverse=True)
    problem = Problem(
        s, replicas, capacities, cost, rates, min(max_degree, replicas), node_size, kind.reshape(-1).astype(np.int64)
    )
    _must_fit(problem)
    return problem


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
