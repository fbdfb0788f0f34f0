"""A planner's input and output, before slices are cut and times are added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from coxswain.cost import CostModel
from coxswain.errors import Refused


@dataclass(frozen=True, slots=True)
class Problem:
    """One step to be placed.

    Replica r belongs to node r // node_size; speed 1 is the cost model's.
    """

    lengths: NDArray[np.int64]
    replicas: int
    capacity: int
    cost: CostModel
    speeds: NDArray[np.float64]
    max_degree: int
    node_size: int

    def inside_node(self, members: Sequence[int]) -> bool:
        return min(members) // self.node_size == max(members) // self.node_size

    def lower_bound(self) -> float:
        return self.cost.lower_bound(self.lengths, self.speeds, self.capacity, self.max_degree, self.node_size)


class Draft(NamedTuple):
    """A task without slices: members in ring order (one: a pack) and its sequences."""

    members: tuple[int, ...]
    sequences: tuple[int, ...]


class Planner(Protocol):
    """Puts every sequence into one task; the drafts' order is the step's global order."""

    def __call__(self, problem: Problem) -> list[Draft]: ...


def make_problem(
    lengths: Sequence[int] | NDArray[np.int64],
    *,
    replicas: int,
    capacity: int,
    cost: CostModel,
    speeds: Sequence[float] | None = None,
    max_degree: int,
    node_size: int,
) -> Problem:
    """Makes the problem of a step's numbers; Refused names the number that is wrong."""
    s = np.asarray(lengths, dtype=np.int64).reshape(-1)
    rates = np.ones(replicas) if speeds is None else np.asarray(speeds, dtype=np.float64)
    for name, value in (
        ("replicas", replicas),
        ("capacity", capacity),
        ("max degree", max_degree),
        ("node size", node_size),
    ):
        if value < 1:
            raise Refused("BadValue", f"{name} is {value}; it must be at least 1")
    if s.size and int(s.min()) < 1:
        at = int(s.argmin())
        raise Refused("BadLengths", f"lengths[{at}] is {s[at]}; every sequence must have at least 1 token")
    if rates.size != replicas:
        raise Refused("BadSpeeds", f"speeds has {rates.size} numbers for {replicas} replicas; give one per replica")
    if not (np.isfinite(rates).all() and (rates > 0).all()):
        at = int((~(np.isfinite(rates) & (rates > 0))).argmax())
        raise Refused("BadSpeeds", f"speeds[{at}] is {rates[at]}; speeds must be finite and above 0")
    _must_fit(s, capacity, min(max_degree, replicas))
    return Problem(s, replicas, capacity, cost, rates, min(max_degree, replicas), node_size)


def _must_fit(lengths: NDArray[np.int64], capacity: int, degree: int) -> None:
    if (lengths > capacity * degree).any():
        raise Refused(
            "CapacityLost",
            f"sequence {int(lengths.argmax())} has {int(lengths.max())} tokens, but {degree} replicas of {capacity} tokens "
            f"hold only {capacity * degree}: use more replicas, a greater maxDegree or tokensPerReplica, or shorter sequences",
        )
